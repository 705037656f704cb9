"""Committed results can be traced: their commits exist here, and CPUs are named by their models."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BARE = {"", "cpu", "x86_64", "aarch64", "arm64"}
"""What says nothing of a processor but its architecture."""

ADDED_UP = {"benchmarks/results/stress_totals.json"}
"""Sums over other result files, which name the runs; a test computes them again."""

NO_MODEL = {
    "benchmarks/results/many_penalties_cpu.json": "hours of CPU time",
    "benchmarks/results/mutation_cpu.json": "names the cores only; counts, no times",
    "benchmarks/results/noise_level_cpu.json": "accuracies, no times",
    "benchmarks/results/peers_cpu.json": "a race of eleven environments",
    "benchmarks/results/potts_cpu.json": "beside peers of another environment",
    "benchmarks/results/scaling_cpu.json": "an hour of CPU time",
    "benchmarks/results/stress_16_cores.json": "one of its parts ran elsewhere",
    "benchmarks/results/stress_cpu.json": "hours of CPU time; counts, no times",
    "benchmarks/results/tv_cpu.json": "wall times beside peers, which need a quiet machine",
    "experiments/denoise/results.json": "evaluated after days of training on a GPU",
}
"""Results of CPUs from before the model was noted, and why they were not made again."""

NO_COMMIT = {
    "benchmarks/results/stress_16_cores.json": {"db4f246ce85e"},
}
"""Commits that results name and this history does not have: runs on a GPU, and beside one."""


def files() -> list[Path]:
    found = [p for part in ("benchmarks", "experiments") for p in (ROOT / part).rglob("*.json")]
    return sorted(p for p in found if "out" not in p.relative_to(ROOT).parts)


def runs(found: Any) -> Iterator[dict[str, Any]]:
    """All places of a result that name a commit."""
    if isinstance(found, dict):
        if "commit" in found:
            yield found
        for value in found.values():
            yield from runs(value)
    elif isinstance(found, list):
        for value in found:
            yield from runs(value)


def named(path: Path) -> list[dict[str, Any]]:
    return list(runs(json.loads(path.read_text(encoding="utf-8"))))


RUNS = {p.relative_to(ROOT).as_posix(): named(p) for p in files()}
RUNS = {name: found for name, found in RUNS.items() if name not in ADDED_UP}
pytestmark = pytest.mark.skipif(not RUNS, reason="the results are not part of this copy")


def test_every_result_names_a_commit():
    assert [name for name, found in RUNS.items() if not found] == []


def test_every_commit_exists():
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no history")
    if _git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("this clone is shallow: its history is cut off")
    commits = sorted({run["commit"] for found in RUNS.values() for run in found})
    answers = _git("cat-file", "--batch-check", given="\n".join(commits)).splitlines()
    here = {c for c, line in zip(commits, answers, strict=True) if line.split()[1] == "commit"}
    missing = {
        name: {run["commit"][:12] for run in found} - {c[:12] for c in here}
        for name, found in RUNS.items()
    }
    assert {name: commits for name, commits in missing.items() if commits} == NO_COMMIT


def test_every_processor_has_a_name():
    """The device stands beside the commit; a part of a run may leave it to the whole."""
    bare = set()
    for name, found in RUNS.items():
        devices = [run["device"] for run in found if "device" in run]
        if not devices or not BARE.isdisjoint(devices):
            bare.add(name)
    assert bare == set(NO_MODEL)


def _git(*args: str, given: str = "") -> str:
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
