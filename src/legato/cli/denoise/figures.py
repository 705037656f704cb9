"""The figures of the table: filters, maps of weights, and crops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from legato.console.figures import saved_figure
from legato.console.runs import RunFolder, results_of
from legato.gradients import Unroll
from legato.nn import TotalVariation
from legato.studies.denoise.image_sets import ImageSets, noisy
from legato.studies.denoise.models import (
    Analysis,
    MappedAnalysis,
    MappedTotalVariation,
    first_filters,
)
from legato.studies.denoise.scores import psnr
from legato.studies.denoise.table import TableSettings, model_file, part_folder

_SHOWN = "25"
_CROP = 128


def draw_all(folder: RunFolder, settings: TableSettings, sets: ImageSets) -> list[Path]:
    """Draw what the finished parts allow; returns the files."""
    levels = [part for part in settings.parts[:-2] if _complete(folder.path, part)]
    if not levels:
        return []
    part = _SHOWN if _SHOWN in levels else levels[0]
    models = load_models(settings, folder.path, part)
    return [
        draw_filters(folder.figure("filters.png"), models["filters"]),
        draw_crops(folder.figure("crops.jpg"), models, folder.path, part, sets),
    ]


def load_models(settings: TableSettings, out: Path, part: str) -> dict[str, nn.Module]:
    """The learned models of one noise level."""
    level, sigma = settings.level, float(part) / 255
    models: dict[str, nn.Module] = {
        "TV, λ(y)": MappedTotalVariation(1.0, sigma, level.map_iterations),
        "filters": Analysis(
            first_filters(level.filters, level.size, level.iterations, sigma, Unroll())
        ),
        "filters, λ(y)": MappedAnalysis(
            first_filters(level.filters, level.size, level.iterations, sigma, Unroll()), sigma
        ),
    }
    for name, model in models.items():
        model.load_state_dict(load_file(model_file(part_folder(out, part), name)))
    return models


def draw_filters(path: Path, model: nn.Module) -> Path:
    """The filters d_k, strongest λ_k‖d_k‖ first, each scaled to its own range."""
    assert isinstance(model, Analysis)
    filters = model.denoiser.filters.detach()[:, 0]
    strength = model.denoiser.weights.detach() * filters.flatten(1).norm(dim=1)
    order = strength.argsort(descending=True)
    columns = 12 if len(order) > 24 else 8
    rows = -(-len(order) // columns)
    title = "Learned filters, by λ‖d‖ · 1000"
    with saved_figure(path, 0.72 * columns, 0.5 + 0.85 * rows, title) as figure:
        for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
            axes.set_axis_off()
            if place < len(order):
                k = int(order[place])
                limit = float(filters[k].abs().max())
                axes.imshow(filters[k].numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
                axes.set_title(f"{1000 * float(strength[k]):.1f}", fontsize=7, loc="center")
    return path


@torch.no_grad()
def draw_crops(
    path: Path, models: dict[str, nn.Module], out: Path, part: str, sets: ImageSets
) -> Path:
    """Middles of two test images: clean, noisy, and by every model, with the maps of λ."""
    found = results_of(part_folder(out, part))
    assert found is not None
    weight = found["rows"]["TV, isotropic"]["weight"]
    images = next(iter(sets.tests.values()))
    chosen = (0, len(images) // 2)
    names = ["clean", "noisy", "TV, one λ", "TV, λ(y)", "λ(y)", "filters", "filters, λ(y)", "Σ λ_k"]
    with saved_figure(path, 1.75 * len(names), 4.2, f"σ = {part}") as figure:
        grid = figure.subplots(len(chosen), len(names), squeeze=False)
        for line, number in zip(grid, chosen, strict=True):
            clean, y = _crop(images[number], float(part) / 255, number)
            panels = _panels(clean, y, weight, models)
            for axes, name in zip(line, names, strict=True):
                axes.set_axis_off()
                shown = panels[name][0, 0].numpy()
                if "λ" in name and name not in ("TV, one λ", "TV, λ(y)", "filters, λ(y)"):
                    axes.imshow(shown, cmap="viridis")
                    axes.set_title(name)
                else:
                    axes.imshow(shown, cmap="gray", vmin=0, vmax=1)
                    quality = "" if name == "clean" else f" {psnr(panels[name], clean):.1f}"
                    axes.set_title(name + quality, fontsize=8)
    return path


def _panels(
    clean: Tensor, y: Tensor, weight: float, models: dict[str, nn.Module]
) -> dict[str, Tensor]:
    maps, both = models["TV, λ(y)"], models["filters, λ(y)"]
    assert isinstance(maps, MappedTotalVariation)
    assert isinstance(both, MappedAnalysis)
    return {
        "clean": clean,
        "noisy": y,
        "TV, one λ": TotalVariation(300)(y, weight).x,
        "TV, λ(y)": maps(y),
        "λ(y)": maps.weights(y),
        "filters": models["filters"](y),
        "filters, λ(y)": both(y),
        "Σ λ_k": both.weights(y).sum(1, keepdim=True),
    }


def _crop(image: Tensor, sigma: float, number: int) -> tuple[Tensor, Tensor]:
    height, width = image.shape
    top, left = max(0, (height - _CROP) // 2), max(0, (width - _CROP) // 2)
    window = (slice(top, top + _CROP), slice(left, left + _CROP))
    return image[window][None, None], noisy(image, sigma, number)[window][None, None]


def _complete(out: Path, part: str) -> bool:
    found: dict[str, Any] | None = results_of(part_folder(out, part))
    return found is not None and bool(found.get("complete"))
