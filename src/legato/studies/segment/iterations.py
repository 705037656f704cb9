"""The paper's figure: what more iterations of the lower level buy, and what they cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, Dataset, collate
from legato.studies.segment.evaluation import wait_for
from legato.studies.segment.model import build
from legato.studies.segment.settings import LayerSettings, Loss, ModelSettings, Network, Weights
from legato.studies.segment.training import loss_of

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
    # Small: smoothness and temperature then fit each other for all of these counts.
    balance: float = 0.2
    averages: tuple[bool, ...] = (False, True)
    seeds: tuple[int, ...] = (0,)  # one training each: its end is noisy, with batches of one

    def __post_init__(self) -> None:
        if not self.seeds or min(self.counts, default=0) < 1 or self.images < 1 or self.steps < 1:
            raise InputError("counts, images, steps and the number of seeds must be positive.")


QUICK = IterationSettings(counts=(5, 10, 20, 50), images=4, steps=150)


@dataclass(frozen=True)
class IterationPoint:
    """One training: the mean over all images after it, and its cost."""

    iterations: int
    average: bool
    seed: int
    loss: float  # per labelled pixel
    accuracy: float  # per cent
    milliseconds: float  # per outer iteration, median
    losses: tuple[float, ...]  # of the training, in 50 stretches


def run_iterations(
    settings: IterationSettings, data: Dataset, device: str, report: Report = lambda line: None
) -> dict[str, Any]:
    """Train the small network for each number of inner iterations, from the same start."""
    if len(data) < settings.images:
        raise InputError(f"{settings.images} images are needed, but there are {len(data)}.")
    batches = [collate([data[index]]).to(device) for index in range(settings.images)]
    points = []
    for average, count, seed in product(settings.averages, settings.counts, settings.seeds):
        point = _train(settings, count, average, seed, data, batches, device)
        points.append(asdict(point))
        report(
            f"{count:>4} iterations, {'average' if average else 'last':<7}  seed {seed}  "
            f"loss {point.loss:.4f}  accuracy {point.accuracy:.2f}  {point.milliseconds:.1f} ms"
        )
    names = [data.names[index] for index in range(settings.images)]
    return {"settings": asdict(settings), "images": names, "points": points}


def _train(
    settings: IterationSettings,
    count: int,
    average: bool,
    seed: int,
    data: Dataset,
    batches: Sequence[Any],
    device: str,
) -> IterationPoint:
    torch.manual_seed(seed)  # the same start for all
    layer = LayerSettings(
        settings.weights, iterations=count, average=average, balance=settings.balance
    )
    model = build(ModelSettings(tuple(data.class_names), Network.SMALL, layer)).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.lr)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randint(len(batches), (settings.steps,), generator=generator).tolist()
    criterion = loss_of(model, Loss.PAPER if average else settings.loss)
    labelled = [_labelled(batch) for batch in batches]
    losses, times = [], []
    for place in order:
        batch = batches[place]
        wait_for(device)
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = criterion(model(batch.image), batch.labels) / labelled[place]
        loss.backward()
        optimiser.step()
        wait_for(device)
        times.append(time.perf_counter() - start)
        losses.append(loss.detach())
    model.eval()
    total, right, pixels = 0.0, 0, sum(labelled)
    with torch.no_grad():
        for batch in batches:
            found = model(batch.image)
            total += float(criterion(found, batch.labels))
            right += int((found.argmax(1) == batch.labels).sum())
    stretches = torch.stack(losses).cpu().tensor_split(min(50, len(losses)))
    return IterationPoint(
        iterations=count,
        average=average,
        seed=seed,
        loss=total / pixels,
        accuracy=100 * right / pixels,
        milliseconds=1e3 * statistics.median(times),
        losses=tuple(float(part.mean()) for part in stretches),
    )


def _labelled(batch: Any) -> int:
    count = int((batch.labels != IGNORE).sum())
    if count == 0:
        raise InputError(f"The image {batch.names[0]} has no labelled pixel.")
    return count
