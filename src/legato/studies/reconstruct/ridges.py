"""A convex ridge regulariser for denoising, trained by the gradient of the solution."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.tree import Var
from legato.engine import Eager, Engine
from legato.errors import DivergenceError
from legato.gradients import Implicit
from legato.gradients.linear import CG
from legato.nn import ConvexRidges, Reconstruction
from legato.operators import Convolution, Identity, Operator
from legato.studies.denoise.training import patch_loss
from legato.studies.reconstruct.tasks import Denoising
from legato.studies.reconstruct.training import Progress
from legato.studies.reconstruct.windows import Windows

PUBLISHED = 28.11
"""PSNR on BSD68 at σ = 25 of Goujon et al. (2023), Table II."""
_MARGIN = 1.03
"""Above a norm that was found by iteration."""


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredConvolution(Convolution):
    """A convolution whose norm was found by iteration on pictures of the size that it sees.

    With a mirror at the border the bound that holds for all sizes is twice as large.
    """

    size: float = 1.0

    def norm(self, like: Var | None = None) -> Tensor:
        return self.kernel.new_tensor(self.size)


class MeasuredRidges(ConvexRidges):
    """The regulariser, with steps as long as its filters allow for pictures of one size."""

    size_found = 1.0

    @torch.no_grad()
    def find_norm(self, shape: Sequence[int], iterations: int = 30) -> None:
        """Power iterations for ‖K‖ on pictures of this shape."""
        K = Convolution(self.filters, "mirror")
        generator = torch.Generator().manual_seed(0)
        x = torch.randn((1, 1, *shape[-2:]), generator=generator).to(self.raw)
        for _ in range(iterations):
            x = K.adjoint(K(x / x.norm()))
        self.size_found = _MARGIN * math.sqrt(float(x.norm()))

    def operator(self) -> Operator:
        return MeasuredConvolution(self.filters, "mirror", self.size_found)


@dataclass(frozen=True)
class RidgeSettings:
    """What a training depends on."""

    sigma: float = 25 / 255
    seconds: float = 300.0
    steps: int = 100_000
    batch: int = 32
    window: int = 64
    iterations: int = 50
    tol: float = 1e-3  # of the linear solve behind the gradient
    lr: float = 3e-2  # of filters
    potential_lr: float = 3e-2
    weight_lr: float = 3e-2
    seed: int = 0
    solved: int = 400  # iterations when measuring


def layer_of(prior: nn.Module, iterations: int, tol: float = 1e-3) -> Reconstruction:
    """x = argmin ½‖x − y‖² + R(x), differentiated at the solution."""
    return Reconstruction(
        Identity(), prior, first=_itself, iterations=iterations, gradient=Implicit(CG(tol=tol))
    )


def _itself(y: Tensor) -> Tensor:
    return y


def train_ridges(
    prior: MeasuredRidges, images: Sequence[Tensor], settings: RidgeSettings,
    device: torch.device, engines: Sequence[Engine] = (Eager(),),
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam with the gradient of the solution, under the fastest of some engines."""
    prior.to(device).train()
    layer = layer_of(prior, settings.iterations, settings.tol)
    windows = Windows(images, settings.window, settings.seed, device)
    task = Denoising(settings.sigma)
    groups = [
        {"params": [prior.first, prior.second], "lr": settings.lr},
        {"params": [prior.raw], "lr": settings.potential_lr},
        {"params": list(prior.weight.parameters()), "lr": settings.weight_lr},
    ]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.99))
    first = [group["lr"] for group in adam.param_groups]
    total = torch.zeros((), device=device)

    def update() -> None:
        clean = windows.draw(settings.batch)
        found = layer(task.simulate(clean, windows.generator))
        loss = patch_loss(found, clean, settings.sigma)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(prior.parameters(), 1.0)
        adam.step()
        total.add_(loss.detach())

    losses: list[float] = []
    step, done, start, noted = 0, 0.0, time.perf_counter(), 0
    clock = _Fastest(engines, device)
    while done < 1:
        rate = min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * done))
        for group, lr in zip(adam.param_groups, first, strict=True):
            group["lr"] = lr * rate
        if step % 50 == 0:
            prior.find_norm((settings.window, settings.window))
        clock.run(update)
        step += 1
        done = max(step / settings.steps, (time.perf_counter() - start) / settings.seconds)
        if step % 100 == 0 or done >= 1:
            losses.append(float(total) / (step - noted))
            total.zero_()
            noted = step
            if not math.isfinite(losses[-1]):
                raise DivergenceError(f"The loss is {losses[-1]} after {step} steps.")
            weight = float(prior.weight(total).detach())
            elapsed = time.perf_counter() - start
            say(f"step {step}, loss {losses[-1]:.4f}, λ {weight:.1f}, {elapsed:.0f} s")
    prior.eval()
    seconds = round(time.perf_counter() - start, 1)
    return {"steps": step, "seconds": seconds, "every": 100, "losses": losses,
            "engine": repr(clock.chosen)}  # fmt: skip


class _Fastest:
    """Runs under each engine some times, then under the fastest; one that fails is left out."""

    _TRIALS = 8

    def __init__(self, engines: Sequence[Engine], device: torch.device) -> None:
        self._left, self._device = list(engines), device
        self._found: list[tuple[float, int, Engine]] = []
        self._seconds: list[float] = []
        self.chosen: Engine = engines[0]

    def run(self, update: Any) -> None:
        if not self._left:
            with self.chosen:
                update()
            return
        engine, start = self._left[0], time.perf_counter()
        try:
            with engine:
                update()
            if self._device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            if len(self._left) == 1 and not self._found:
                raise
            self._seconds = []
            self._left.pop(0)
        else:
            self._seconds.append(time.perf_counter() - start)
        if len(self._seconds) == self._TRIALS:
            self._found.append((sorted(self._seconds)[self._TRIALS // 2], len(self._left), engine))
            self._seconds = []
            self._left.pop(0)
        if not self._left:
            self.chosen = min(self._found)[2]


@torch.no_grad()
def restorer(prior: MeasuredRidges, settings: RidgeSettings) -> Any:
    """A denoiser that solves with many iterations, and notes the largest residual that was left."""
    layer = layer_of(prior, settings.solved)

    def restore(y: Tensor) -> Tensor:
        prior.find_norm(y.shape)
        record = layer.solve(y)
        restore.residual = max(restore.residual, float(record.solution.residual.max()))  # type: ignore[attr-defined]
        return record.x

    restore.residual = 0.0  # type: ignore[attr-defined]
    return restore
