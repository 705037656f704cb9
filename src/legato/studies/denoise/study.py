"""One noise level of the table: every denoiser learned, and measured on every test set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from legato.gradients import Unroll
from legato.nn import AnalysisDenoiser, TotalVariation
from legato.studies.denoise.image_sets import ImageSets
from legato.studies.denoise.models import (
    Analysis,
    MappedAnalysis,
    MappedTotalVariation,
    first_filters,
)
from legato.studies.denoise.one_weight import (
    Course,
    TotalVariationLoss,
    centres,
    learn_weight,
    search_weight,
)
from legato.studies.denoise.scores import Denoise, score
from legato.studies.denoise.settings import StudySettings
from legato.studies.denoise.training import Progress, train

Learned = dict[str, torch.nn.Module]


def run_level(
    settings: StudySettings,
    sets: ImageSets,
    device: torch.device,
    say: Progress = lambda line: None,
    keep: Callable[[dict[str, Any], Learned], None] = lambda results, learned: None,
) -> tuple[dict[str, Any], Learned]:
    """The rows of one σ, and the models; ``keep`` sees both after each row, in case of a kill."""
    sigma = settings.sigma / 255
    results: dict[str, Any] = {"settings": asdict(settings), "one_weight": {}, "rows": {}}
    learned: Learned = {}

    def measure(name: str, denoise: Denoise, **more: Any) -> None:
        found = {test: score(denoise, images, sigma, device) for test, images in sets.tests.items()}
        results["rows"][name] = {"scores": found} | more
        means = ", ".join(f"{test} {one['psnr']:.2f} dB" for test, one in found.items())
        say(f"σ = {settings.sigma:g}: {name}: {means}")
        keep(results, learned)

    measure("noisy", lambda image: image)
    weights = {}
    for isotropic in (True, False):
        kind = "isotropic" if isotropic else "anisotropic"
        found, course = _one_weight(settings, sets, isotropic, device)
        results["one_weight"][kind] = found
        weights[isotropic] = course.weight
        solver = TotalVariation(settings.tv_iterations, isotropic=isotropic)
        measure(f"TV, {kind}", _total_variation(solver, course.weight), weight=course.weight)
    torch.manual_seed(settings.recipe.seed)

    def teach(name: str, model: torch.nn.Module, place: int) -> None:
        recipe = settings.recipe_for(place)
        course = train(model, sets.train, sigma, recipe, device, say)
        learned[name] = model
        measure(name, model, training=course, parameters=_count(model))

    teach("TV, λ(y)", MappedTotalVariation(weights[True], sigma, settings.map_iterations), 0)
    filters = _filters(settings, sigma)
    teach("filters", Analysis(filters), 1)
    more = _filters(settings, sigma)
    more.load_state_dict(filters.state_dict())  # what the maps refine
    teach("filters, λ(y)", MappedAnalysis(more, sigma), 2)
    return results, learned


def _one_weight(
    settings: StudySettings, sets: ImageSets, isotropic: bool, device: torch.device
) -> tuple[dict[str, Any], Course]:
    """λ by both ways, and by how much they differ."""
    solver = TotalVariation(
        settings.tv_iterations, isotropic=isotropic, gradient=Unroll(checkpoint="sqrt")
    )
    images = centres(sets.train[: settings.tv_images], settings.tv_size).to(device)
    sigma = settings.sigma / 255
    loss = TotalVariationLoss(images, sigma, solver)
    bilevel, grid = learn_weight(loss, 0.5 * sigma), search_weight(loss, 0.5 * sigma)
    difference = bilevel.weight / grid.weight - 1
    return {
        "bilevel": asdict(bilevel),
        "grid": asdict(grid),
        "relative_difference": difference,
    }, bilevel


def _total_variation(solver: TotalVariation, weight: float) -> Denoise:
    def denoise(image: Tensor) -> Tensor:
        return solver(image, weight).x

    return denoise


def _filters(settings: StudySettings, sigma: float) -> AnalysisDenoiser:
    return first_filters(settings.filters, settings.size, settings.iterations, sigma, Unroll())


def _count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
