"""How good a segmentation is, and what it costs."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, Batch, Dataset, Sample, collate
from legato.studies.segment.model import Segmenter
from legato.studies.segment.settings import Precision

Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Score:
    """Pixel accuracy and mean intersection over union, in per cent, over all labelled pixels."""

    accuracy: float
    iou: float
    iou_per_class: tuple[float | None, ...]  # None where a class neither occurs nor is predicted
    images: int
    iou_of_images: float  # of each image by itself, then the mean over images
    iou_of_present: float  # likewise, of the classes that the image's truth has
    iou_with_unknown: (
        float  # over all pixels: what is predicted where the truth is unknown is wrong
    )

    @classmethod
    def of(cls, confusions: Tensor) -> Score:
        """From a confusion matrix (L, L + 1, L) of each image, truth along rows, unknown the last.

        Classes that occur nowhere do not count.
        """
        confusions = confusions.double()
        known, unknown = confusions[:, :-1], confusions[:, -1]
        if known.sum() == 0:
            raise InputError("There is no labelled pixel, so there is nothing to measure.")
        right = known.sum(0).diagonal()
        iou = _iou(known.sum(0))
        present = _iou(known).where(known.sum(-1) > 0, math.nan)
        beyond = known.sum(0).sum(0) + known.sum(0).sum(1) - right + unknown.sum(0)
        return cls(
            accuracy=100 * float(right.sum() / known.sum()),
            iou=100 * float(iou.nanmean()),
            iou_per_class=tuple(None if x.isnan() else 100 * float(x) for x in iou),
            images=len(confusions),
            iou_of_images=100 * float(_iou(known).nanmean(-1).nanmean()),
            iou_of_present=100 * float(present.nanmean(-1).nanmean()),
            iou_with_unknown=100 * float((right / beyond).nanmean()),
        )


def _iou(confusion: Tensor) -> Tensor:
    """Intersection over union of each class, NaN where it neither occurs nor is predicted."""
    right = confusion.diagonal(dim1=-2, dim2=-1)
    return right / (confusion.sum(-2) + confusion.sum(-1) - right)


def score(
    predict: Predict,
    data: Dataset | Sequence[Sample],
    classes: int,
    device: torch.device | str = "cpu",
    batch: int = 8,
    keep: dict[str, Tensor] | None = None,
) -> Score:
    """Score ``predict``, which maps images (B, 3, H, W) to labels (B, H, W), at native sizes.

    Images of one size share a batch, so nothing is padded. ``keep`` collects label maps by name.
    """
    return Score.of(stacked(confusions(predict, data, classes, device, batch, keep)))


def confusions(
    predict: Predict,
    data: Dataset | Sequence[Sample],
    classes: int,
    device: torch.device | str = "cpu",
    batch: int = 8,
    keep: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The confusion matrix (L + 1, L) of each image, by name: every score follows from these."""
    found = {}
    for samples in same_size(data, batch):
        together = collate(samples)
        labels = predict(together.image.to(device)).cpu()
        for name, one, truth in zip(together.names, labels, together.labels, strict=True):
            found[name] = confusion(one, truth, classes)
            if keep is not None:
                keep[name] = one.to(torch.uint8)
    return found


def stacked(confusions: Mapping[str, Tensor]) -> Tensor:
    """(images, L + 1, L), in the order of their names."""
    return torch.stack([confusions[name] for name in sorted(confusions)])


def score_labels(found: Mapping[str, Tensor], data: Dataset | Sequence[Sample]) -> Score:
    """Score label maps that are there already, by the names of their images."""
    known = {sample.name: sample for sample in (data[index] for index in range(len(data)))}
    classes = 1 + max(
        int(labels[labels != IGNORE].max())
        for name, sample in known.items()
        for labels in (sample.labels, found[name])
    )
    found_in = {n: confusion(found[n], one.labels, classes) for n, one in known.items()}
    return Score.of(stacked(found_in))


def confusion(found: Tensor, truth: Tensor, classes: int) -> Tensor:
    """How many pixels of each class, and without one, were given each label: (L + 1, L)."""
    truth = torch.where(truth == IGNORE, classes, truth.long())
    counts = torch.bincount(
        (classes * truth + found.long()).flatten(), minlength=(classes + 1) * classes
    )
    return counts.view(classes + 1, classes)


def evaluate(
    model: Segmenter,
    data: Dataset | Sequence[Sample],
    classes: int,
    device: torch.device | str = "cpu",
    precision: Precision = Precision.FULL,
    keep: dict[str, Tensor] | None = None,
) -> Score:
    """Score a model on a data set."""
    return score(predictor(model, device, precision), data, classes, device, keep=keep)


def predictor(
    model: Segmenter, device: torch.device | str, precision: Precision = Precision.FULL
) -> Predict:
    """The model as a function from images to labels, ready for use on the device."""
    model = model.to(device).eval()
    kind = torch.device(device).type

    def predict(image: Tensor) -> Tensor:
        with (
            torch.inference_mode(),
            torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == Precision.MIXED),
        ):
            return model(image).argmax(1)

    return predict


@torch.no_grad()
def weight_pictures(
    model: Segmenter, samples: Dataset | Sequence[Sample], device: torch.device | str
) -> dict[str, Tensor]:
    """The mean weight around each pixel, (H, W) uint8 by name; 255 is the largest it can be."""
    layer = model.layer
    if layer is None:
        raise InputError("This model has no global layer, hence no weights to show.")
    model = model.to(device).eval()
    found = {}
    for index in range(len(samples)):
        sample = samples[index]
        image = sample.image[None].to(device).float() / 255
        weights = layer.weights(image, model.scores(image).features).float().mean((0, 1, 2))
        # Without a bound weights are shown in units of the picture's largest.
        largest = layer.potts.max_weight or float(weights.max())
        picture = (255 * weights / largest).round().clamp(0, 255)
        found[sample.name] = picture.to(torch.uint8).expand(sample.labels.shape).cpu()
    return found


def milliseconds(predict: Predict, batches: Sequence[Batch], device: torch.device | str) -> float:
    """The median time of one prediction, over batches of one image, after one warm-up each."""
    times = []
    for batch in batches:
        image = batch.image.to(device)
        predict(image)
        wait_for(device)
        start = time.perf_counter()
        predict(image)
        wait_for(device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def same_size(data: Dataset | Sequence[Sample], batch: int) -> Iterator[list[Sample]]:
    """Batches of images of one size, in the order in which they fill up."""
    waiting: defaultdict[tuple[int, ...], list[Sample]] = defaultdict(list)
    for index in range(len(data)):
        sample = data[index]
        group = waiting[tuple(sample.labels.shape)]
        group.append(sample)
        if len(group) == batch:
            yield list(group)
            group.clear()
    yield from (group for group in waiting.values() if group)


def wait_for(device: torch.device | str) -> None:
    """Let a GPU finish what it was given, so that a clock can be read."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
