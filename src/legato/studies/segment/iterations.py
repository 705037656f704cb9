"""The paper's figure: what more iterations of the lower level buy, and what they cost.

The trainings of all seeds run side by side, as one batch with an image and a network for each: the
layer knows no difference between a batch and its images, so each is what it would be alone.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from legato._support.files import write_text
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
    averages: tuple[bool, ...] = (True, False)  # the paper's output first
    seeds: tuple[int, ...] = tuple(range(10))  # one training each: its end is noisy

    def __post_init__(self) -> None:
        if not self.seeds or min(self.counts, default=0) < 1 or self.images < 1 or self.steps < 1:
            raise InputError("counts, images, steps and the number of seeds must be positive.")


BALANCES = (0.05, 0.2, 1.0, 5.0)
"""The ratios r that a search tries."""

WARM_UP, TIMED = 10, 50
"""Steps of a row before its time is taken, and those that are timed."""

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
    settings: IterationSettings,
    data: Dataset,
    device: str,
    folder: Path,
    report: Report = lambda line: None,
) -> dict[str, Any]:
    """Time and train the small network for each number of inner iterations, from the same start.

    What ``folder`` holds already is not computed again.
    """
    times = time_rows(settings, data, device, folder)
    return {
        "settings": asdict(settings),
        "images": [sample.name for sample in alike(data, settings.images)],
        "points": train_rows(settings, data, device, folder, report),
        "times": times,
        "slopes": {
            _name(average): slope([t for t in times if t["average"] == average])
            for average in settings.averages
        },
    }


def time_rows(
    settings: IterationSettings, data: Dataset, device: str, folder: Path
) -> list[dict[str, Any]]:
    """Milliseconds of an outer iteration of each row; needs the machine for itself."""
    samples = alike(data, settings.images)
    folder.mkdir(parents=True, exist_ok=True)
    times = []
    for average, count in product(settings.averages, settings.counts):
        row = (settings, count, average, data.class_names, samples, device)
        took = kept(folder / f"time-{_name(average)}-{count}.json", partial(time_row, *row))
        times.append({"iterations": count, "average": average, "milliseconds": took})
    return times


def train_rows(
    settings: IterationSettings,
    data: Dataset,
    device: str,
    folder: Path,
    report: Report = lambda line: None,
) -> list[dict[str, Any]]:
    """The points of every row, one a seed; a row is kept as soon as it is trained."""
    samples = alike(data, settings.images)
    folder.mkdir(parents=True, exist_ok=True)
    points = []
    for average, count in product(settings.averages, settings.counts):
        row = (settings, count, average, data.class_names, samples, device)
        found = kept(folder / f"{_name(average)}-{count}.json", partial(_trained, *row))
        points += found
        loss, accuracy = (statistics.fmean(p[key] for p in found) for key in _SHOWN)
        report(
            f"{count:>4} iterations, {_name(average):<7}  loss {loss:.4f}  accuracy {accuracy:.2f}"
        )
    return points


def _name(average: bool) -> str:
    return "average" if average else "last"


def _trained(*row: Any) -> list[dict[str, Any]]:
    return [asdict(point) for point in train_row(*row)]


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """What the file holds, computed and written if it is not there."""
    if not path.exists():
        write_text(path, json.dumps(compute(), indent=1) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))


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
    samples = alike(data, settings.images)
    tried: dict[str, Any] = {}
    for balance in candidates:
        with_it = replace(settings, balance=balance)
        losses = {
            f"{_name(average)}, {count}": statistics.fmean(
                point.loss
                for point in train_row(with_it, count, average, data.class_names, samples, device)
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


class _Row:
    """The trainings of one row, one a seed, step by step."""

    def __init__(
        self,
        settings: IterationSettings,
        count: int,
        average: bool,
        class_names: Sequence[str],
        samples: Sequence[Sample],
        device: str,
    ) -> None:
        layer = LayerSettings(
            settings.weights, iterations=count, average=average, balance=settings.balance
        )
        models, orders = [], []
        for seed in settings.seeds:
            torch.manual_seed(seed)  # the same start for all counts
            models.append(build(ModelSettings(tuple(class_names), Network.SMALL, layer)))
            generator = torch.Generator().manual_seed(seed)
            orders.append(torch.randint(len(samples), (settings.steps,), generator=generator))
        self.stack = _Stack(models, device)
        self.places = torch.stack(orders).T.to(device)
        self.images = torch.stack([sample.image for sample in samples]).to(device).float() / 255
        self.labels = torch.stack([sample.labels for sample in samples]).to(device).long()
        self.labelled = (self.labels != IGNORE).sum((1, 2))
        if not bool(self.labelled.all()):
            raise InputError("There is an image without a labelled pixel.")
        paper = settings.loss == Loss.PAPER
        self.criterion = (SoftmaxLoss if paper else nn.NLLLoss)(
            ignore_index=IGNORE, reduction="none"
        )
        self.optimiser = torch.optim.Adam(list(self.stack.parameters.values()), lr=settings.lr)

    def step(self, places: Tensor) -> Tensor:
        """One step of Adam with an image for each seed; the loss of each before it."""
        self.optimiser.zero_grad()
        found = self.criterion(self.stack(self.images[places]), self.labels[places])
        loss: Tensor = found.sum((1, 2)) / self.labelled[places]
        loss.sum().backward()
        self.optimiser.step()
        return loss.detach()

    @torch.no_grad()
    def score(self) -> tuple[list[float], list[float]]:
        """Loss per labelled pixel and per cent of them that are right, of each seed."""
        seeds = self.places.shape[1]
        total = right = self.images.new_zeros(seeds)
        for image, label in zip(self.images, self.labels, strict=True):
            found = self.stack(image.expand(seeds, *image.shape))
            truth = label.expand(seeds, *label.shape)
            total = total + self.criterion(found, truth).sum((1, 2))
            right = right + (found.argmax(1) == truth).sum((1, 2))
        pixels = self.labelled.sum()
        return (total / pixels).tolist(), (100 * right / pixels).tolist()


def train_row(
    settings: IterationSettings,
    count: int,
    average: bool,
    class_names: Sequence[str],
    samples: Sequence[Sample],
    device: str,
) -> list[IterationPoint]:
    """One training for each seed."""
    row = _Row(settings, count, average, class_names, samples, device)
    losses = torch.stack([row.step(places) for places in row.places])
    course = losses.cpu().tensor_split(min(50, len(losses)))
    stretches = torch.stack([part.mean(0) for part in course], 1).tolist()
    return [
        IterationPoint(count, average, seed, loss, accuracy, tuple(stretch))
        for seed, loss, accuracy, stretch in zip(
            settings.seeds, *row.score(), stretches, strict=True
        )
    ]


def time_row(
    settings: IterationSettings,
    count: int,
    average: bool,
    class_names: Sequence[str],
    samples: Sequence[Sample],
    device: str,
) -> float:
    """The median milliseconds of a step of all seeds; the first ones warm up."""
    row = _Row(settings, count, average, class_names, samples, device)
    times = []
    for places in row.places[: WARM_UP + TIMED]:
        wait_for(device)
        start = time.perf_counter()
        row.step(places)
        wait_for(device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[min(WARM_UP, len(times) - 1) :])
