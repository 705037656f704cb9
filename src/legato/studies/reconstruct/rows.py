"""The rows of the table: what is learned for a task, and how it is measured."""

from __future__ import annotations

import math
import time
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
from legato.studies.denoise.clean import shipped_denoiser
from legato.studies.denoise.images import middle
from legato.studies.denoise.scores import psnr
from legato.studies.denoise.training import Patches, patch_loss
from legato.studies.reconstruct.tasks import DIFFERENCES, Task

Progress = Callable[[str], None]
ROWS = ("linear", "TV, one λ", "TV, bilevel λ", "TV, λ(y)", "filters", "filters, λ(y)")
"""The rows, in the order in which each builds on those before."""


@dataclass(frozen=True)
class Settings:
    """What the study depends on."""

    iterations: int = 60  # of the learned models; the last `last` are differentiated
    last: int = 20
    solved: int = 300  # of total variation with one λ
    batch: int = 16
    patch: int = 64
    steps: int = 4000
    seconds: float = 20.0
    lr: float = 1e-2
    network_lr: float = 1e-3
    images: int = 48  # that choose λ …
    window: int = 128  # … by their middles
    tests: int = 10_000
    seeds: tuple[int, ...] = (1, 2, 3)
    chunk: int = 17  # pictures at once when measuring
    seed: int = 0
    filters: bool = True


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


def new_model(
    row: str, task: Task, weight: float, settings: Settings, learned: dict[str, nn.Module]
) -> Model:
    """The model of a row before its training; that of filters goes on from those before."""
    prior: nn.Module
    if row == "TV, λ(y)":
        prior = TV(WeightMap(weight=weight, level=task.level))
        return Model(task, prior, settings.iterations, settings.last)
    shipped, before = shipped_denoiser(), learned.get("filters")
    start, filters = _first_weights(shipped, weight), shipped.filters.detach()
    if row != "filters" and isinstance(before, Model) and isinstance(before.prior, Filters):
        assert isinstance(before.prior.weight, Weight)
        start = before.prior.weight.log.detach().exp().cpu()
        filters = before.prior.filters.detach().cpu()
    count = len(filters)
    learned_weight = (
        Weight(start) if row == "filters" else WeightMap(count, start, level=task.level)
    )
    prior = Filters(count, shipped.size, weight=learned_weight)
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


def train(
    model: Model, images: Sequence[Tensor], settings: Settings, device: torch.device,
    engine: Engine, say: Progress = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Adam on random windows, with the learning rate decayed by the time there is."""
    task = model.task
    model.to(device).train()
    patches = Patches(images, task.size or settings.patch, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    network = [p for n, p in model.named_parameters() if "layers." in n]
    rest = [p for n, p in model.named_parameters() if "layers." not in n]
    groups: list[dict[str, Any]] = [
        {"params": rest, "lr": settings.lr},
        {"params": network, "lr": settings.network_lr},
    ]
    groups = [g for g in groups if g["params"]]
    first = [g["lr"] for g in groups]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    losses: list[float] = []
    total, count, step, done, start = torch.zeros((), device=device), 0, 0, 0.0, time.perf_counter()
    while done < 1:
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * done))
        clean = patches.draw(settings.batch).to(device)
        y = task.simulate(clean, generator)
        with engine:
            loss = patch_loss(model(y), clean, 0.1)
            optimizer.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
        count, step = count + 1, step + 1
        done = max(step / settings.steps, (time.perf_counter() - start) / settings.seconds)
        if step % 50 == 0 or done >= 1:
            losses.append(float(total) / count)
            total.zero_()
            count = 0
            if not math.isfinite(losses[-1]):
                raise RuntimeError(f"The loss is {losses[-1]} after {step} steps.")
    model.eval()
    seconds = time.perf_counter() - start
    say(f"{step} steps, {seconds:.1f} s, loss {losses[0]:.4f} → {losses[-1]:.4f}")
    return {"steps": step, "seconds": round(seconds, 1), "losses": losses}


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
