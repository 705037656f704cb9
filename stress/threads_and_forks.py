"""Several Python threads at once, and forked workers of a data loader, before and after a solve."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import torch
from subjects import SUBJECTS_TO_REPEAT, Subject
from tally import Tally

from legato.errors import LegatoWarning

HERE = Path(__file__).parent
THREADS = 4
ROUNDS = 10
TIMEOUT = 300
"""Seconds after which a worker that says nothing counts as hung."""


def gradients(subject: Subject) -> dict[str, torch.Tensor]:
    leaves = {k: v.clone().requires_grad_() for k, v in subject.inputs.items()}
    value = subject.compute(leaves)
    grads = torch.autograd.grad(value.square().sum(), list(leaves.values()))
    return {"value": value.detach(), **dict(zip(leaves, grads, strict=True))}


def threads_do_not_disturb_each_other(tally: Tally) -> None:
    """Every thread solves every subject, each in its own order; results equal those of one."""
    made = {name: make() for name, make in SUBJECTS_TO_REPEAT.items()}
    wrong: list[str] = []
    # Filters of warnings belong to the process, and are set once for all threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegatoWarning)
        right = {name: gradients(subject) for name, subject in made.items()}

        def work(number: int) -> None:
            names = list(made)
            for turn in range(ROUNDS):
                for i in range(len(names)):
                    name = names[(i * (1 + 2 * number) + number + turn) % len(names)]
                    try:
                        found = gradients(made[name])
                    except Exception as error:
                        wrong.append(f"{name}: {type(error).__name__}: {error}")
                        continue
                    for key, tensor in found.items():
                        if not torch.allclose(tensor, right[name][key], rtol=1e-9, atol=1e-12):
                            wrong.append(f"{name}: {key} differs")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tally.count("solves in threads", THREADS * ROUNDS * len(made))
    for line in wrong:
        tally.finding("threads disturb each other", line)


def forked_workers(first: str, threads: int, tally: Tally) -> None:
    """In a process of its own, because a fork that hangs would take the tests with it."""
    command = [sys.executable, str(HERE / "forked_workers.py"), first, str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment
        )
    except subprocess.TimeoutExpired:
        tally.finding("forked workers hang", f"{first} before the fork, {threads} threads")
        return
    tally.count("forked loaders")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        tally.finding("forked workers fail", f"{first} first, {threads} threads: {last}")
        return
    tally.count("solves in forked workers", int(done.stdout.split()[-1]))


FORKS = [
    (first, threads) for first in ("nothing", "solve", "backward", "threads") for threads in (1, 2)
]
CHUNKS = 1 + (len(FORKS) if hasattr(os, "fork") else 0)


def chunk(number: int, tally: Tally) -> None:
    """Threads first, then a loader's forked workers after each way to begin."""
    if number == 0:
        threads_do_not_disturb_each_other(tally)
    else:
        forked_workers(*FORKS[number - 1], tally)
