"""From the files of chunks to one file: counts, quotas, findings by kind, where it was run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tally import KEPT

from legato.console.provenance import provenance

Chunk = dict[str, Any]

EARLIER = "earlier"
"""Where chunks lie that found something in an earlier state of the source."""


def _chunks(folder: Path, states: list[str]) -> Iterator[tuple[Path, Chunk]]:
    for path in sorted(folder.glob("[0-9]*.json")):
        content = json.loads(path.read_text())
        if content["state"] in states:
            yield path, content


def set_apart(folder: Path, states: list[str]) -> None:
    """Keep what earlier states (all but the first) have found, for it will be looked for again."""
    for path, chunk in _chunks(folder, states[1:]):
        if chunk["findings"]:
            (folder / EARLIER).mkdir(exist_ok=True)
            path.rename(folder / EARLIER / f"{path.stem}-{chunk['state'][:12]}.json")


def read(folder: Path, states: list[str]) -> list[Chunk]:
    """The chunks of a kind that belong to these states of the source."""
    return [chunk for _, chunk in _chunks(folder, states)]


def of_kind(chunks: list[Chunk], earlier: list[Chunk]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    findings: dict[str, list[str]] = {}
    for one in chunks:
        counts.update(one["counts"])
        for kind, details in one["findings"].items():
            kept = findings.setdefault(kind, [])
            kept += details[: KEPT - len(kept)]
    quotas = {k.removeprefix("quota "): n for k, n in counts.items() if k.startswith("quota ")}
    return {
        "chunks": len(chunks),
        "chunks by state": dict(Counter(one["state"] for one in chunks)),
        "findings of earlier states": _counted(earlier),
        "seconds": round(sum(one["seconds"] for one in chunks)),
        "counts": {k: v for k, v in sorted(counts.items()) if not k.startswith("quota ")},
        "quotas": dict(sorted(quotas.items(), key=lambda item: (item[1], item[0]))),
        "findings": findings,
    }


def _counted(chunks: list[Chunk]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in chunks:
        total.update({k: n for k, n in one["counts"].items() if k.startswith("findings: ")})
    return {k.removeprefix("findings: "): n for k, n in sorted(total.items())}


def summary(parts: dict[str, Any]) -> dict[str, int]:
    """The numbers that the documentation quotes."""
    total: Counter[str] = Counter()
    for part in parts.values():
        total.update({k: v for k, v in part["counts"].items() if " in float" not in k})
    return {
        "problems": total["problems"],
        "problems_against_the_oracle": _of(parts, "oracle", "problems"),
        "undecided_by_the_oracle": total["undecided by the oracle"],
        "well_posed_problems": total["well-posed problems"],
        "false_alarms": total["findings: false alarm"],
        "gradients": total["gradients asked for"],
        "comparisons": total["comparisons"],
        "disagreements": total["disagreements"],
        "refusals": total["refusals"],
        "gradients_with_a_warning": total["gradients with a warning"],
        "metamorphic_checks": _of(parts, "metamorphic", "checks"),
        "extreme_inputs": total["extreme inputs"],
        "extreme_inputs_refused_or_warned_about": total["extreme inputs: refused or warned about"],
        "repeated_solves_cpu": total["repeated solves on cpu"],
        "repeated_solves_cuda": total["repeated solves on cuda"],
        "solves_in_threads": total["solves in threads"],
        "solves_in_forked_workers": total["solves in forked workers"],
        "kills": sum(v for k, v in total.items() if k.startswith("kills: ")),
        "findings": sum(v for k, v in total.items() if k.startswith("findings: ")),
        "findings_of_earlier_states": sum(
            sum(part["findings of earlier states"].values()) for part in parts.values()
        ),
    }


def _of(parts: dict[str, Any], kind: str, name: str) -> int:
    """A count of one kind."""
    return int(parts.get(kind, {"counts": {}})["counts"].get(name, 0))


def summarise(out: Path, kinds: dict[str, Any], states: list[str]) -> dict[str, Any]:
    """What all chunks of these states add up to; the first one is the present."""
    parts = {}
    for name in kinds:
        folder = out / name.replace(" ", "_")
        chunks = read(folder, states)
        if chunks:
            parts[name] = of_kind(chunks, read(folder / EARLIER, states))
    where = provenance(os.environ.get("LEGATO_STRESS_DEVICE", "cpu"))
    return {**where, "state": states[0], "summary": summary(parts), "parts": parts}
