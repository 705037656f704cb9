"""Images beside what was found in them: the paper's figure of segmentations."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from torch import Tensor

from legato.cli.segment.colours import UNKNOWN, overlay
from legato.console.figures import INK, saved_figure
from legato.studies.segment.data import IGNORE, Dataset, Sample

_WIDTH = 2.15  # inches of a panel


class Column(NamedTuple):
    """Label maps by the name of the image, under a title."""

    title: str
    labels: Mapping[str, Tensor]


def draw_panels(
    path: Path,
    samples: Sequence[Sample],
    columns: Sequence[Column],
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    *,
    weights: Mapping[str, Tensor] | None = None,
    title: str = "",
) -> None:
    """Draw input | columns … | truth, one image a row, with the accuracy of each label map.

    ``weights`` are pictures (H, W) uint8 of the weights W, shown as a last column: dark where the
    segmentation may change at no cost. Nothing here needs a model.
    """
    heads = ["input", *(column.title for column in columns), "truth"]
    heads += [] if weights is None else ["weights W (dark: edge)"]
    tallest = max(s.labels.shape[0] / s.labels.shape[1] for s in samples)
    height = (_WIDTH * tallest + 0.22) * len(samples) + 0.55 + (0.3 if title else 0)
    with saved_figure(path, _WIDTH * len(heads) + 0.2, height, title) as figure:
        grid = figure.subplots(len(samples), len(heads), squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, head in zip(grid[0], heads, strict=True):
            axes.set_title(head, loc="center", weight="bold", color=INK)
        for row, sample in zip(grid, samples, strict=True):
            row[0].imshow(sample.image.permute(1, 2, 0).numpy())
            before: float | None = None
            for axes, column in zip(row[1:], columns, strict=False):
                labels = column.labels[sample.name]
                axes.imshow(overlay(sample.image, labels, palette))
                right = accuracy(labels, sample.labels)
                text = f"{right:.1f} %"
                if before is not None:
                    text += f"  ({right - before:+.1f})".replace("-", "−")
                before = right
                _caption(axes, text)
            truth = row[1 + len(columns)]
            truth.imshow(overlay(sample.image, sample.labels, palette))
            if weights is not None:
                row[-1].imshow(weights[sample.name].numpy(), cmap="gray", vmin=0, vmax=255)
        patches = [
            Patch(color=_shade(colour), label=textwrap.shorten(name, 24))
            for name, colour in zip(classes, palette, strict=True)
        ]
        if any(bool((sample.labels == IGNORE).any()) for sample in samples):
            patches.append(Patch(facecolor=_shade(UNKNOWN), edgecolor="#999999",
                                 label="unknown"))  # fmt: skip
        figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 6))


def accuracy(labels: Tensor, truth: Tensor) -> float:
    """Per cent of the labelled pixels that are right."""
    known = truth != IGNORE
    return 100 * float((labels[known] == truth[known]).float().mean())


def spread_out(
    data: Dataset, after: Mapping[str, Tensor], before: Mapping[str, Tensor] | None, count: int
) -> list[int]:
    """Places of ``count`` images across the range of gains, the best first and the worst last.

    Without ``before``, across the range of accuracies: good and bad cases alike.
    """
    gains = []
    for index, name in enumerate(data.names):
        truth = data[index].labels
        gain = accuracy(after[name], truth)
        gains.append(gain if before is None else gain - accuracy(before[name], truth))
    order = sorted(range(len(gains)), key=lambda index: -gains[index])
    places = numpy.linspace(0, len(order) - 1, min(count, len(order)))
    return [order[round(place)] for place in places.tolist()]


def _shade(colour: Sequence[int]) -> tuple[float, float, float]:
    red, green, blue = (level / 255 for level in colour)
    return red, green, blue


def _caption(axes: Axes, text: str) -> None:
    axes.text(
        0.5, -0.03, text, transform=axes.transAxes, ha="center", va="top", fontsize=8, color=INK
    )  # fmt: skip
