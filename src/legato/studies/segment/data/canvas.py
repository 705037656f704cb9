"""An image and its labels, painted together."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[numpy.floating[Any]]
Mask = NDArray[numpy.bool_]

SKY, HORIZONTAL, VERTICAL = 0, 1, 2


def colour(*levels: float) -> Array:
    """An RGB colour in [0, 1]."""
    return numpy.array(levels, numpy.float32)


class Canvas:
    """Colours in [0, 1] and labels on one grid; whatever is painted covers what was there.

    ``y`` runs from 0 at the top to 1 at the bottom, ``x`` from 0 at the left to W/H at the right:
    a circle is round, and a scene looks alike at every size.
    """

    def __init__(self, size: tuple[int, int], rng: Generator) -> None:
        height, width = size
        self.rng = rng
        self.size = size
        self.y = ((numpy.arange(height, dtype=numpy.float32) + 0.5) / height)[:, None]
        self.x = ((numpy.arange(width, dtype=numpy.float32) + 0.5) / height)[None, :]
        self.right = width / height
        self.colours: Array = numpy.zeros((height, width, 3), numpy.float32)
        self.labels = numpy.zeros((height, width), numpy.uint8)

    def window(self, top: float, bottom: float, left: float, right: float) -> Window:
        """The part of the canvas between these coordinates, for shapes smaller than the scene."""
        return Window(self, top, bottom, left, right)

    def noise(self, cell: float, stretch: float = 1.0) -> Array:
        """Smooth random values in [0, 1] that change over the length ``cell``; (H, W)."""
        below, down = _nodes(self.y[:, 0], cell, self.rng)
        left, across = _nodes(self.x[0], cell * stretch, self.rng)
        grid = self.rng.random((below[-1] + 2, left[-1] + 2), dtype=numpy.float32)
        rows = grid[below] + down[:, None] * (grid[below + 1] - grid[below])
        return rows[:, left] + across * (rows[:, left + 1] - rows[:, left])


class Window:
    """A rectangle of a canvas with its own view of the coordinates, cut to what is visible."""

    def __init__(
        self, canvas: Canvas, top: float, bottom: float, left: float, right: float
    ) -> None:
        height, width = canvas.size
        rows = slice(_pixel(top, height, height), _pixel(bottom, height, height))
        columns = slice(_pixel(left, height, width), _pixel(right, height, width))
        self.y = canvas.y[rows]
        self.x = canvas.x[:, columns]
        self.colours = canvas.colours[rows, columns]
        self.labels = canvas.labels[rows, columns]
        self.rng = canvas.rng

    def paint(self, mask: Mask, colour: Array, label: int) -> None:
        """Cover the pixels in the mask."""
        mask = numpy.broadcast_to(mask, self.labels.shape)
        colour = numpy.broadcast_to(colour, self.colours.shape)
        self.colours[mask] = colour[mask]
        self.labels[mask] = label

    def shade(self, mask: Mask, factor: float, label: int) -> None:
        """Darken the pixels of a label that lie in the mask."""
        self.colours[mask & (self.labels == label)] *= numpy.float32(factor)

    def grain(self, strength: float) -> Array:
        """Brightness that differs from pixel to pixel, around 1; (h, w, 1)."""
        values = self.rng.standard_normal(self.labels.shape, dtype=numpy.float32)
        return 1 + strength * values[..., None]


def _pixel(coordinate: float, height: int, most: int) -> int:
    return min(max(round(coordinate * height), 0), most)


def _nodes(coordinates: Array, cell: float, rng: Generator) -> tuple[NDArray[numpy.int64], Array]:
    """The node before each coordinate, in a grid that starts anywhere, and how far it is behind."""
    places = (coordinates - coordinates[0]) / cell + rng.random(dtype=numpy.float32)
    before = places.astype(numpy.int64)
    part = places - before
    return before, part * part * (3 - 2 * part)  # smooth where two cells meet
