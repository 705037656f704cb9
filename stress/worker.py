"""A process that works through some chunks of one kind; each leaves a file, whole or not at all.

    python stress/worker.py KIND FOLDER STATE SECONDS NUMBER...

It ends between two chunks once the seconds are over, and is told by a file which chunk it is at: a
chunk that takes the process with it can be named.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib
import json
import sys
import time
from pathlib import Path

import torch
from kinds import KINDS
from tally import Tally

from legato._support.files import write_text


def work(kind: str, folder: Path, state: str, seconds: float, numbers: list[int]) -> None:
    torch.set_num_threads(1)
    module = importlib.import_module(KINDS[kind].module)
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end:
            return
        write_text(folder / "running" / f"{os.getpid()}", str(number))
        begun, tally = time.monotonic(), Tally()
        module.chunk(number, tally)
        content = {
            "state": state,
            "number": number,
            "seconds": round(time.monotonic() - begun, 1),
            "counts": dict(sorted(tally.counts.items())),
            "findings": tally.findings,
        }
        write_text(folder / f"{number:05d}.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    name, place, commit, limit, *rest = sys.argv[1:]
    work(name, Path(place), commit, float(limit), [int(n) for n in rest])
