"""Train a model of a finished part further, and score it again.

    python experiments/denoise/train_on.py OUT --sigma 25 --row filters --data DIR --seconds 2400

Reads OUT/sigma-25/filters.safetensors, writes it back, and replaces its row in results.json: the
course of the earlier training stays under ``after``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file

from legato.console.provenance import provenance
from legato.console.runs import results_of
from legato.studies.denoise.images import read_sets
from legato.studies.denoise.levels import (
    FILTERS,
    MAPPED_FILTERS,
    MAPPED_TV,
    count_parameters,
    new_models,
)
from legato.studies.denoise.scores import score
from legato.studies.denoise.settings import LevelSettings
from legato.studies.denoise.table import model_file, part_folder, save_tensors
from legato.studies.denoise.training import Recipe, train

START = time.perf_counter()


def say(line: str) -> None:
    print(f"{time.perf_counter() - START:6.1f} s  {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sigma", type=float, default=25)
    parser.add_argument("--row", choices=(FILTERS, MAPPED_FILTERS, MAPPED_TV), default=FILTERS)
    parser.add_argument("--data", type=Path, required=True, help="holds train, BSD68, Set12")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = False
    folder = part_folder(arguments.out, f"{arguments.sigma:g}")
    found = results_of(folder)
    # Filters with maps begin with the trained filters where they have not been trained themselves.
    fresh = (
        arguments.row == MAPPED_FILTERS and found is not None and arguments.row not in found["rows"]
    )
    if found is None or (arguments.row not in found["rows"] and not fresh):
        parser.error(f"{folder} holds no row {arguments.row!r} to go on from.")
    kept = {key: found["settings"][key] for key in ("filters", "size", "iterations")}
    maps, sigma = found["settings"]["map_iterations"], arguments.sigma / 255
    row = {} if fresh else found["rows"][arguments.row]
    torch.manual_seed(0)
    models = new_models(LevelSettings(sigma=arguments.sigma, map_iterations=maps, **kept))
    model, path = models[arguments.row], model_file(folder, arguments.row)
    if fresh:
        models[FILTERS].load_state_dict(load_file(model_file(folder, FILTERS)))
        model.filters.load_state_dict(models[FILTERS].denoiser.state_dict())
    else:
        model.load_state_dict(load_file(path))
    sets = read_sets(arguments.data)
    # Another seed each time: not the same patches again, in the same order.
    earlier, trained = 0, row.get("training")
    while trained:
        earlier, trained = earlier + 1, trained.get("after")
    recipe = Recipe(
        steps=10**6, batch=arguments.batch, lr=arguments.lr, seed=earlier, seconds=arguments.seconds
    )
    course = train(model, sets.train, sigma, recipe, device, say)
    save_tensors(model, path)
    row["scores"] = {
        name: score(model, images, sigma, device) for name, images in sets.tests.items()
    }
    row["parameters"] = count_parameters(model)
    before = {} if fresh else {"after": row["training"]}
    row["training"] = course | {"recipe": asdict(recipe)} | provenance(device) | before
    # Read again: another row may have been trained on meanwhile.
    now = results_of(folder) or found
    now["rows"][arguments.row] = row
    text = json.dumps(now, indent=1, ensure_ascii=False) + "\n"
    (folder / "results.json").write_text(text, encoding="utf-8")
    say(", ".join(f"{name} {one['psnr']:.2f} dB" for name, one in row["scores"].items()))


if __name__ == "__main__":
    main()
