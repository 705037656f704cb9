"""Several threads at once, forked and spawned processes: the same bits everywhere."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legato.errors import LegatoError, LegatoWarning
from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught, compute

THREADS = 3
PATIENCE = 60
"""Seconds after which a process that says nothing counts as hung."""


def in_threads(cases: Sequence[Case], judge: Judge) -> None:
    """Every thread computes every case, each in its own order."""
    for case in cases:
        case.expected  # noqa: B018  computed before there are threads
    found: list[tuple[Case, Outcome]] = []
    # Filters of warnings belong to the process, and are set once for all threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def work(number: int) -> None:
            for i in range(len(cases)):
                case = cases[(i * (1 + 2 * number) + number) % len(cases)]
                try:
                    outcome = compute(case.subject, case.inputs)
                except LegatoError as error:
                    outcome = Outcome(refusal=str(error))
                except Exception as error:
                    outcome = Outcome(raw=f"{type(error).__name__}: {error}")
                found.append((case, outcome))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for case, outcome in found:
        judge.same(case, "threads", outcome)


def _report(cases: Sequence[Case]) -> list[Outcome]:
    return [caught(lambda c=c: compute(c.subject, c.inputs)) for c in cases]


def forked(cases: Sequence[Case], judge: Judge) -> None:
    """A child of this process, which has used everything before, computes the same."""
    for case in cases:
        case.expected  # noqa: B018
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as file:
                pickle.dump(_report(cases), file)
        finally:
            os._exit(0)
    os.close(write)
    outcomes = _received(read, child)
    if outcomes is None:
        judge.tally.finding("a forked process hangs or dies", ", ".join(map(str, cases)))
        return
    for case, outcome in zip(cases, outcomes, strict=True):
        judge.same(case, "fork", outcome)


def _received(read: int, child: int) -> list[Outcome] | None:
    content, deadline = b"", time.monotonic() + PATIENCE
    with os.fdopen(read, "rb", buffering=0) as file:
        while True:
            ready, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                break
            part = file.read(1 << 16)
            if not part:
                break
            content += part
    os.waitpid(child, 0)
    try:
        return pickle.loads(content)
    except Exception:
        return None


def spawned(cases: Sequence[Case], judge: Judge) -> None:
    """A new process, which has used nothing before, computes the same."""
    names = [(c.subject.kind, c.subject.name, c.seed) for c in cases]
    stress = Path(__file__).parents[1]
    paths = [str(stress), *(p for p in sys.path if p)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "metamorphic.processes"], input=pickle.dumps(names),
            capture_output=True, timeout=10 * PATIENCE, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        judge.tally.finding("a spawned process hangs", str(names))
        return
    if done.returncode != 0:
        last = (done.stderr.decode().strip().splitlines() or ["no message"])[-1]
        judge.tally.finding("a spawned process fails", last)
        return
    for case, outcome in zip(cases, pickle.loads(done.stdout), strict=True):
        # Another process may align its memory otherwise, and vectorised sums with it.
        judge.same(case, "spawn", outcome, rounding=case.subject.rounding)


def _main() -> None:
    """Compute the cases named on standard input; for :func:`spawned`."""
    import torch

    from metamorphic.subjects import by_name

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LegatoWarning)
    names: list[tuple[str, str, int]] = pickle.load(sys.stdin.buffer)
    cases = [Case(by_name(kind, name), seed) for kind, name, seed in names]
    found: Any = _report(cases)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    _main()
