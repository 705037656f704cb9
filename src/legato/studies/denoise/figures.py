"""The figures of the table: filters, maps of weights, and crops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from legato.console.figures import saved_figure
from legato.console.runs import RunFolder, results_of
from legato.nn import TotalVariation
from legato.studies.denoise.images import ImageSets, middle, noisy
from legato.studies.denoise.levels import FILTERS, MAPPED_FILTERS, MAPPED_TV, new_models
from legato.studies.denoise.models import Analysis, MappedAnalysis, MappedTotalVariation
from legato.studies.denoise.scores import psnr
from legato.studies.denoise.settings import TableSettings
from legato.studies.denoise.table import is_complete, model_file, part_folder

_SHOWN = "25"
_CROP = 128
_MAPS = ("λ(y)", "Σ λ_k")


def draw_all(folder: RunFolder, settings: TableSettings, sets: ImageSets) -> list[Path]:
    """Draw what the finished parts allow; returns the files."""
    levels = [part for part in settings.levels if is_complete(folder.path, part)]
    if not levels:
        return []
    part = _SHOWN if _SHOWN in levels else levels[0]
    lying = part_folder(folder.path, part)
    models = new_models(replace(settings.level, sigma=float(part)))
    for name, model in models.items():
        model.load_state_dict(load_file(model_file(lying, name)))
    found = results_of(lying)
    assert found is not None
    weight = found["rows"]["TV, isotropic"]["weight"]
    return [
        draw_filters(folder.figure("filters.png"), models[FILTERS]),
        draw_crops(folder.figure("crops.jpg"), models, weight, float(part), sets),
    ]


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
    path: Path, models: dict[str, nn.Module], weight: float, sigma: float, sets: ImageSets
) -> Path:
    """Middles of two test images: clean, noisy, and by every model, with the maps of λ."""
    images = next(iter(sets.tests.values()))
    lines = []
    for number in (0, len(images) // 2):
        pair = (images[number], noisy(images[number], sigma / 255, number))
        clean, y = (middle(image, _CROP)[None, None] for image in pair)
        lines.append(_panels(clean, y, weight, models))
    with saved_figure(path, 1.75 * len(lines[0]), 4.2, f"σ = {sigma:g}") as figure:
        grid = figure.subplots(len(lines), len(lines[0]), squeeze=False)
        for row, panels in zip(grid, lines, strict=True):
            for axes, (name, shown) in zip(row, panels.items(), strict=True):
                axes.set_axis_off()
                if name in _MAPS:
                    axes.imshow(shown[0, 0].numpy(), cmap="viridis")
                    axes.set_title(name)
                else:
                    axes.imshow(shown[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
                    quality = "" if name == "clean" else f" {psnr(shown, panels['clean']):.1f}"
                    axes.set_title(name + quality, fontsize=8)
    return path


def _panels(
    clean: Tensor, y: Tensor, weight: float, models: dict[str, nn.Module]
) -> dict[str, Tensor]:
    maps, both = models[MAPPED_TV], models[MAPPED_FILTERS]
    assert isinstance(maps, MappedTotalVariation)
    assert isinstance(both, MappedAnalysis)
    return {
        "clean": clean,
        "noisy": y,
        "TV, one λ": TotalVariation(300)(y, weight),
        MAPPED_TV: maps(y),
        _MAPS[0]: maps.weights(y),
        FILTERS: models[FILTERS](y),
        MAPPED_FILTERS: both(y),
        _MAPS[1]: both.weights(y).sum(1, keepdim=True),
    }
