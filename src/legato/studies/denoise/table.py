"""The table: its parts, each a folder that can be computed by itself, and what they amount to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from legato._support.files import replacing
from legato.console.runs import RunFolder, results_of
from legato.errors import InputError
from legato.studies.denoise.all_levels import score_all_levels, train_all_levels
from legato.studies.denoise.comparisons import (
    ComparisonSettings,
    compare_gradients,
    compare_optimisers,
)
from legato.studies.denoise.image_sets import ImageSets
from legato.studies.denoise.settings import HIGHEST, LOWEST, StudySettings, quick
from legato.studies.denoise.study import run_level
from legato.studies.denoise.training import Progress

ALL, COMPARE = "all", "compare"
"""The parts beside the noise levels: filters for all of them, and gradients and optimisers."""
_ONE_FOR_ALL = "filters, one set for every σ"
_ORIGIN = ("date", "commit", "device")
_TARGET = 0.7
"""dB that filters should gain over one weight on BSD68 at σ = 25."""


@dataclass(frozen=True)
class TableSettings:
    """The whole table."""

    sigmas: tuple[float, ...] = (15.0, 25.0, 50.0)
    level: StudySettings = field(default_factory=StudySettings)
    comparison: ComparisonSettings = field(default_factory=ComparisonSettings)
    all_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.sigmas or any(not 0 < sigma < 255 for sigma in self.sigmas):
            raise InputError(f"Noise levels lie between 0 and 255, unlike some of {self.sigmas}.")

    @property
    def parts(self) -> tuple[str, ...]:
        """Everything there is to compute."""
        return (*(f"{sigma:g}" for sigma in self.sigmas), ALL, COMPARE)


def quick_table(settings: TableSettings) -> TableSettings:
    """The same table in a minute or two; its numbers mean little."""
    every = settings.sigmas == TableSettings.sigmas
    return replace(
        settings,
        sigmas=(25.0,) if every else settings.sigmas,
        level=quick(settings.level),
        comparison=ComparisonSettings(
            filters=8, size=3, iterations=60, batch=2, patch=16, steps=4
        ),
    )  # fmt: skip


def run_part(
    part: str, settings: TableSettings, sets: ImageSets, out: Path, device: torch.device,
    say: Progress = lambda line: None,
) -> None:  # fmt: skip
    """Compute one part into its folder."""
    if part not in settings.parts:
        raise InputError(f"There is no part {part!r}; the parts are {', '.join(settings.parts)}.")
    folder = RunFolder(part_folder(out, part))
    folder.begin(asdict(settings), device)

    def tell(line: str) -> None:
        say(f"[{part}] {line}")

    if part == ALL:
        level = settings.level
        recipe = replace(level.recipe, seconds=settings.all_seconds)
        denoiser, course = train_all_levels(
            level.filters, level.size, level.iterations, sets, recipe, device, tell
        )
        denoiser.save(folder.path / "filters.safetensors")
        scores = score_all_levels(denoiser, sets, settings.sigmas, device)
        about = {"recipe": asdict(recipe), "levels": [LOWEST, HIGHEST]}
        folder.finish({"training": course, "scores": scores, "complete": True} | about, device)
    elif part == COMPARE:
        found: dict[str, Any] = {"complete": False}
        found["optimisers"] = compare_optimisers(settings.comparison, sets.train, device, tell)
        folder.finish(found, device)
        found["gradients"] = compare_gradients(settings.comparison, sets.train, device, tell)
        folder.finish(found | {"complete": True}, device)
    else:

        def keep(results: dict[str, Any], learned: dict[str, nn.Module]) -> None:
            for name, model in learned.items():
                save_tensors(model, model_file(folder.path, name))
            folder.finish(results | {"complete": False}, device)

        level = replace(settings.level, sigma=float(part))
        results, _ = run_level(level, sets, device, tell, keep)
        folder.finish(results | {"complete": True}, device)


def collect(settings: TableSettings, out: Path, peers: Sequence[Path] = ()) -> dict[str, Any]:
    """The parts that are there as one table, with rows of other programs from their files."""
    levels: dict[str, Any] = {}
    for part in settings.parts[:-2]:
        found = results_of(part_folder(out, part))
        if found is not None:
            levels[part] = found
    table: dict[str, Any] = {
        part: {name: _means(row["scores"]) for name, row in found["rows"].items()}
        for part, found in levels.items()
    }
    together = results_of(part_folder(out, ALL))
    if together is not None:
        for part, scores in together["scores"].items():
            table.setdefault(part, {})[_ONE_FOR_ALL] = _means(scores)
    for path in peers:
        for name, rows in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
            for part, scores in rows.items():
                table.setdefault(part, {})[name] = _means(scores)
    return {
        "table": table,
        "one_weight": {part: _weights(found) for part, found in levels.items()},
        "training": {part: _trainings(found) for part, found in levels.items()}
        | ({} if together is None else {ALL: together["training"]}),
        "comparisons": results_of(part_folder(out, COMPARE)),
        "origin": {
            part: {key: found[key] for key in _ORIGIN if key in found}
            for part in settings.parts
            if (found := results_of(part_folder(out, part))) is not None
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
