"""The denoising table without the command line: ``python run.py PART... --data DIR --out DIR``.

The parts are 15, 25, 50, all and compare; ``collect`` puts those that are there together. Several
processes can compute a part each. The same is ``legato denoise table``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from legato.console.runs import RunFolder
from legato.studies.denoise.image_sets import drawn_sets, read_sets
from legato.studies.denoise.settings import StudySettings
from legato.studies.denoise.table import TableSettings, collect, quick_table, run_part
from legato.studies.denoise.training import Recipe

START = time.perf_counter()


def say(line: str) -> None:
    print(f"{time.perf_counter() - START:6.1f} s  {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="PART")
    parser.add_argument("--data", type=Path, help="holds train, BSD68, Set12; drawn otherwise")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--peers", type=Path, nargs="*", default=[], help="files of peers.py")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--filters", type=int, default=48)
    parser.add_argument("--size", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument(
        "--seconds",
        type=float,
        nargs=4,
        metavar=("MAPS", "FILTERS", "BOTH", "ALL"),
        help="most seconds of training for each kind of model",
    )
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # The solver's convolutions in full float32, by the fastest algorithm for their fixed shapes.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    level = StudySettings(
        filters=arguments.filters,
        size=arguments.size,
        iterations=arguments.iterations,
        recipe=Recipe(steps=arguments.steps, batch=arguments.batch, lr=arguments.lr),
    )
    settings = TableSettings(level=level)
    if arguments.seconds is not None:
        *three, last = arguments.seconds
        settings = replace(settings, level=replace(level, seconds=tuple(three)), all_seconds=last)
    if arguments.quick:
        settings = quick_table(settings)
    if arguments.parts == ["collect"]:
        folder = RunFolder(arguments.out)
        folder.begin(settings, device)
        say(f"wrote {folder.finish(collect(settings, arguments.out, arguments.peers), device)}")
        return
    sets = drawn_sets() if arguments.data is None else read_sets(arguments.data)
    for part in arguments.parts:
        run_part(part, settings, sets, arguments.out, device, say)
        say(f"[{part}] done")


if __name__ == "__main__":
    main()
