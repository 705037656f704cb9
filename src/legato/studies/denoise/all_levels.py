"""One set of filters for every noise level: what ``legato denoise IMAGE`` uses."""

from __future__ import annotations

from typing import Any

import torch

from legato.gradients import Unroll
from legato.nn import AnalysisDenoiser
from legato.studies.denoise.image_sets import ImageSets
from legato.studies.denoise.models import Analysis, first_filters
from legato.studies.denoise.scores import score
from legato.studies.denoise.settings import HIGHEST, LOWEST
from legato.studies.denoise.training import Progress, Recipe, train


def train_all_levels(
    filters: int, size: int, iterations: int, sets: ImageSets, recipe: Recipe,
    device: torch.device, say: Progress = lambda line: None,
) -> tuple[AnalysisDenoiser, dict[str, Any]]:  # fmt: skip
    """A denoiser that is told σ, trained on all of them, and the course of its training."""
    denoiser = first_filters(filters, size, iterations, None, Unroll())
    levels = (LOWEST / 255, HIGHEST / 255)
    course = train(Analysis(denoiser), sets.train, levels, recipe, device, say)
    return denoiser, course


def score_all_levels(
    denoiser: AnalysisDenoiser, sets: ImageSets, sigmas: tuple[float, ...], device: torch.device
) -> dict[str, Any]:
    """For each σ (of 255) and test set, with σ given."""
    return {
        f"{sigma:g}": {
            test: score(lambda y, s=sigma: denoiser(y, s / 255).x, images, sigma / 255, device)  # type: ignore[misc]
            for test, images in sets.tests.items()
        }
        for sigma in sigmas
    }
