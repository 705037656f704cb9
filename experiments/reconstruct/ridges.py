"""A convex ridge regulariser: trained until the clock says so, and measured.

    python experiments/reconstruct/ridges.py --data bsds --out FOLDER [--start ridges.safetensors]

Writes ridges.json and ridges.safetensors; --start goes on from such a file, and with --seconds 0 it
is measured as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from legato.console.provenance import provenance
from legato.engine import Eager, Engine, Replayed
from legato.studies.denoise.images import read_sets
from legato.studies.denoise.table import save_tensors
from legato.studies.reconstruct.ridges import (
    PUBLISHED,
    MeasuredRidges,
    RidgeSettings,
    restorer,
    train_ridges,
)
from legato.studies.reconstruct.rows import Settings, measure, parameters_of
from legato.studies.reconstruct.tasks import Denoising


def main() -> None:
    default = RidgeSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--iterations", type=int, default=default.iterations)
    parser.add_argument("--batch", type=int, default=default.batch)
    parser.add_argument("--solved", type=int, default=default.solved, help="when measuring")
    parser.add_argument("--lr", type=float, default=1.0, help="times the learning rates")
    parser.add_argument("--start", type=Path, default=None)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3), help="of the noise")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device, begun = torch.device(options.device), time.perf_counter()
    sets = read_sets(options.data)
    settings = RidgeSettings(
        seconds=options.seconds, iterations=options.iterations, batch=options.batch,
        lr=default.lr * options.lr, potential_lr=default.potential_lr * options.lr,
        weight_lr=default.weight_lr * options.lr, solved=options.solved,
    )  # fmt: skip
    measured = Settings(chunk=8, seeds=tuple(options.seeds))
    if options.quick:
        settings = dataclasses.replace(settings, steps=30, batch=2, window=32, solved=20)
        measured = Settings(tests=1, seeds=(1,))
    prior = MeasuredRidges()
    if options.start is not None:
        prior.load_state_dict(load_file(options.start))
    engines: tuple[Engine, ...] = (Eager(), Replayed()) if device.type == "cuda" else (Eager(),)

    def say(line: str) -> None:
        print(f"{time.perf_counter() - begun:6.1f} s  ridges: {line}", flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    course: dict[str, Any] | None = None
    if settings.seconds > 0:
        course = train_ridges(prior, sets.train, settings, device, engines, say)
        save_tensors(prior, options.out / "ridges.safetensors")
    prior.eval()
    restore = restorer(prior, settings)
    scores: dict[str, Any] = measure(
        restore, Denoising(settings.sigma), sets.tests, measured, device
    )
    found = {
        "scores": scores, "published": PUBLISHED, "residual": restore.residual,
        "weight": float(prior.weight(prior.raw).detach()), "training": course,
        "parameters": parameters_of(prior), "started": options.start is not None,
        "settings": dataclasses.asdict(settings),
    }  # fmt: skip
    text = json.dumps(provenance(device) | found, indent=1, ensure_ascii=False)
    (options.out / "ridges.json").write_text(text + "\n", encoding="utf-8")
    say(", ".join(f"{k} {v['psnr']:.3f} ± {v['std']:.3f}" for k, v in scores.items()))


if __name__ == "__main__":
    main()
