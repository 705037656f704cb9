"""Tensors as pictures."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

from legato.cli.segment.colours import Pixels, coloured

# Of Okabe and Ito, told apart by colour-blind readers; dark labels first, as the labels are.
PALETTE = (
    (0, 59, 92), (0, 114, 178), (0, 158, 115), (213, 94, 0),
    (204, 121, 167), (86, 180, 233), (230, 159, 0), (240, 228, 66),
)  # fmt: skip


def photograph(image: Tensor) -> Pixels:
    """A picture (3, H, W) in [0, 1] as (H, W, 3)."""
    return _eight_bits(image.permute(1, 2, 0).numpy())


def label_picture(labels: Tensor, count: int, image: Tensor | None) -> Pixels:
    """Labels (H, W) as colours (H, W, 3): of a palette, or their means in ``image``."""
    if image is None:
        places = [round(k * (len(PALETTE) - 1) / (count - 1)) for k in range(count)]
        return coloured(labels, [PALETTE[place] for place in places])
    table = numpy.zeros((count, 3))
    for label in range(count):
        inside = image[:, labels == label]
        if inside.numel():
            table[label] = inside.mean(1).numpy()
    return _eight_bits(table[labels.numpy()])


def weight_picture(weights: Tensor) -> Pixels:
    """Weights (H, W) in grey, white where an outline is most expensive."""
    grey = (weights / weights.max().clamp(min=1e-12)).numpy()
    return _eight_bits(numpy.stack((grey,) * 3, axis=-1))


def _eight_bits(values: NDArray[Any]) -> Pixels:
    return (255 * values + 0.5).clip(0, 255).astype(numpy.uint8)
