"""What is learned and measured for one noise level, and one set of filters for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from legato.gradients import Unroll
from legato.nn import AnalysisDenoiser, TotalVariation
from legato.studies.denoise.images import ImageSets, middles
from legato.studies.denoise.models import (
    Analysis,
    MappedAnalysis,
    MappedTotalVariation,
    first_filters,
)
from legato.studies.denoise.one_weight import TotalVariationLoss, learn_weight, search_weight
from legato.studies.denoise.scores import Denoise, score
from legato.studies.denoise.settings import HIGHEST, LOWEST, LevelSettings
from legato.studies.denoise.training import Progress, Recipe, train

Learned = dict[str, nn.Module]
MAPPED_TV, FILTERS, MAPPED_FILTERS = "TV, λ(y)", "filters", "filters, λ(y)"
"""The rows of the learned models."""


def new_models(settings: LevelSettings, weight: float = 1.0) -> Learned:
    """The models of one noise level before their training, by the names of their rows."""
    sigma = settings.sigma / 255

    def filters() -> AnalysisDenoiser:
        return first_filters(settings.filters, settings.size, settings.iterations, sigma, Unroll())

    return {
        MAPPED_TV: MappedTotalVariation(weight, sigma, settings.map_iterations),
        FILTERS: Analysis(filters()),
        MAPPED_FILTERS: MappedAnalysis(filters(), sigma),
    }


def run_level(
    settings: LevelSettings,
    sets: ImageSets,
    device: torch.device,
    say: Progress = lambda line: None,
    keep: Callable[[dict[str, Any], Learned], None] = lambda results, learned: None,
) -> dict[str, Any]:
    """The rows of one σ.

    Args:
        settings: the noise level, the sizes of the models and how they are trained.
        sets: images to learn from and to measure on.
        device: where to compute.
        say: gets a line after each row and while models are trained.
        keep: sees results and models after each row, in case the process is killed.
    """
    sigma = settings.sigma / 255
    results: dict[str, Any] = {"settings": asdict(settings), "one_weight": {}, "rows": {}}
    learned: Learned = {}

    def measure(name: str, denoise: Denoise, **more: Any) -> None:
        found = {test: score(denoise, images, sigma, device) for test, images in sets.tests.items()}
        results["rows"][name] = {"scores": found} | more
        means = ", ".join(f"{test} {one['psnr']:.2f} dB" for test, one in found.items())
        say(f"σ = {settings.sigma:g}: {name}: {means}")
        keep(results, learned)

    def one_weight(kind: str) -> float:
        isotropic, unroll = kind == "isotropic", Unroll(checkpoint="sqrt")
        solver = TotalVariation(settings.tv_iterations, isotropic=isotropic, gradient=unroll)
        found = _one_weight(settings, sets, solver, device)
        results["one_weight"][kind] = found
        weight: float = found["bilevel"]["weight"]
        measure(f"TV, {kind}", lambda image: solver(image, weight), weight=weight)
        return weight

    measure("noisy", lambda image: image)
    weight = one_weight("isotropic")
    one_weight("anisotropic")
    torch.manual_seed(settings.recipe.seed)
    models = new_models(settings, weight)
    for name, model in models.items():
        if isinstance(model, MappedAnalysis):  # its maps refine the filters that are trained by now
            filters = models[FILTERS]
            assert isinstance(filters, Analysis)
            model.filters.load_state_dict(filters.denoiser.state_dict())
        course = train(model, sets.train, sigma, settings.recipe, device, say)
        learned[name] = model
        measure(name, model, training=course, parameters=count_parameters(model))
    return results


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def _one_weight(
    settings: LevelSettings, sets: ImageSets, solver: TotalVariation, device: torch.device
) -> dict[str, Any]:
    """λ by both ways, and by how much they differ."""
    images = middles(sets.train[: settings.tv_images], settings.tv_size).to(device)
    sigma = settings.sigma / 255
    loss = TotalVariationLoss(images, sigma, solver)
    bilevel, grid = learn_weight(loss, 0.5 * sigma), search_weight(loss, 0.5 * sigma)
    difference = bilevel.weight / grid.weight - 1
    return {"bilevel": asdict(bilevel), "grid": asdict(grid), "relative_difference": difference}


def run_all_levels(
    settings: LevelSettings, sigmas: Sequence[float], sets: ImageSets, device: torch.device,
    say: Progress = lambda line: None,
) -> tuple[AnalysisDenoiser, MappedAnalysis, dict[str, Any]]:  # fmt: skip
    """Filters that are told σ, alone and with maps, trained on all σ and measured at some (of 255).

    Those with maps are what ``legato denoise IMAGE`` takes.
    """
    levels = (LOWEST / 255, HIGHEST / 255)
    results: dict[str, Any] = {"rows": {}, "levels": [LOWEST, HIGHEST]}

    def learn(name: str, model: nn.Module, recipe: Recipe) -> None:
        course = train(model, sets.train, levels, recipe, device, say)
        scores = {f"{sigma:g}": _scores(model, sigma / 255, sets, device) for sigma in sigmas}
        for sigma, found in scores.items():
            means = ", ".join(f"{test} {one['psnr']:.2f} dB" for test, one in found.items())
            say(f"σ = {sigma}: {name}: {means}")
        results["rows"][name] = {
            "scores": scores,
            "training": course,
            "recipe": asdict(recipe),
            "parameters": count_parameters(model),
        }

    torch.manual_seed(settings.recipe.seed)
    filters = first_filters(settings.filters, settings.size, settings.iterations, None, Unroll())
    learn(FILTERS, Analysis(filters), _shortened(settings.recipe))
    mapped = MappedAnalysis(deepcopy(filters))
    learn(MAPPED_FILTERS, mapped, settings.recipe)
    return filters, mapped, results


def _scores(
    model: nn.Module, sigma: float, sets: ImageSets, device: torch.device
) -> dict[str, Any]:
    return {
        test: score(lambda image: model(image, sigma), images, sigma, device)
        for test, images in sets.tests.items()
    }


def _shortened(recipe: Recipe) -> Recipe:
    """A quarter of the training: filters settle soon, and go on with their maps."""
    seconds = None if recipe.seconds is None else recipe.seconds / 4
    return replace(recipe, steps=math.ceil(recipe.steps / 4), seconds=seconds)
