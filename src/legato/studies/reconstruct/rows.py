"""The rows of the table: what is learned for a task, and how it is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato.engine import Engine
from legato.gradients import Unroll
from legato.nn import TV, Filters, Reconstruction, Weight, WeightMap
from legato.nn.analysis_denoiser import AnalysisDenoiser
from legato.operators import Identity
from legato.studies.denoise.clean import shipped_filters
from legato.studies.denoise.images import middle
from legato.studies.denoise.scores import psnr
from legato.studies.reconstruct.tasks import DIFFERENCES, Task
from legato.studies.reconstruct.training import Progress, train

ROWS = ("linear", "TV, one λ", "TV, bilevel λ", "TV, λ(y)", "filters", "filters, λ(y)")
"""The rows, in the order in which each builds on those before."""


@dataclass(frozen=True)
class Settings:
    """What the study depends on."""

    iterations: int = 20  # of the learned models; the last `last` are differentiated
    last: int = 20
    solved: int = 300  # of total variation with one λ
    batch: int = 16
    patch: int = 64
    steps: int = 100_000
    seconds: float = 20.0
    lr: float = 1e-2
    network_lr: float = 1e-3
    images: int = 48  # that choose λ …
    window: int = 128  # … by their middles
    tests: int = 10_000
    seeds: tuple[int, ...] = (1, 2, 3)
    chunk: int = 6  # pictures at once when measuring
    seed: int = 0
    dilations: tuple[int, ...] = (2, 4, 8)  # of the networks


class Model(nn.Module):
    """A reconstruction layer for a task."""

    def __init__(self, task: Task, prior: nn.Module, iterations: int, last: int | None) -> None:
        super().__init__()
        self.task, self.prior = task, prior
        self.layer = Reconstruction(
            Identity(), prior, data=task.term, first=task.first, iterations=iterations,
            algorithm=task.algorithm(DIFFERENCES), gradient=Unroll(last=last),
        )  # fmt: skip

    def forward(self, y: Tensor) -> Tensor:
        if isinstance(self.prior, Filters):
            norm = filter_norm(self.prior.filters)
            self.layer.algorithm = self.task.algorithm(norm)
        return self.layer(y)


@torch.no_grad()
def filter_norm(filters: Tensor) -> Tensor:
    """A bound of the filters' norm: the largest of their symbol on a grid, raised by its step."""
    size, grid = filters.shape[-1], 64
    power = torch.fft.rfft2(filters, s=(grid, grid)).abs().square().sum((0, 1))
    return power.amax().sqrt() / math.cos(math.pi * (size - 1) / 2 / grid) ** 2


def log_error(found: Tensor, clean: Tensor) -> Tensor:
    """The mean over pictures of 10 log₁₀ of their mean squared errors: −PSNR."""
    return 10 * (found - clean).square().mean((1, 2, 3)).log10().mean()


class WeightLoss:
    """The loss on training pictures as a function of log λ, for total variation with one λ."""

    def __init__(self, task: Task, clean: Tensor, settings: Settings, engine: Engine) -> None:
        self.task, self.clean, self.settings, self.engine = task, clean, settings, engine
        self.y = task.simulate(clean, torch.Generator().manual_seed(99))

    def _at(self, log_weight: float) -> tuple[Tensor, TV]:
        prior = TV(math.exp(log_weight))
        # The hundred last iterations hold the whole derivative, as far as float32 can tell.
        last = min(100, self.settings.solved)
        model = Model(self.task, prior, self.settings.solved, last).to(self.clean.device)
        with self.engine:
            return log_error(model(self.y), self.clean), prior

    @torch.no_grad()
    def value(self, log_weight: float) -> float:
        return float(self._at(log_weight)[0])

    def slope(self, log_weight: float) -> tuple[float, float]:
        """Loss and hypergradient, through all iterations."""
        loss, prior = self._at(log_weight)
        (slope,) = torch.autograd.grad(loss, list(prior.parameters()))
        return float(loss.detach()), float(slope)


def new_model(row: str, task: Task, weight: float, settings: Settings) -> Model:
    """The model of a row before its training: filters begin as those that denoise."""
    if row == "TV, λ(y)":
        maps = WeightMap(2, weight, level=task.level, dilations=settings.dilations)
        return Model(task, TV(maps, isotropic=False), settings.iterations, settings.last)
    shipped = shipped_filters()
    start, filters = _first_weights(shipped, weight), shipped.filters.detach()
    count = len(filters)
    learned = (
        Weight(start)
        if row == "filters"
        else WeightMap(count, start, level=task.level, dilations=settings.dilations)
    )
    prior = Filters(count, shipped.size, weight=learned)
    prior.set_filters(filters)
    return Model(task, prior, settings.iterations, settings.last)


def _first_weights(denoiser: AnalysisDenoiser, weight: float) -> Tensor:
    """The denoiser's weights, as large altogether as total variation with one λ would have them.

    Its weights at σ = 25 go with total variation's λ of 0.07.
    """
    sigma = 25 / 255
    assert denoiser.powers is not None
    own = denoiser.weights.detach() * sigma ** denoiser.powers.detach()
    return (own * (weight / 0.07))[:, None, None]


def train_row(
    model: Model, images: Sequence[Tensor], settings: Settings, device: torch.device,
    say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Train a row's model as its settings say."""
    task = model.task
    return train(
        model, task.simulate, images, size=task.size or settings.patch, batch=settings.batch,
        steps=settings.steps, seconds=settings.seconds, lr=settings.lr,
        network_lr=settings.network_lr, seed=settings.seed, device=device, say=say,
    )  # fmt: skip


@torch.no_grad()
def measure(
    method: Callable[[Tensor], Tensor], task: Task, tests: dict[str, list[Tensor]],
    settings: Settings, device: torch.device,
) -> dict[str, Any]:  # fmt: skip
    """PSNR on each set, for each seed of the noise; mean and spread over the seeds."""
    found: dict[str, Any] = {}
    for name, images in tests.items():
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for image in images[: settings.tests]:
            image = image if task.size is None else middle(image, task.size)
            groups.setdefault(tuple(image.shape), []).append(image)
        means = []
        for seed in settings.seeds:
            generator = torch.Generator().manual_seed(1000 + seed)
            scores = []
            for group in groups.values():
                for at in range(0, len(group), settings.chunk):
                    clean = torch.stack(group[at : at + settings.chunk])[:, None].to(device)
                    restored = method(task.simulate(clean, generator))
                    scores += [psnr(a, b) for a, b in zip(restored, clean, strict=True)]
            means.append(sum(scores) / len(scores))
        spread = torch.tensor(means).std().item() if len(means) > 1 else 0.0
        found[name] = {"psnr": sum(means) / len(means), "std": spread, "each": means,
                       "images": len(scores)}  # fmt: skip
    return found


def parameters_of(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(p.numel() for p in model.parameters())


def as_settings(settings: Settings) -> dict[str, Any]:
    """As data."""
    return asdict(settings)
