"""Labels as colours over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[numpy.uint8]
UNKNOWN = (255, 255, 255)
"""The colour of pixels without a label."""


def overlay(
    image: Tensor, labels: Tensor, palette: Sequence[Sequence[int]], strength: float = 0.62
) -> Pixels:
    """The grey image (3, H, W), tinted by its labels (H, W), as an (H, W, 3) array."""
    grey = numpy.asarray(image.numpy(), numpy.float32).mean(0)[..., None]
    tinted: NDArray[Any] = (1 - strength) * grey + strength * coloured(labels, palette)
    return tinted.round().clip(0, 255).astype(numpy.uint8)


def coloured(labels: Tensor, palette: Sequence[Sequence[int]]) -> Pixels:
    """Labels (H, W) as colours (H, W, 3); what the palette does not name is unknown."""
    table = numpy.full((256, 3), UNKNOWN, numpy.uint8)
    table[: len(palette)] = palette
    return table[labels.numpy()]
