"""The same training by several gradients, and by two optimisers, on one batch that stays."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato.diagnostics import peak_bytes
from legato.errors import LegatoWarning
from legato.gradients import GMRES, GradientStrategy, Implicit, Piggyback, Unroll
from legato.optim import IPiano
from legato.studies.denoise.models import first_filters
from legato.studies.denoise.settings import ComparisonSettings
from legato.studies.denoise.training import Patches, Progress


def compare_gradients(
    settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam with every gradient: the first gradient's error, PSNR in the end, memory and time."""
    strategies: dict[str, GradientStrategy] = {
        "Unroll": Unroll(),
        "Unroll, checkpoints": Unroll(checkpoint="sqrt"),
        "Piggyback": Piggyback(iterations=settings.iterations, tol=1e-4),
        "Implicit": Implicit(GMRES(tol=1e-4)),
    }
    rows: dict[str, Any] = {}
    exact: Tensor | None = None
    for name, gradient in strategies.items():
        fit = _Fit(settings, images, device, gradient)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LegatoWarning)
            first = fit.gradient()
            exact = first if exact is None else exact
            peak = round(peak_bytes(fit.gradient, device) / 2**20)
            row = fit.by_adam() | {"peak_mebibytes": peak}
        off = float((first - exact).norm() / exact.norm())
        told = sum(issubclass(one.category, LegatoWarning) for one in caught)
        rows[name] = row | {"first_gradient_off": off, "warnings": told}
        say(f"{name}: {row['psnr']:.3f} dB, {row['seconds']:.1f} s, "
            f"{peak} MiB, first gradient off by {off:.1e}")  # fmt: skip
    return rows


def compare_optimisers(
    settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam and iPiano with as many evaluations of the loss and its gradient."""
    rows = {
        "Adam": _Fit(settings, images, device, Unroll()).by_adam(),
        "IPiano": _Fit(settings, images, device, Unroll()).by_ipiano(),
    }
    for name, row in rows.items():
        say(f"{name}: {row['psnr']:.3f} dB after {len(row['losses'])} evaluations")
    return rows


class _Fit:
    """A new denoiser and the batch that it is fitted to, the same for the same settings."""

    def __init__(
        self, settings: ComparisonSettings, images: Sequence[Tensor], device: torch.device,
        gradient: GradientStrategy,
    ) -> None:  # fmt: skip
        level = settings.sigma / 255
        patches = Patches(images, settings.patch, settings.seed)
        clean = patches.draw(settings.batch)
        self.noisy = (clean + level * patches.noise(clean.shape)).to(device)
        self.clean = clean.to(device)
        self.settings = settings
        self.denoiser = first_filters(
            settings.filters, settings.size, settings.iterations, level, gradient
        ).to(device)

    def loss(self) -> Tensor:
        """−PSNR."""
        return 10 * (self.denoiser(self.noisy) - self.clean).square().mean().log10()

    def gradient(self) -> Tensor:
        parts = torch.autograd.grad(self.loss(), list(self.denoiser.parameters()))
        return torch.cat([part.flatten() for part in parts])

    def by_adam(self) -> dict[str, Any]:
        """With a cosine decay of the learning rate."""
        optimizer = torch.optim.Adam(self.denoiser.parameters(), lr=self.settings.lr)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.settings.steps)
        return self._run(optimizer, decay.step)

    def by_ipiano(self) -> dict[str, Any]:
        return self._run(IPiano(self.denoiser.parameters()), lambda: None)

    def _run(self, optimizer: torch.optim.Optimizer, after: Callable[[], None]) -> dict[str, Any]:
        """As many evaluations as there are steps in the settings."""
        losses: list[float] = []

        def closure() -> Tensor:
            loss = self.loss()
            optimizer.zero_grad()
            loss.backward()
            losses.append(float(loss.detach()))
            return loss

        start = time.perf_counter()
        while len(losses) < self.settings.steps:
            optimizer.step(closure)  # type: ignore[arg-type]  # torch asks for a number
            after()
        seconds = time.perf_counter() - start
        with torch.no_grad():
            return {"psnr": -float(self.loss()), "losses": losses, "seconds": seconds}
