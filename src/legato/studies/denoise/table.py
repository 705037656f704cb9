"""The table: its parts, each a folder that can be computed by itself, and what they amount to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from legato._support.files import replacing
from legato.console.runs import RunFolder, results_of
from legato.errors import InputError
from legato.studies.denoise.comparisons import compare_gradients, compare_optimisers
from legato.studies.denoise.images import ImageSets
from legato.studies.denoise.levels import FILTERS, MAPPED_FILTERS, run_all_levels, run_level
from legato.studies.denoise.settings import ALL, COMPARE, TableSettings
from legato.studies.denoise.training import Progress

_ONE_FOR_ALL = "{}, one set for every σ"
_ORIGIN = ("date", "commit", "device")
_TARGET = 0.7
"""dB that filters should gain over one weight on BSD68 at σ = 25."""


def run_part(
    part: str, settings: TableSettings, sets: ImageSets, out: Path, device: torch.device,
    say: Progress = lambda line: None,
) -> None:  # fmt: skip
    """Compute one part into its folder."""
    if part not in settings.parts:
        raise InputError(f"There is no part {part!r}; the parts are {', '.join(settings.parts)}.")
    folder = RunFolder(part_folder(out, part))
    folder.begin(settings, device)

    def tell(line: str) -> None:
        say(f"[{part}] {line}")

    def keep(results: dict[str, Any], learned: dict[str, nn.Module]) -> None:
        for name, model in learned.items():
            save_tensors(model, model_file(folder.path, name))
        folder.finish(results | {"complete": False}, device)

    found: dict[str, Any]
    if part == ALL:
        level, sigmas = settings.level, settings.sigmas
        filters, mapped, found = run_all_levels(level, sigmas, sets, device, tell)
        filters.save(model_file(folder.path, FILTERS))
        mapped.save(model_file(folder.path, MAPPED_FILTERS))
    elif part == COMPARE:
        found = {"optimisers": compare_optimisers(settings.comparison, sets.train, device, tell)}
        keep(found, {})
        found["gradients"] = compare_gradients(settings.comparison, sets.train, device, tell)
    else:
        level = replace(settings.level, sigma=float(part))
        found = run_level(level, sets, device, tell, keep)
    folder.finish(found | {"complete": True}, device)


def is_complete(out: Path, part: str) -> bool:
    """Whether a part has been computed to its end."""
    return bool((results_of(part_folder(out, part)) or {}).get("complete"))


def collect(settings: TableSettings, out: Path, peers: Sequence[Path] = ()) -> dict[str, Any]:
    """The parts that are there as one table, with rows of other programs from their files."""
    found = {
        part: results
        for part in settings.parts
        if (results := results_of(part_folder(out, part))) is not None
    }
    levels = {part: found[part] for part in settings.levels if part in found}
    table: dict[str, Any] = {
        part: {name: _means(row["scores"]) for name, row in one["rows"].items()}
        for part, one in levels.items()
    }
    for_all = found[ALL]["rows"] if ALL in found else {}
    more = [(_ONE_FOR_ALL.format(name), row["scores"]) for name, row in for_all.items()]
    for path in peers:
        more += json.loads(path.read_text(encoding="utf-8"))["rows"].items()
    for name, rows in more:
        for part, scores in rows.items():
            table.setdefault(part, {})[name] = _means(scores)
    trainings = {part: _trainings(one) for part, one in levels.items()}
    return {
        "table": table,
        "one_weight": {part: _weights(one) for part, one in levels.items()},
        "training": trainings | ({ALL: _trainings(found[ALL])} if ALL in found else {}),
        "comparisons": found.get(COMPARE),
        "origin": {
            part: {key: one[key] for key in _ORIGIN if key in one} for part, one in found.items()
        },
        "gain": gains(table),
        "target": _TARGET,
    }


def gains(table: dict[str, Any]) -> dict[str, Any]:
    """PSNR of the rows with filters over the better of the two total variations with one λ."""
    found: dict[str, Any] = {}
    for part, rows in table.items():
        plain = [row for name, row in rows.items() if name.endswith("isotropic")]
        if not plain:
            continue
        found[part] = {
            name: {
                test: scores["psnr"] - max(row[test]["psnr"] for row in plain)
                for test, scores in row.items()
                if all(test in other for other in plain)
            }
            for name, row in rows.items()
            if name.startswith("filters") or "λ(y)" in name
        }
    return found


def part_folder(out: Path, part: str) -> Path:
    """Where a part lies."""
    return out / (part if part in (ALL, COMPARE) else f"sigma-{part}")


def model_file(folder: Path, name: str) -> Path:
    """Where the model of a row lies."""
    plain = name.replace("λ(y)", "maps").replace(", ", "-").replace(" ", "-").lower()
    return folder / f"{plain}.safetensors"


def save_tensors(model: nn.Module, path: Path) -> None:
    """A model's parameters, atomically."""
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary)


def _means(scores: dict[str, Any]) -> dict[str, Any]:
    return {test: {key: one[key] for key in ("psnr", "ssim")} for test, one in scores.items()}


def _weights(found: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {
            "bilevel": one["bilevel"]["weight"],
            "grid": one["grid"]["weight"],
            "relative_difference": one["relative_difference"],
            "hypergradients": len(one["bilevel"]["weights"]),
            "grid_points": len(one["grid"]["weights"]),
        }
        for kind, one in found["one_weight"].items()
    }


def _trainings(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _course(row["training"]) | {"parameters": row["parameters"]}
        for name, row in found["rows"].items()
        if "training" in row
    }


def _course(training: dict[str, Any]) -> dict[str, Any]:
    """Steps and seconds, with those of a training that this one went on from."""
    kept = {key: training[key] for key in ("steps", "seconds", *_ORIGIN) if key in training}
    return kept | ({"after": _course(training["after"])} if "after" in training else {})
