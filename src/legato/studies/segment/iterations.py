"""The paper's figure: what more iterations of the lower level buy, and what they cost.

The trainings of all seeds run side by side, as one batch with an image and a network for each: the
layer knows no difference between a batch and its images, so each is what it would be alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from legato.errors import InputError
from legato.nn import SoftmaxLoss
from legato.studies.segment.data import IGNORE, Dataset, Sample
from legato.studies.segment.evaluation import wait_for
from legato.studies.segment.model import Segmenter, build
from legato.studies.segment.settings import LayerSettings, Loss, ModelSettings, Network, Weights

Report = Callable[[str], None]


@dataclass(frozen=True)
class IterationSettings:
    """What the figure depends on."""

    counts: tuple[int, ...] = (5, 10, 20, 50, 100, 200)
    images: int = 9
    steps: int = 1000
    lr: float = 1e-3
    loss: Loss = Loss.PAPER
    weights: Weights = Weights.CONTRAST
    balance: float = 1.0
    averages: tuple[bool, ...] = (False, True)
    seeds: tuple[int, ...] = tuple(range(10))  # one training each: its end is noisy

    def __post_init__(self) -> None:
        if not self.seeds or min(self.counts, default=0) < 1 or self.images < 1 or self.steps < 1:
            raise InputError("counts, images, steps and the number of seeds must be positive.")


BALANCES = (0.05, 0.2, 1.0, 5.0)
"""The ratios r that a search tries."""

QUICK = IterationSettings(counts=(5, 10, 20, 50), images=4, steps=150, seeds=(0,))


@dataclass(frozen=True)
class IterationPoint:
    """One training: the mean over all images after it, and its cost."""

    iterations: int
    average: bool
    seed: int
    loss: float  # per labelled pixel
    accuracy: float  # per cent
    losses: tuple[float, ...]  # of the training, in 50 stretches


def run_iterations(
    settings: IterationSettings, data: Dataset, device: str, report: Report = lambda line: None
) -> dict[str, Any]:
    """Train the small network for each number of inner iterations, from the same start."""
    samples = alike(data, settings.images)
    points, times = [], []
    for average, count in product(settings.averages, settings.counts):
        found, milliseconds = train_row(settings, count, average, data.class_names, samples, device)
        points += [asdict(point) for point in found]
        times.append({"iterations": count, "average": average, "milliseconds": milliseconds})
        loss, accuracy = (statistics.fmean(getattr(p, k) for p in found) for k in _SHOWN)
        report(
            f"{count:>4} iterations, {'average' if average else 'last':<7}  "
            f"loss {loss:.4f}  accuracy {accuracy:.2f}  {milliseconds:.1f} ms"
        )
    return {
        "settings": asdict(settings),
        "images": [sample.name for sample in samples],
        "points": points,
        "times": times,
        "slopes": {
            name: slope([t for t in times if t["average"] == average])
            for average, name in ((False, "last"), (True, "average"))
            if average in settings.averages
        },
    }


def searched(settings: IterationSettings) -> IterationSettings:
    """What a search trains: fewer and shorter trainings, with seeds of their own."""
    counts = tuple(dict.fromkeys((settings.counts[0], settings.counts[len(settings.counts) // 2])))
    seeds = tuple(100 + seed for seed in settings.seeds[:5])
    return replace(settings, counts=counts, steps=max(1, settings.steps // 2), seeds=seeds)


def search_balance(
    settings: IterationSettings,
    data: Dataset,
    device: str,
    candidates: Sequence[float],
    report: Report = lambda line: None,
) -> dict[str, Any]:
    """The ratio r of the solver's steps with the least loss, the mean over everything else.

    Both iterates count: one r serves the whole figure.
    """
    tried: dict[str, Any] = {}
    for balance in candidates:
        found = run_iterations(replace(settings, balance=balance), data, device)
        losses = {
            f"{'average' if average else 'last'}, {count}": statistics.fmean(
                p["loss"]
                for p in found["points"]
                if (p["average"], p["iterations"]) == (average, count)
            )
            for average, count in product(settings.averages, settings.counts)
        }
        tried[str(balance)] = {"loss": statistics.fmean(losses.values()), "losses": losses}
        report(f"r = {balance:g}  loss {tried[str(balance)]['loss']:.4f}")
    best = min(tried, key=lambda key: tried[key]["loss"])
    return {"settings": asdict(settings), "tried": tried, "balance": float(best)}


def alike(data: Dataset, count: int) -> list[Sample]:
    """The first images that have the size of the first one, so that a batch needs no padding."""
    found: list[Sample] = []
    for sample in data:
        if not found or sample.labels.shape == found[0].labels.shape:
            found.append(sample)
        if len(found) == count:
            return found
    raise InputError(f"{count} images of one size are needed, but there are {len(found)}.")


def slope(times: Sequence[Mapping[str, Any]]) -> float | None:
    """Milliseconds that an inner iteration adds to an outer one, by least squares."""
    if len(times) < 2:
        return None
    counts, values = ([float(t[key]) for t in times] for key in ("iterations", "milliseconds"))
    return statistics.linear_regression(counts, values).slope


_SHOWN = ("loss", "accuracy")


class _Stack:
    """Networks with their layers, one a seed, as one function of a batch."""

    def __init__(self, models: Sequence[Segmenter], device: str) -> None:
        self.one = models[0].to(device)
        assert self.one.layer is not None
        self.potts = self.one.layer.potts
        states = [dict(model.to(device).named_parameters()) for model in models]
        self.parameters = {
            name: torch.stack([state[name].detach() for state in states]).requires_grad_()
            for name in states[0]
        }

    def __call__(self, images: Tensor) -> Tensor:
        """Log-probabilities (S, L, H, W) of an image (S, 3, H, W) for each seed."""
        cost, weights = torch.func.vmap(self._one)(self.parameters, images[:, None])
        return self.potts(cost[:, 0], weights[:, 0])

    def _one(self, parameters: Mapping[str, Tensor], image: Tensor) -> tuple[Tensor, Tensor]:
        module = _UpToPotts(self.one)
        named = {f"model.{name}": value for name, value in parameters.items()}
        return torch.func.functional_call(module, named, (image,))


class _UpToPotts(nn.Module):
    """Costs and weights of an image."""

    def __init__(self, model: Segmenter) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        assert self.model.layer is not None
        logits, features = self.model.scores(image)
        return self.model.layer.costs_and_weights(logits, image, features)


def train_row(
    settings: IterationSettings,
    count: int,
    average: bool,
    class_names: Sequence[str],
    samples: Sequence[Sample],
    device: str,
) -> tuple[list[IterationPoint], float]:
    """One training for each seed, and the median milliseconds of a step of all of them."""
    layer = LayerSettings(
        settings.weights, iterations=count, average=average, balance=settings.balance
    )
    models, orders = [], []
    for seed in settings.seeds:
        torch.manual_seed(seed)  # the same start for all counts
        models.append(build(ModelSettings(tuple(class_names), Network.SMALL, layer)))
        generator = torch.Generator().manual_seed(seed)
        orders.append(torch.randint(len(samples), (settings.steps,), generator=generator))
    stack = _Stack(models, device)
    images = torch.stack([sample.image for sample in samples]).to(device).float() / 255
    labels = torch.stack([sample.labels for sample in samples]).to(device).long()
    labelled = (labels != IGNORE).sum((1, 2))
    if not bool(labelled.all()):
        raise InputError("There is an image without a labelled pixel.")
    paper = settings.loss == Loss.PAPER
    criterion = (SoftmaxLoss if paper else nn.NLLLoss)(ignore_index=IGNORE, reduction="none")
    optimiser = torch.optim.Adam(list(stack.parameters.values()), lr=settings.lr)
    losses, times = [], []
    for places in torch.stack(orders).T.to(device):
        wait_for(device)
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = criterion(stack(images[places]), labels[places]).sum((1, 2)) / labelled[places]
        loss.sum().backward()
        optimiser.step()
        wait_for(device)
        times.append(time.perf_counter() - start)
        losses.append(loss.detach())
    total, right = torch.zeros_like(losses[0]), torch.zeros_like(losses[0])
    with torch.no_grad():
        for image, label in zip(images, labels, strict=True):
            found = stack(image.expand(len(models), *image.shape))
            truth = label.expand(len(models), *label.shape)
            total += criterion(found, truth).sum((1, 2))
            right += (found.argmax(1) == truth).sum((1, 2))
    pixels = int(labelled.sum())
    course = torch.stack(losses).cpu().tensor_split(min(50, len(losses)))
    stretches = torch.stack([part.mean(0) for part in course], 1).tolist()
    points = [
        IterationPoint(count, average, seed, float(t) / pixels, 100 * float(r) / pixels, tuple(c))
        for seed, t, r, c in zip(settings.seeds, total, right, stretches, strict=True)
    ]
    return points, 1e3 * statistics.median(times)
