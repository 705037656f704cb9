"""make stress: all long tests in bounded time, their counts in one file, and a summary.

    python stress/run.py --minutes 10 --problems 2000 --out out/stress.json

Every part runs in a process of its own, several at once, and gets a share of the minutes; parts
that are not about chance (extremes, memory, threads and forks) take what they take.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato._support.files import write_text
from legato.console.provenance import provenance

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Part:
    """A selection of tests, and the share of the time that is theirs."""

    name: str
    tests: tuple[str, ...]
    share: float
    select: str = ""


# Longest first: the last of them decides when two processes are done.
PARTS = (
    Part("strategies, composite", ("test_strategies.py",), 0.65, "Composite"),
    Part("strategies, saddle", ("test_strategies.py",), 0.65, "Saddle"),
    Part("extremes", ("test_extremes.py",), 0.3),
    Part("kills", ("test_kills.py",), 0.3),
    Part("memory", ("test_memory.py",), 0.2),
    Part("threads and forks", ("test_threads_and_forks.py",), 0.1),
)


@dataclass
class Outcome:
    part: Part
    passed: bool
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=dict)
    tail: str = ""


def run_part(part: Part, options: argparse.Namespace, folder: Path) -> Outcome:
    seconds = 60 * options.minutes * part.share
    path = folder / f"{part.name}.json"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "LEGATO_STRESS_SECONDS": f"{seconds:.0f}",
        "LEGATO_STRESS_TALLY": str(path),
        "LEGATO_STRESS_PROBLEMS": str(options.problems),
        "LEGATO_STRESS_REPEATS": str(options.repeats),
        "LEGATO_STRESS_KILLS": str(options.kills),
        "LEGATO_STRESS_SEED": str(options.seed),
    }
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o",
        "pythonpath=tests stress", "-o", "tmp_path_retention_policy=failed",
        *(str(HERE / t) for t in part.tests),
    ]  # fmt: skip
    if part.select:
        command += ["-k", part.select]
    begun = time.monotonic()
    limit = 4 * seconds + 600  # what hangs is ended, and counts as failed
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit
        )
        passed, said = done.returncode == 0, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        passed, said = False, f"ended after {limit:.0f} s"
    outcome = Outcome(part, passed, time.monotonic() - begun)
    if path.exists():
        content = json.loads(path.read_text())
        outcome.counts, outcome.findings = content["counts"], content["findings"]
    if not passed:
        outcome.tail = "\n".join(said.splitlines()[-15:])
    word = "passed" if passed else "FAILED"
    print(f"  {part.name:<22} {word} in {outcome.seconds:5.0f} s", flush=True)
    return outcome


def summary(parts: dict[str, Any]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts.values():
        total.update({k: v for k, v in part["counts"].items() if " in float" not in k})
    findings = sum(v for k, v in total.items() if k.startswith("findings: "))
    return {
        "problems": total["problems"],
        "problems_asked_for": total["problems asked for"],
        "gradients": total["gradients asked for"],
        "comparisons": total["comparisons"],
        "disagreements": total["disagreements"],
        "refusals": total["refusals"],
        "gradients_with_a_warning": total["gradients with a warning"],
        "extreme_inputs": total["extreme inputs"],
        "extreme_inputs_refused_or_warned_about": total["extreme inputs: refused or warned about"],
        "repeated_solves_cpu": total["repeated solves on cpu"],
        "repeated_solves_cuda": total["repeated solves on cuda"],
        "solves_in_threads": total["solves in threads"],
        "solves_in_forked_workers": total["solves in forked workers"],
        "kills": sum(v for k, v in total.items() if k.startswith("kills: ")),
        "findings": findings,
    }


def merged(path: Path, outcomes: list[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """What was found now, and, for parts that did not run, what the file already holds."""
    known = json.loads(path.read_text())["parts"] if options.only and path.exists() else {}
    now = provenance()
    new = {
        o.part.name: {
            "passed": o.passed, "date": now["date"], "commit": now["commit"],
            "minutes": options.minutes, "seed": options.seed, "seconds": round(o.seconds),
            "counts": o.counts, "findings": o.findings,
        }
        for o in outcomes
    }  # fmt: skip
    parts = {p.name: (known | new)[p.name] for p in PARTS if p.name in known | new}
    return {**now, "summary": summary(parts), "parts": parts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="on two quiet cores")
    parser.add_argument("--problems", type=int, default=2000, help="at most; less if time is short")
    parser.add_argument("--repeats", type=int, default=1000, help="solves while memory is watched")
    parser.add_argument("--kills", type=int, default=20, help="of each of the two trainings")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--only", default="", help="parts whose name contains this; the others stay"
    )
    parser.add_argument("--out", type=Path, default=Path("out/stress.json"))
    options = parser.parse_args()
    chosen = [part for part in PARTS if options.only in part.name]
    if options.minutes <= 0 or not chosen:
        parser.error("--minutes must be positive, and --only must name a part")
    print(f"Long tests, about {options.minutes:g} minutes with {options.jobs} processes")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        work = [pool.submit(run_part, part, options, Path(folder)) for part in chosen]
        outcomes = [each.result() for each in work]
    content = merged(options.out, outcomes, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, json.dumps(content, indent=1) + "\n")
    for name, number in content["summary"].items():
        print(f"  {name.replace('_', ' '):<40} {number:>8}")
    for outcome in outcomes:
        for kind, found in outcome.findings.items():
            print(f"  {outcome.part.name}: {kind}: {found[0]}")
        if not outcome.passed:
            print(f"--- {outcome.part.name}\n{outcome.tail}")
    print(f"Counts: {options.out}")
    return 0 if all(o.passed for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
