"""Images as bands of rows, one per thread, for kernels that Numba compiles.

Each band carries its rows through several iterations while they are in the cache; then neighbouring
bands exchange margins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from legato._support.lazy import lazy
from legato.nn.fused import rows
from legato.nn.fused.buffer_pool import BufferPool
from legato.nn.fused.workers import Workers
from legato.nn.neighbourhood import Offset

Array = NDArray[Any]

VECTOR_COLUMNS = 16
"""Columns are padded to a multiple of this, the widest vector in float32."""

PAGE_BYTES, APART_BYTES = 4096, 256
"""Rows whose distance, modulo a page, is less than APART_BYTES stall: a load waits for an earlier
store whose address differs by a multiple of a page."""

WINDOW_BYTES = 480 * 1024
"""Bytes that one thread's window of rows may take: half of a core's second-level cache."""

POOL_BYTES = 1 << 30
"""Bytes of released tapes that are kept for the next call."""

NUMPY_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}

workers = Workers()
pool = BufferPool(POOL_BYTES)


def padded(width: int, dtype: torch.dtype, lines: int = 0) -> int:
    """Columns for so many pixels: whole vectors, and rows of so many lines not a page apart."""
    columns = -(-width // VECTOR_COLUMNS) * VECTOR_COLUMNS
    while (row := lines * columns * dtype.itemsize) > PAGE_BYTES - APART_BYTES and (
        min(row % PAGE_BYTES, -row % PAGE_BYTES) < APART_BYTES
    ):
        columns += VECTOR_COLUMNS
    return columns


@dataclass(frozen=True)
class Layout:
    """How a batch of images lies in rows, and how the rows are shared out.

    ``lines`` is how many lines lie between a row that is read and one that is written just before,
    zero where that does not happen.
    """

    batch: int
    labels: int
    spatial: tuple[int, ...]
    directions: tuple[Offset, ...]
    dtype: torch.dtype
    threads: int
    lines: int = 0

    @lazy
    def rows(self) -> int:
        return math.prod(self.spatial[:-1])

    @lazy
    def columns(self) -> int:
        return padded(self.spatial[-1], self.dtype, self.lines)

    @lazy
    def down(self) -> Array:
        """Rows from a pixel to its neighbour in each direction."""
        strides = [math.prod(self.spatial[i + 1 : -1]) for i in range(len(self.spatial) - 1)]
        steps = [sum(o * s for o, s in zip(d, strides, strict=False)) for d in self.directions]
        return np.array(steps, np.int64)

    @lazy
    def right(self) -> Array:
        """Columns from a pixel to its neighbour in each direction."""
        return np.array([d[-1] for d in self.directions], np.int64)

    @property
    def across(self) -> int:
        """The direction that leads to the next column; the first one leads down."""
        return len(self.spatial) - 1

    @lazy
    def base(self) -> Array:
        """Where each direction's rows start in the ring; it has max(1, down) of them."""
        depths = np.maximum(self.down, 1)
        return np.concatenate(([0], np.cumsum(depths)))

    @lazy
    def margin(self) -> int:
        """Columns on either side of a line, whole vectors, so that no neighbour needs a test."""
        return padded(max(1, int(abs(self.right).max())), self.dtype)

    @property
    def reach(self) -> int:
        return max(1, int(self.down.max()))

    @lazy
    def bands(self) -> int:
        """Bands an image is cut into: the fewest that keep all threads equally busy."""
        wanted = self.threads // math.gcd(self.batch, self.threads)
        if self.batch >= 4 * self.threads:
            wanted = 1
        return max(1, min(wanted, self.rows // (4 * self.reach)))

    @lazy
    def owned(self) -> Array:
        """First and last-plus-one row of every band, for every image: (batch · bands, 2)."""
        edges = np.linspace(0, self.rows, self.bands + 1).round().astype(np.int64)
        one = np.stack((edges[:-1], edges[1:]), 1)
        return np.tile(one, (self.batch, 1))

    def in_flight(self, iterations: int, fields: int) -> int:
        """How many iterations run at once, if each keeps `fields` rows per label in the cache."""
        size = torch.empty((), dtype=self.dtype).element_size()
        window = fields * self.reach * self.labels * self.columns * size
        count = max(1, WINDOW_BYTES // window)
        if self.bands > 1:
            height = int((self.owned[:, 1] - self.owned[:, 0]).min())
            count = min(count, max(1, height // (8 * self.reach)))
        # Rather groups of equal size than a small one at the end.
        return -(-iterations // max(1, round(iterations / count)))

    @lazy
    def row_has_neighbour(self) -> NDArray[np.bool_]:
        """(E, rows): does a row have a row to compare with in that direction?"""
        exists = np.ones((len(self.directions), *self.spatial[:-1]), bool)
        for mask, offset in zip(exists, self.directions, strict=True):
            for axis, step in enumerate(offset[:-1]):
                if step:
                    np.moveaxis(mask, axis, 0)[-step:] = False
        return exists.reshape(len(self.directions), self.rows)

    @lazy
    def column_has_neighbour(self) -> NDArray[np.bool_]:
        """(E, columns): likewise for the columns; padding has no neighbours."""
        x = np.arange(self.columns) + self.right[:, None]
        width = self.spatial[-1]
        return (x >= 0) & (x < width) & (np.arange(self.columns) < width)


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Zeros that start on a cache line, which saves the vector loops a tenth of their time."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def taken(shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Room for a field, from the pool."""
    return cast(Array, pool.take(tuple(shape), np.dtype(NUMPY_TYPES[dtype])))


class Bands:
    """Fields of all bands, (batch · bands, rows, labels[, directions], columns) each, with margins
    for `depth` iterations; as opposed to whole images, (batch, rows, labels[, …], columns).

    Everything here runs on our own threads: torch's would still be spinning, waiting for more
    work, when the sweeps need the cores.
    """

    def __init__(self, layout: Layout, depth: int) -> None:
        self.layout = layout
        self.depth = depth
        self.margin = depth * layout.reach if layout.bands > 1 else 0
        owned = layout.owned
        self.first = np.maximum(owned[:, 0] - self.margin, 0)
        self.last = np.minimum(owned[:, 1] + self.margin, layout.rows)
        self.height = int((self.last - self.first).max())
        self.tasks = len(owned)
        self.lanes = min(self.tasks, layout.threads)

    def each(self, task: Callable[[int, int], object]) -> None:
        """Call task(band, lane) for every band."""
        workers(task, self.tasks, self.lanes)

    def span(self, i: int, count: int) -> rows.Span:
        """The rows of band i, for so many iterations."""
        low, high = self.layout.owned[i]
        return rows.Span(self.first[i], low, high, count)

    def field(self, directions: int = 0) -> Array:
        """Room for a field; what is in it is arbitrary."""
        layout = self.layout
        inner = (layout.labels, directions) if directions else (layout.labels,)
        return taken((self.tasks, self.height, *inner, layout.columns), layout.dtype)

    def field_with_margins(self) -> tuple[Array, Array]:
        """A field, and its bands as flat arrays with margins, all zero."""
        layout, margin = self.layout, self.layout.margin
        shape = (self.tasks, self.height, layout.labels, layout.columns)
        flat = taken((self.tasks, math.prod(shape[1:]) + 2 * margin), layout.dtype)
        self.each(lambda i, lane: flat[i].fill(0))
        return flat[:, margin:-margin].reshape(shape, copy=False), flat

    def fill(self, *pairs: tuple[Array, Array | None]) -> None:
        """Fill fields from whole images, or with zeros, band by band."""
        layout = self.layout

        def fill(i: int, lane: int) -> None:
            first, last = self.first[i], self.last[i]
            for field, whole in pairs:
                field[i, : last - first] = (
                    0 if whole is None else whole[i // layout.bands, first:last]
                )

        self.each(fill)

    def gather(self, *pairs: tuple[Array, Array]) -> None:
        """Write the rows that each band owns of a field to whole images: (whole, field)."""
        layout = self.layout

        def gather(i: int, lane: int) -> None:
            (low, high), first = layout.owned[i], self.first[i]
            for whole, field in pairs:
                whole[i // layout.bands, low:high] = field[i, low - first : high - first]

        self.each(gather)

    def whole(self, field: Array) -> Array:
        """A field of the bands as whole images."""
        layout = self.layout
        whole = taken((layout.batch, layout.rows, *field.shape[2:]), layout.dtype)
        self.gather((whole, field))
        return whole

    def exchange(self, *fields: Array) -> None:
        """Bring the margins of all bands up to date."""
        if self.layout.bands > 1:
            for field in fields:
                flat = field.reshape(*field.shape[:2], -1)
                rows.exchange(flat, self.first, self.layout.owned, self.layout.bands, self.margin)
