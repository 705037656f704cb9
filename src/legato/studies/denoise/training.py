"""Training denoisers on patches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato.console.files import DataError
from legato.engine import Compiled
from legato.errors import DivergenceError, InputError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """How a denoiser is trained: Adam on the errors of random patches."""

    steps: int = 2000
    batch: int = 32
    patch: int = 64
    lr: float = 1e-2  # of filters and weights
    network_lr: float = 1e-3  # of a network that predicts weights
    seed: int = 0
    seconds: float | None = None  # end after so long, with the learning rate decayed by then

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "patch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("lr", "network_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"seconds must be positive, not {self.seconds}.")


class Patches:
    """Random windows of images, turned and mirrored; drawn on the CPU, so alike on any device."""

    def __init__(self, images: Sequence[Tensor], size: int, seed: int) -> None:
        self.images = [image for image in images if min(image.shape) >= size]
        if not self.images:
            raise DataError(f"No image is as large as a patch of {size}×{size} pixels.")
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> Tensor:
        """(count, 1, size, size)."""
        patches = []
        for _ in range(count):
            image = self.images[self._below(len(self.images))]
            top = self._below(image.shape[0] - self.size + 1)
            left = self._below(image.shape[1] - self.size + 1)
            patch = image[top : top + self.size, left : left + self.size]
            patch = patch.rot90(self._below(4))
            patches.append(patch.flip(1) if self._below(2) else patch)
        return torch.stack(patches)[:, None]

    def noise(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def levels(self, low: float, high: float, count: int) -> Tensor:
        """Noise levels, (count, 1, 1, 1), evenly spread."""
        drawn = torch.rand((count, 1, 1, 1), generator=self.generator)
        return low + (high - low) * drawn

    def _below(self, limit: int) -> int:
        return int(torch.randint(limit, (), generator=self.generator))


def train(
    model: nn.Module,
    images: Sequence[Tensor],
    sigma: float | tuple[float, float],
    recipe: Recipe,
    device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:
    """Train in place; returns the course. A range of σ is drawn from, and given to the model."""
    model.to(device).train()
    patches = Patches(images, recipe.patch, recipe.seed)
    optimizer = torch.optim.Adam(_groups(model, recipe), betas=(0.9, 0.99))
    first = [group["lr"] for group in optimizer.param_groups]
    losses: list[float] = []
    running = torch.zeros((), device=device)
    start, every = time.perf_counter(), max(1, min(50, recipe.steps // 10))
    step, done = 0, 0.0
    while done < 1:
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * done))
        clean = patches.draw(recipe.batch)
        level = patches.levels(*sigma, recipe.batch) if isinstance(sigma, tuple) else sigma
        noisy = (clean + level * patches.noise(clean.shape)).to(device)
        clean = clean.to(device)
        with Compiled() if device.type == "cuda" else nullcontext():
            found = model(noisy, level.to(device)) if isinstance(level, Tensor) else model(noisy)
        loss = patch_loss(found, clean, level)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.detach()
        step += 1
        elapsed = time.perf_counter() - start
        done = max(step / recipe.steps, elapsed / recipe.seconds if recipe.seconds else 0.0)
        if step % every == 0 or done >= 1:
            count = step - every * len(losses)
            losses.append(float(running) / count)  # the only reading of the GPU
            running.zero_()
            if not math.isfinite(losses[-1]):
                raise DivergenceError(
                    f"The loss is {losses[-1]} after {step} steps. Try a smaller learning rate."
                )
            say(f"step {step}, loss {losses[-1]:.5g}, {elapsed:.0f} s")
    model.eval()
    seconds = time.perf_counter() - start
    return {"steps": step, "seconds": round(seconds, 1), "every": every, "losses": losses}


def patch_loss(found: Tensor, clean: Tensor, level: Tensor | float) -> Tensor:
    r"""What the mean PSNR over whole images asks of patches.

    .. math:: \operatorname{mean}_p \log(e_p + \bar e), \qquad e_p = ‖x_p − x̂_p‖²/(nσ_p²)

    PSNR weighs an image by one over its error. A patch stands for its image and for others, so the
    mean error ē of the batch, as a constant, is added: else flat patches would decide alone.
    """
    error = (found - clean).square().mean((1, 2, 3))
    if isinstance(level, Tensor):
        error = error / level.to(error).reshape(-1).square()
    else:
        error = error / level**2
    return (error + error.mean().detach()).log().mean()


def _groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Networks learn slowly, filters and weights faster."""
    network = [p for name, p in model.named_parameters() if "maps." in name]
    rest = [p for name, p in model.named_parameters() if "maps." not in name]
    groups: list[dict[str, Any]] = [
        {"params": rest, "lr": recipe.lr},
        {"params": network, "lr": recipe.network_lr},
    ]
    return [group for group in groups if group["params"]]
