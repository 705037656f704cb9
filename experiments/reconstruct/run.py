"""The study's rows, side by side in processes that share a device, each written as it is there.

    python experiments/reconstruct/run.py --data bsds --out FOLDER [--tasks A,B] [--tiny]

The folder bsds holds train, BSD68 and Set12. Every row that is trained has its own process, and
ends by the clock. FOLDER gets results.json and models.safetensors,
whose tensors are named TASK/ROW/NAME; with --start trainings go on from such a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from legato.console.provenance import provenance
from legato.engine import Eager, Engine, Replayed
from legato.nn import TV
from legato.studies.denoise.images import ImageSets, middles, read_sets
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
    train_row,
)
from legato.studies.reconstruct.tasks import TASKS, make_task

TINY = Settings(
    iterations=4, last=4, solved=20, batch=2, patch=24, steps=3, images=2, window=32, tests=2,
    seeds=(1, 2), chunk=2,
)  # fmt: skip
FEW = {"ct-60": 12, "ct-30": 12}
"""Iterations of learned models where each costs a product with the inverse of a large matrix."""
BATCHES = {"ct-60": 8, "ct-30": 8, "mri-4": 8}
"""Pictures of a batch where the operator asks for large ones."""
FIRST = {"deblur-gauss": 0.0038, "deblur-motion": 0.0036, "ct-60": 0.0013, "ct-30": 0.0013,
         "mri-4": 0.004}  # fmt: skip
"""The weight of total variation that networks start from."""
GROUPS = ((0, 1, 2), (3,), (4,), (5,))
"""Rows that share a process."""


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

    def say(self, line: str) -> None:
        print(f"{time.perf_counter() - self.start:6.1f} s  {line}", flush=True)


def run_rows(
    name: str, rows: tuple[str, ...], sets: ImageSets, settings: Settings, results: Results,
    out: Path, device: torch.device, size: int, begin: Path | None,
) -> None:  # fmt: skip
    """Some rows of a task; a row that fails leaves the others alone."""
    task = make_task(name, device, size)
    engine: Engine = Replayed() if device.type == "cuda" else Eager()
    window = task.size or settings.window

    def score(row: str, method: Any, **more: Any) -> None:
        found = measure(method, task, sets.tests, settings, device)
        value = {"scores": found, "settings": as_settings(settings) | {"size": size}}
        results.put("tasks", name, row, value=value | more)
        means = ", ".join(f"{k} {v['psnr']:.2f} ± {v['std']:.3f}" for k, v in found.items())
        results.say(f"{name}: {row}: {means}")

    def compute(row: str) -> None:
        if row == "linear":
            score(row, task.plain)
        elif row in ("TV, one λ", "TV, bilevel λ"):
            large = [i for i in sets.train if min(i.shape) >= window][: settings.images]
            clean = middles(large, window).to(device)
            search = search_weight if row == "TV, one λ" else learn_weight
            found = search(WeightLoss(task, clean, settings, engine), FIRST[name])
            model = Model(task, TV(found.weight), settings.solved, None).to(device)
            score(row, model, weight=found.weight, course=dataclasses.asdict(found))
        else:
            torch.manual_seed(settings.seed)
            model = new_model(row, task, FIRST[name], settings)
            if begin is not None:
                here = f"{name}/{row}/"
                known = {k[len(here) :]: t for k, t in load_file(begin).items() if here in k}
                model.prior.load_state_dict(known)
            course = train_row(model, sets.train, settings, device, results.say)
            save_tensors(model.prior, out / f"{name}-{ROWS.index(row)}.safetensors")
            score(row, model, training=course, parameters=parameters_of(model.prior))

    for row in rows:
        start = time.perf_counter()
        try:
            compute(row)
        except Exception:
            traceback.print_exc()
            results.say(f"{name}: {row}: failed")
        results.say(f"{name}: {row}: {time.perf_counter() - start:.1f} s in all")
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def settings_for(name: str, options: argparse.Namespace) -> Settings:
    if options.tiny:
        return dataclasses.replace(TINY, seconds=options.seconds)
    iterations = FEW.get(name, Settings.iterations)
    return Settings(
        seconds=options.seconds, network_lr=options.network_lr, iterations=iterations,
        last=iterations, batch=BATCHES.get(name, options.batch),
    )  # fmt: skip


def service(folder: Path) -> dict[str, str]:
    """The environment that lets processes compute on a GPU at the same time, where that works."""
    where = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    environment = os.environ | where
    for path in where.values():
        Path(path).mkdir()
    probe = "import torch; assert float(torch.ones(9, device='cuda').sum()) == 9"
    try:
        control = ["nvidia-cuda-mps-control"]
        subprocess.run([*control, "-d"], env=environment, check=True, timeout=20)
        tried = [sys.executable, "-c", probe]
        if subprocess.run(tried, env=environment, timeout=60, check=False).returncode == 0:
            return where
        subprocess.run(control, input=b"quit\n", env=environment, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Processes take turns: {error}", flush=True)
    return {}


def side_by_side(options: argparse.Namespace, rest: list[str]) -> None:
    """One process for each group of rows, stopped when time is up, and their files as one."""
    wanted = set(range(len(ROWS)))
    if options.rows is not None:
        wanted = {int(i) for i in options.rows.split(",")}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shared = service(folder) if options.mps else {}
        environment = os.environ | shared | {"OMP_NUM_THREADS": "1"}
        running: list[tuple[Path, subprocess.Popen[bytes]]] = []
        for name in options.tasks.split(","):
            for number, group in enumerate(GROUPS):
                if rows := sorted(wanted.intersection(group)):
                    part = folder / f"{name}-{number}"
                    these = ["--tasks", name, "--rows", ",".join(map(str, rows)), "--alone"]
                    command = [sys.executable, __file__, *rest, "--out", str(part), *these]
                    running.append((part, subprocess.Popen(command, env=environment)))
        for _, process in running:
            try:
                process.wait(max(1.0, options.limit - (time.perf_counter() - start)))
            except subprocess.TimeoutExpired:
                process.kill()
        merge([part for part, _ in running], options.out)
        if shared:
            quitting = ["nvidia-cuda-mps-control"]
            subprocess.run(quitting, input=b"quit\n", env=environment, timeout=20, check=False)


def merge(parts: list[Path], out: Path) -> None:
    """The results and models of all parts, added to what is there."""
    results, models = out / "results.json", out / "models.safetensors"
    whole: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    tensors = load_file(models) if models.exists() else {}
    tasks = whole.get("tasks", {})
    for part in parts:
        if (part / "results.json").exists():
            found = json.loads((part / "results.json").read_text())
            for name, rows in found.pop("tasks", {}).items():
                tasks[name] = tasks.get(name, {}) | rows
            whole |= found
        for path in part.glob("*.safetensors"):
            name, row = path.stem.rsplit("-", 1)
            tensors |= {f"{name}/{ROWS[int(row)]}/{k}": t for k, t in load_file(path).items()}
    results.write_text(json.dumps(whole | {"tasks": tasks}, indent=1, ensure_ascii=False) + "\n")
    if tensors:
        save_file(tensors, models)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rows", default=None, help="numbers of rows, such as 3,5")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a training")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of everything")
    parser.add_argument("--size", type=int, default=128, help="of tomography and k-space")
    parser.add_argument("--batch", type=int, default=Settings.batch)
    parser.add_argument("--start", type=Path, default=None, help="models to go on from")
    parser.add_argument("--network-lr", type=float, default=Settings.network_lr)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--alone", action="store_true", help="all rows in this process")
    parser.add_argument("--mps", action="store_true", help="let processes compute together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.alone:
        side_by_side(options, sys.argv[1:])
        return
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = torch.device(options.device)
    sets = read_sets(options.data)
    results = Results(options.out / "results.json", device)
    rows = ROWS if options.rows is None else tuple(ROWS[int(i)] for i in options.rows.split(","))
    for name in options.tasks.split(","):
        run_rows(
            name, rows, sets, settings_for(name, options), results, options.out, device,
            options.size, options.start,
        )  # fmt: skip


if __name__ == "__main__":
    main()
