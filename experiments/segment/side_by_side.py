"""Table, first networks on both sets of classes, and figure side by side, within a limit of time.

    python experiments/segment/side_by_side.py --data iccv09Data.tar.gz \\
        --weights vgg16.safetensors --out FOLDER --minutes 7.5 [--rows A,B,… --groups 2]

What ``legato segment table`` and ``legato segment iterations`` compute one after the other, as one
process a part on one GPU. Steps of the figure are timed first, while nothing else runs. A part
that fails stops no other; a part that the limit ends goes on with the next call, since what FOLDER
holds is not computed again. With ``--rows`` only these rows of the table are computed, those of a
seed in several groups. ``FOLDER/home`` gets what is worth taking home, in few files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from legato.console.runs import RunFolder
from legato.studies.segment.data import Dataset, Split, StanfordBackground, split
from legato.studies.segment.iterations import IterationSettings, time_rows, train_rows
from legato.studies.segment.settings import RECIPES, Network, Precision
from legato.studies.segment.table import TableSettings, collect, run_seed

SEEDS = (0, 1, 2)
ROWS = ("control", "paper", "contrast", "uniform", "global", "paper-rate")
CLASSES = ("surfaces", "regions")
"""The three, with all rows, and the eight, with the first network alone."""

BALANCE = 1.0
"""r of the figure, which iterations/search.json found."""


def say(line: str) -> None:
    print(line, flush=True)


def open_data(options: argparse.Namespace, classes: str) -> tuple[Dataset, Split]:
    """The images and their split, or a few of them."""
    data = StanfordBackground(options.data, classes)
    parts = split(data.names, 0.2, seed=0)
    if not options.tiny:
        return data.in_memory(), parts
    few = Split(parts.train[:4], parts.test[:3], parts.seed)
    return data.subset((*few.train, *few.test)).in_memory(), few


def parts_of(options: argparse.Namespace) -> tuple[str, ...]:
    """What has a process of its own; of the eight classes one seed comes after the other."""
    table = tuple(f"surfaces-{seed}-{group}" for group in range(options.groups) for seed in SEEDS)
    return table if options.rows else (*table, "average", "last", "regions")


def table_settings(options: argparse.Namespace, classes: str) -> TableSettings:
    on_gpu = options.device == "cuda"
    recipe = replace(
        RECIPES[Network.VGG32],
        save_every=5,
        workers=0 if options.tiny else 3 if options.groups == 1 else 1,
        precision=Precision.MIXED if on_gpu else Precision.FULL,
        accelerator="gpu" if on_gpu else "cpu",
    )
    rows = tuple(options.rows.split(",")) if options.rows else ROWS
    rows = rows if classes == "surfaces" else ()
    settings = TableSettings(Network.VGG32, SEEDS, rows, recipe=recipe)
    if options.tiny:
        tiny = replace(recipe, batch=2, crop=(64, 96))
        settings = replace(
            settings, first_epochs=1, extra_epochs=1, iterations=4, test_iterations=(2,),
            recipe=tiny,
        )  # fmt: skip
    return settings


def figure_settings(options: argparse.Namespace, *averages: bool) -> IterationSettings:
    settings = IterationSettings(balance=BALANCE, averages=averages)
    if options.tiny:
        settings = replace(settings, counts=(2, 4), steps=3, images=2, seeds=(0, 1))
    return settings


def compute(options: argparse.Namespace) -> None:
    """One part."""
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high")  # as the command does
    name = options.part
    if name in ("times", "average", "last"):
        data = StanfordBackground(options.data, "surfaces")
        data = data.subset(split(data.names, 0.2, seed=0).train)
        folder = options.out / "iterations" / "rows"
        if name == "times":
            time_rows(figure_settings(options, True, False), data, options.device, folder)
        else:
            settings = figure_settings(options, name == "average")
            train_rows(settings, data, options.device, folder, say)
        return
    classes, *place = name.split("-")
    data, parts = open_data(options, classes)
    settings, folder = table_settings(options, classes), options.out / classes
    run = RunFolder(folder)
    run.begin({"table": asdict(settings), "classes": classes}, options.device)
    parts.save(folder / "split.json")
    seeds, group = SEEDS, 0
    if place:
        seeds, group = (int(place[0]),), int(place[1])
        settings = replace(settings, variants=settings.variants[group :: options.groups])
    for seed in seeds:
        while group and not (folder / f"seed-{seed}" / "network.json").exists():
            time.sleep(0.5)  # the first group trains it
        run_seed(seed, settings, data, parts, folder, options.device, options.weights, say)


def begin(options: argparse.Namespace, name: str) -> subprocess.Popen[bytes]:
    """A part in a process group of its own, so that it ends with all that it began."""
    log = (options.out / f"{name}.log").open("ab")
    given = [*sys.argv, "--part", name]
    more = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *given], stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        env=os.environ | more,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def follow(options: argparse.Namespace, names: tuple[str, ...], seconds: float) -> dict[str, str]:
    """Begin the parts and wait for them, no longer than that; how each of them ended."""
    start = time.monotonic()
    running = {name: begin(options, name) for name in names}
    ended = {}
    while running:
        late = time.monotonic() - start > seconds
        for name, process in list(running.items()):
            code = process.poll()
            if code is None and not late:
                continue
            end(process)
            took = f"after {time.monotonic() - start:.0f} s"
            ended[name] = f"cut short {took}" if code is None else f"exit {code} {took}"
            say(f"{name:<12} {ended[name]}")
            del running[name]
        time.sleep(0.2)
    return ended


def pack(options: argparse.Namespace) -> None:
    """What is worth taking home: numbers, logits at stride 32 in half precision, pictures' data."""
    out, home = options.out, options.out / "home"
    home.mkdir(exist_ok=True)
    if not options.rows:
        figure = RunFolder(out / "iterations")
        figure.begin(figure_settings(options, True, False), options.device)
    for classes in CLASSES:
        folder = out / classes
        if folder.exists():
            rows = collect(folder, table_settings(options, classes))
            found = {"settings": asdict(table_settings(options, classes)), "rows": rows}
            RunFolder(folder).finish(found, options.device)
            for name, row in rows.items():
                scores = [f"{row[part][key]['mean']:6.2f}" for part in ("train", "test")
                          for key in ("accuracy", "iou", "iou_of_images")]  # fmt: skip
                say(f"{classes} {name:<12} {'  '.join(scores)}")
        coarse = {}
        for seed in SEEDS:
            file = folder / f"seed-{seed}" / "coarse.pt"
            if file.exists():
                for name, logits in torch.load(file, weights_only=True).items():
                    coarse[f"{seed}/{name}"] = logits.half().numpy()
        if coarse:
            np.savez_compressed(home / f"coarse-{classes}.npz", **coarse)
    for name, patterns in {
        "results.zip": ("**/*.json", "seed-*/*.npz", "*/seed-*/*.npz", "*.log"),
        "pictures.zip": ("surfaces/seed-0/labels-*.pt", "surfaces/seed-0/weights.pt"),
    }.items():
        with zipfile.ZipFile(home / name, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted({path for pattern in patterns for path in out.glob(pattern)}):
                if home not in path.parents:
                    file.write(path, path.relative_to(out))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="Stanford Background")
    parser.add_argument("--weights", type=Path, required=True, help="VGG-16's convolutions")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--copy-to", type=Path, help="where to copy what is in FOLDER/home")
    parser.add_argument("--rows", help="of the table, and nothing else")
    parser.add_argument("--groups", type=int, default=1, help="processes that share a seed's rows")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="seven images, to see that it runs")
    parser.add_argument("--part", help="compute this part alone")
    options = parser.parse_args()
    if options.part is not None:
        compute(options)
        return
    start, limit, parts = time.monotonic(), 60 * options.minutes, parts_of(options)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if not options.rows:
            follow(options, ("times",), min(75, limit / 3))
        follow(options, parts, limit - 15 - (time.monotonic() - start))
    finally:
        pack(options)
        if options.copy_to is not None:
            shutil.copytree(options.out / "home", options.copy_to, dirs_exist_ok=True)
    for name in parts:
        lines = (options.out / f"{name}.log").read_text(errors="replace").splitlines()
        say("\n".join([f"--- {name}", *lines[-8:]]))


if __name__ == "__main__":
    main()
