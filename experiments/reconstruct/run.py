"""The study's rows, each with a limit of time and written as soon as it is there.

    python experiments/reconstruct/run.py --data images.npz --out FOLDER [--tasks A,B] [--tiny]

images.npz holds the grey images as bytes, named train/0, BSD68/0, …: see pack.py. A row that FOLDER
holds already is not computed again.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from legato.console.provenance import provenance
from legato.engine import Eager, Engine, Replayed
from legato.nn import TV
from legato.studies.denoise.images import middles
from legato.studies.denoise.one_weight import learn_weight, search_weight
from legato.studies.denoise.table import save_tensors
from legato.studies.reconstruct.rows import (
    ROWS,
    Model,
    Settings,
    WeightLoss,
    as_settings,
    measure,
    new_model,
    parameters_of,
    train,
)
from legato.studies.reconstruct.tasks import TASKS, make_task

TINY = Settings(
    iterations=6, last=3, solved=20, batch=2, patch=24, steps=3, images=2, window=32, tests=2,
    seeds=(1, 2), chunk=2,
)  # fmt: skip


def read(path: Path) -> dict[str, list[torch.Tensor]]:
    sets: dict[str, list[torch.Tensor]] = {"train": [], "BSD68": [], "Set12": []}
    with np.load(path) as file:
        for name in file.files:
            sets[name.split("/")[0]].append(torch.from_numpy(file[name]).float() / 255)
    return sets


class Results:
    """A file that is written after every row."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.device, self.start = path, device, time.perf_counter()
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, *keys: str, value: Any) -> None:
        at = self.found
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = value
        whole = provenance(self.device) | self.found
        self.path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")

    def has(self, *keys: str) -> Any:
        at: Any = self.found
        for key in keys:
            at = at.get(key) if isinstance(at, dict) else None
        return at

    def say(self, line: str) -> None:
        print(f"{time.perf_counter() - self.start:6.1f} s  {line}", flush=True)


def run_task(
    name: str, sets: dict[str, Any], settings: Settings, results: Results, out: Path,
    device: torch.device, engine: Engine, size: int, rows: tuple[str, ...], begin: Path | None,
) -> None:  # fmt: skip
    task = make_task(name, device, size)
    window = task.size or settings.window
    clean = middles([i for i in sets["train"] if min(i.shape) >= window][: settings.images], window)
    clean = clean.to(device)
    tests = {key: sets[key] for key in ("BSD68", "Set12")}
    learned: dict[str, torch.nn.Module] = {}

    def score(row: str, method: Any, **more: Any) -> None:
        found = measure(method, task, tests, settings, device)
        results.put("tasks", name, row, value={"scores": found} | more)
        means = ", ".join(f"{k} {v['psnr']:.2f} ± {v['std']:.3f}" for k, v in found.items())
        results.say(f"{name}: {row}: {means}")

    weight = (results.has("tasks", name, "TV, one λ") or {}).get("weight")
    for row in rows:
        if results.has("tasks", name, row):
            continue
        start = time.perf_counter()
        if row == "linear":
            score(row, task.plain)
        elif row in ("TV, one λ", "TV, bilevel λ"):
            search = search_weight if row == "TV, one λ" else learn_weight
            found = search(WeightLoss(task, clean, settings, engine), 2e-3)
            value, course = found.weight, dataclasses.asdict(found)
            weight = value if row == "TV, one λ" else weight
            model = Model(task, TV(value), settings.solved, None).to(device)
            score(row, model, weight=value, course=course)
        else:
            torch.manual_seed(settings.seed)
            model = new_model(row, task, weight or 0.01, settings, learned)
            before = None if begin is None else begin / f"{name}-{ROWS.index(row)}.safetensors"
            if before is not None and before.exists():
                model.prior.load_state_dict(load_file(before))
            course = train(model, sets["train"], settings, device, engine, results.say)
            learned[row] = model
            score(row, model, training=course, parameters=parameters_of(model.prior))
            save_tensors(model.prior, out / f"{name}-{ROWS.index(row)}.safetensors")
        results.say(f"{name}: {row}: {time.perf_counter() - start:.1f} s in all")
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rows", default=None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--start", type=Path, default=None, help="Models to go on from.")
    parser.add_argument("--network-lr", type=float, default=Settings.network_lr)
    parser.add_argument("--iterations", type=int, default=Settings.iterations)
    parser.add_argument("--last", type=int, default=Settings.last)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--replayed", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    engine: Engine = Replayed() if device.type == "cuda" or options.replayed else Eager()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = (
        TINY
        if options.tiny
        else Settings(
            seconds=options.seconds,
            network_lr=options.network_lr,
            iterations=options.iterations,
            last=options.last,
        )
    )
    sets = read(options.data)
    results = Results(options.out / "results.json", device)
    results.put("settings", value=as_settings(settings) | {"size": options.size})
    rows = ROWS if options.rows is None else tuple(ROWS[int(i)] for i in options.rows.split(","))
    for name in options.tasks.split(","):
        try:
            run_task(
                name, sets, settings, results, options.out, device, engine, options.size, rows,
                options.start,
            )  # fmt: skip
        except Exception:
            traceback.print_exc()
            results.say(f"{name}: failed, the next part goes on")
    results.put("settings", value=dataclasses.asdict(settings) | {"size": options.size})


if __name__ == "__main__":
    main()
