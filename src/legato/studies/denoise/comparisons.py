"""The same training by several gradients, and by two optimisers, on one batch that stays."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato.diagnostics import peak_bytes
from legato.errors import LegatoWarning
from legato.gradients import GMRES, GradientStrategy, Implicit, Piggyback, Unroll
from legato.nn import AnalysisDenoiser
from legato.optim import IPiano
from legato.studies.denoise.models import first_filters
from legato.studies.denoise.training import Patches, Progress


@dataclass(frozen=True)
class ComparisonSettings:
    """A problem small enough for every strategy."""

    sigma: float = 25.0  # of 255
    filters: int = 24
    size: int = 5
    iterations: int = 400  # solved: else strategies that differentiate the solution differ
    batch: int = 4
    patch: int = 32
    steps: int = 40
    lr: float = 1e-2
    seed: int = 0


def compare_gradients(
    settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam with every gradient: the first gradient's error, PSNR in the end, memory and time."""
    clean, noisy = _batch(settings, images, device)
    N = settings.iterations
    strategies: dict[str, GradientStrategy] = {
        "Unroll": Unroll(),
        "Unroll, checkpoints": Unroll(checkpoint="sqrt"),
        "Piggyback": Piggyback(iterations=N, tol=1e-4),
        "Implicit": Implicit(GMRES(tol=1e-4)),
    }
    rows: dict[str, Any] = {}
    exact: Tensor | None = None
    for name, gradient in strategies.items():
        denoiser = _denoiser(settings, gradient).to(device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LegatoWarning)
            first = _first_gradient(denoiser, noisy, clean)
            exact = first if exact is None else exact
            measured = partial(_first_gradient, denoiser, noisy, clean)
            peak = round(peak_bytes(measured, device) / 2**20)
            course = _adam(denoiser, noisy, clean, settings) | {"peak_mebibytes": peak}
        off = float((first - exact).norm() / exact.norm())
        told = sum(issubclass(one.category, LegatoWarning) for one in caught)
        rows[name] = course | {"first_gradient_off": off, "warnings": told}
        say(f"{name}: {course['psnr']:.3f} dB, {course['seconds']:.1f} s, "
            f"{peak} MiB, first gradient off by {off:.1e}")  # fmt: skip
    return rows


def compare_optimisers(
    settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam and iPiano with as many evaluations of the loss and its gradient."""
    clean, noisy = _batch(settings, images, device)
    denoiser = _denoiser(settings, Unroll()).to(device)
    rows: dict[str, Any] = {"Adam": _adam(denoiser, noisy, clean, settings)}
    rows["IPiano"] = _ipiano(_denoiser(settings, Unroll()).to(device), noisy, clean, settings)
    for name, row in rows.items():
        say(f"{name}: {row['psnr']:.3f} dB after {len(row['losses'])} evaluations")
    return rows


def _batch(
    settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device
) -> tuple[Tensor, Tensor]:
    patches = Patches(images, settings.patch, settings.seed)
    clean = patches.draw(settings.batch)
    noisy = clean + settings.sigma / 255 * patches.noise(clean.shape)
    return clean.to(device), noisy.to(device)


def _denoiser(settings: ComparisonSettings, gradient: GradientStrategy) -> AnalysisDenoiser:
    level = settings.sigma / 255
    return first_filters(settings.filters, settings.size, settings.iterations, level, gradient)


def _loss(denoiser: AnalysisDenoiser, noisy: Tensor, clean: Tensor) -> Tensor:
    return 10 * (denoiser(noisy).x - clean).square().mean().log10()


def _first_gradient(denoiser: AnalysisDenoiser, noisy: Tensor, clean: Tensor) -> Tensor:
    parts = torch.autograd.grad(_loss(denoiser, noisy, clean), list(denoiser.parameters()))
    return torch.cat([part.flatten() for part in parts])


def _adam(
    denoiser: AnalysisDenoiser, noisy: Tensor, clean: Tensor, settings: ComparisonSettings
) -> dict[str, Any]:
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=settings.lr)
    start = time.perf_counter()
    losses = []
    for step in range(settings.steps):
        decay = 0.5 + 0.5 * math.cos(math.pi * step / settings.steps)
        optimizer.param_groups[0]["lr"] = settings.lr * decay
        loss = _loss(denoiser, noisy, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - start
    return _row(denoiser, noisy, clean, losses) | {"seconds": seconds}


def _ipiano(
    denoiser: AnalysisDenoiser, noisy: Tensor, clean: Tensor, settings: ComparisonSettings
) -> dict[str, Any]:
    optimizer = IPiano(denoiser.parameters())
    losses: list[float] = []

    def closure() -> Tensor:
        loss = _loss(denoiser, noisy, clean)
        optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    start = time.perf_counter()
    while len(losses) < settings.steps:
        optimizer.step(closure)
    return _row(denoiser, noisy, clean, losses) | {"seconds": time.perf_counter() - start}


@torch.no_grad()
def _row(
    denoiser: AnalysisDenoiser, noisy: Tensor, clean: Tensor, losses: list[float]
) -> dict[str, Any]:
    return {"psnr": -float(_loss(denoiser, noisy, clean)), "losses": losses}
