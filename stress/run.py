"""make stress: the long tests in chunks, several processes at once, one summary.

    python stress/run.py --minutes 10 --only oracle --problems 20000 --jobs 2

Every chunk leaves a file in out/stress/KIND. The same command takes an interrupted run up again:
chunks that this state of the source has finished are not run twice. Nor are those that an earlier
state, named by ``--also``, has finished without a finding; its findings are looked for again, and
the summary counts both.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinds import KINDS, Kind
from summary import read, set_apart, summarise

from legato._support.files import write_text

HERE = Path(__file__).parent
ROOT = HERE.parent
HUNG = 900.0
"""Seconds beyond its time after which a process that has not ended counts as hung."""


def state_of_the_source() -> str:
    """The commit, and a digest of what differs from it: results of another state do not count.

    A copy without history is told its commit by LEGATO_COMMIT.
    """
    if "LEGATO_COMMIT" in os.environ:
        return os.environ["LEGATO_COMMIT"]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD") or "unknown"
    changed = git("diff", "HEAD", "--", "src", "stress", ":!*.json")
    digest = hashlib.sha256(changed.encode()).hexdigest()[:8] if changed else ""
    return f"{commit}+{digest}" if digest else commit


class Queue:
    """Chunks that are left, given out so that every kind gets its share of the time."""

    def __init__(
        self, chosen: dict[str, Kind], limits: dict[str, int], out: Path, states: list[str],
        first: int = 0,
    ) -> None:  # fmt: skip
        self.lock = threading.Lock()
        self.kinds = chosen
        self.spent = dict.fromkeys(chosen, 0.0)
        self.left: dict[str, list[int]] = {}
        for name in chosen:
            folder = out / folder_of(name)
            (folder / "running").mkdir(parents=True, exist_ok=True)
            set_apart(folder, states)
            done = {one["number"] for one in read(folder, states)}
            self.left[name] = [n for n in range(first, limits[name]) if n not in done]

    def take(self) -> tuple[str, list[int]] | None:
        with self.lock:
            waiting = [name for name, left in self.left.items() if left]
            if not waiting:
                return None
            name = min(waiting, key=lambda n: self.spent[n] / self.kinds[n].share)
            block = self.kinds[name].block
            mine, self.left[name] = self.left[name][:block], self.left[name][block:]
            self.spent[name] += 1.0  # so that two processes do not take the same kind at once
            return name, mine

    def took(self, name: str, seconds: float) -> None:
        with self.lock:
            self.spent[name] += seconds


def folder_of(name: str) -> str:
    return name.replace(" ", "_")


def limits_of(chosen: dict[str, Kind], problems: int) -> dict[str, int]:
    """How many chunks a whole run has."""
    limits = {}
    for name, kind in chosen.items():
        limits[name] = min(
            kind.chunks, getattr(importlib.import_module(kind.module), "CHUNKS", kind.chunks)
        )
        if name == "oracle":
            limits[name] = -(-problems // importlib.import_module(kind.module).PROBLEMS)
    return limits


def run_block(name: str, numbers: list[int], out: Path, state: str, seconds: float) -> None:
    """One process for a few chunks; what ends or hangs it becomes a finding of its chunk."""
    folder = out / folder_of(name)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _paths()}
    command = [sys.executable, str(HERE / "worker.py"), name, str(folder), state, f"{seconds:.0f}"]
    process = subprocess.Popen(
        [*command, *map(str, numbers)], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = process.communicate(timeout=seconds + HUNG)[1]
        how = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        said, how = process.communicate()[1], "hung"
    running = folder / "running" / str(process.pid)
    if process.returncode != 0 and running.exists():
        number = int(running.read_text())
        last = "\n".join(said.strip().splitlines()[-12:])
        content = {
            "state": state, "number": number, "seconds": 0.0,
            "counts": {"findings: a chunk failed": 1},
            "findings": {"a chunk failed": [f"{name} {number} {how}: {last}"]},
        }  # fmt: skip
        write_text(folder / f"{number:05d}.json", json.dumps(content, indent=1) + "\n")
    running.unlink(missing_ok=True)


def _paths() -> str:
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(HERE), str(ROOT / "src"), *([known] if known else [])])


def work_through(queue: Queue, out: Path, state: str, end: float) -> None:
    while time.monotonic() < end:
        taken = queue.take()
        if taken is None:
            return
        name, numbers = taken
        begun = time.monotonic()
        run_block(name, numbers, out, state, max(1.0, end - begun))
        seconds = time.monotonic() - begun
        queue.took(name, seconds)
        print(f"  {name:<18} {numbers[0]:>5} … {numbers[-1]:<5} {seconds:6.0f} s", flush=True)


def findings(content: dict[str, Any]) -> Iterator[str]:
    for name, part in content["parts"].items():
        for kind, details in part["findings"].items():
            count = part["counts"][f"findings: {kind}"]
            yield f"  {name}: {count} × {kind}, e.g. {details[0][:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="then the run can be resumed")
    parser.add_argument("--problems", type=int, default=20_000, help="against the oracle, in all")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=Path("out/stress"), help="folder; OUT.json too")
    parser.add_argument("--first", type=int, default=0, help="the chunk to begin with")
    parser.add_argument("--also", action="append", default=[], help="an earlier state that counts")
    options = parser.parse_args()
    chosen = {name: kind for name, kind in KINDS.items() if options.only in name}
    absent = [name for name, kind in chosen.items() if not kind.present]
    chosen = {name: kind for name, kind in chosen.items() if name not in absent}
    if options.minutes <= 0 or not chosen:
        parser.error("--minutes must be positive, and --only must name a kind")
    if absent:
        print(f"Not there, left out: {', '.join(absent)}")
    state = state_of_the_source()
    states = [state, *options.also]
    limits = limits_of(chosen, options.problems)
    queue = Queue(chosen, limits, options.out, states, options.first)
    left = {name: len(numbers) for name, numbers in queue.left.items()}
    print(f"Long tests, at most {options.minutes:g} minutes with {options.jobs} processes")
    print(f"Chunks left: {left}")
    end = time.monotonic() + 60 * options.minutes
    arguments = (queue, options.out, state, end)
    workers = [threading.Thread(target=work_through, args=arguments) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    content = summarise(options.out, KINDS, states) | {"processes": options.jobs}
    path = options.out.with_suffix(".json")
    write_text(path, json.dumps(content, indent=1) + "\n")
    for name, number in content["summary"].items():
        print(f"  {name.replace('_', ' '):<40} {number:>8}")
    for line in findings(content):
        print(line)
    print(f"Counts: {path}; chunks: {options.out}")
    return 1 if content["summary"]["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
