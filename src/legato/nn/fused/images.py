"""Whole images in rows: how tensors get into a row kernel, and out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from legato.nn.fused import rows
from legato.nn.fused.bands import NUMPY_TYPES, Array, Layout, aligned, taken, workers


class Images:
    """Fields (batch, rows, …, columns) of a layout, made and read by our own threads."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.number = NUMPY_TYPES[layout.dtype]
        self.lanes = min(layout.batch * layout.bands, layout.threads)

    def room(self, *shape: int) -> Array:
        """Zeros to work in."""
        return aligned(shape, np.dtype(self.number))

    def lines(self, count: int, depth: int) -> Array:
        """Lines of all labels with margins: `depth` an iteration in flight, a set a lane."""
        width = self.layout.columns + 2 * self.layout.margin
        return self.room(self.lanes, count, depth, self.layout.labels, width)

    def whole(self, *inner: int) -> Array:
        """Room for a field; what is in it is arbitrary. By default a line for every label."""
        layout = self.layout
        shape = (layout.batch, layout.rows, *(inner or (layout.labels,)), layout.columns)
        return taken(shape, layout.dtype)

    def by_rows(self, task: Callable[[int, int, int], object]) -> None:
        """Call task(image, first, last) until all rows of all images have had their turn."""
        layout = self.layout
        parts = -(-layout.threads // layout.batch) if layout.rows >= 4 * layout.threads else 1
        edges = [layout.rows * i // parts for i in range(parts + 1)]

        def part(i: int, lane: int) -> None:
            task(i // parts, edges[i % parts], edges[i % parts + 1])

        workers(part, layout.batch * parts, layout.threads)

    def clear(self, *fields: Array) -> None:
        def clear(image: int, first: int, last: int) -> None:
            for field in fields:
                field[image, first:last] = 0

        self.by_rows(clear)

    def rows_of(self, source: Tensor, factor: float = 1.0) -> Array:
        """factor · source (B, L[, E], *spatial) in rows."""
        layout = self.layout
        edges = (len(layout.directions),) if source.dim() > len(layout.spatial) + 2 else ()
        target = self.whole(layout.labels, *edges)
        flat, size = self._planes(target)
        whole = source.detach().resolve_neg().contiguous().numpy().reshape(size)

        def load(image: int, first: int, last: int) -> None:
            rows.load(flat[image], first, last, whole[image], self.number(factor))

        self.by_rows(load)
        return target

    def tensor_of(self, source: Array, shape: Sequence[int], factor: float = 1.0) -> Tensor:
        """factor · a field as a tensor of that shape."""
        flat, size = self._planes(source)
        target = taken(size, self.layout.dtype)

        def store(image: int, first: int, last: int) -> None:
            rows.store(target[image], flat[image], first, last, self.number(factor))

        self.by_rows(store)
        # Reshaped by torch: the memory is given back when `target` itself is no longer held.
        return torch.from_numpy(target).reshape(tuple(shape))

    def _planes(self, field: Array) -> tuple[Array, tuple[int, ...]]:
        """A field with one axis of planes, and the shape of its tensor (B, planes, rows, width)."""
        layout, planes = self.layout, math.prod(field.shape[2:-1])
        flat = field.reshape(layout.batch, layout.rows, planes, layout.columns)
        return flat, (layout.batch, planes, layout.rows, layout.spatial[-1])


def weights_in_rows(weights: Tensor, layout: Layout) -> Array:
    """Weights (b, c, e, *spatial) as (b, c, e, rows or 1, columns), zero in the padding.

    Of the broadcast axes only the columns are written out, and the rows if they are not all equal.
    """
    values, width = weights.detach().resolve_neg().numpy(), layout.spatial[-1]
    constant = all(size == 1 for size in values.shape[3:-1])
    between = (1,) * (len(layout.spatial) - 1) if constant else layout.spatial[:-1]
    full = np.broadcast_to(values, (*values.shape[:3], *between, width))
    shape = (*values.shape[:3], math.prod(between), layout.columns)
    target = aligned(shape, values.dtype)
    target[..., :width] = full.reshape(*shape[:-1], width)
    return target


def unit_of(bars: Sequence[Tensor | None]) -> float:
    """A power of two near the largest cotangent: dividing by it makes the flush thresholds fit."""
    largest = 0.0
    for bar in bars:
        if bar is not None and bar.numel():
            x = bar.detach().resolve_neg().numpy()
            size = max(float(x.max()), -float(x.min()))
            if not math.isfinite(size):
                size = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
            largest = max(largest, size)
    return 2.0 ** round(math.log2(largest)) if largest > 0 else 1.0
