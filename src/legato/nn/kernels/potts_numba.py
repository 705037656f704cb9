"""The Potts iteration and its gradient on the CPU, compiled by Numba.

An image is cut into bands of rows, one per thread; each band carries its rows through several
iterations while they are in the cache (`potts_rows`), then neighbouring bands exchange margins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.nn.kernels import potts_rows
from legato.nn.kernels.buffer_pool import BufferPool
from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_operator import PottsCotangents, PottsSettings, make_operator
from legato.nn.kernels.workers import Workers

Array = NDArray[Any]

VECTOR = 16
"""Columns are padded to a multiple of this, the widest vector in float32."""

CACHE = 640 * 1024
"""Bytes that one thread's window of rows may take: most of a core's second-level cache."""

POOLED = 1 << 30
"""Bytes of released tapes that are kept for the next call."""

NUMBER: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}

FLUSH = {torch.float32: (1e-30, 1e-18), torch.float64: (1e-290, 1e-140)}
"""Where probabilities, and cotangents scaled to unit size, become zero rather than denormal."""

workers = Workers()
pool = BufferPool(POOLED)


@dataclass(frozen=True)
class Layout:
    """How a batch of images lies in rows, and how the rows are shared out."""

    batch: int
    labels: int
    spatial: tuple[int, ...]
    neighbours: int
    dtype: torch.dtype
    threads: int

    @cached_property
    def directions(self) -> tuple[tuple[int, ...], ...]:
        return offsets(len(self.spatial), self.neighbours)

    @cached_property
    def rows(self) -> int:
        return math.prod(self.spatial[:-1])

    @cached_property
    def columns(self) -> int:
        return -(-self.spatial[-1] // VECTOR) * VECTOR

    @cached_property
    def down(self) -> Array:
        """Rows from a pixel to its neighbour in each direction."""
        strides = [math.prod(self.spatial[i + 1 : -1]) for i in range(len(self.spatial) - 1)]
        steps = [sum(o * s for o, s in zip(d, strides, strict=False)) for d in self.directions]
        return np.array(steps, np.int64)

    @cached_property
    def right(self) -> Array:
        """Columns from a pixel to its neighbour in each direction."""
        return np.array([d[-1] for d in self.directions], np.int64)

    @cached_property
    def base(self) -> Array:
        """Where each direction's rows start in the ring; it has max(1, down) of them."""
        depths = np.maximum(self.down, 1)
        return np.concatenate(([0], np.cumsum(depths)))

    @property
    def reach(self) -> int:
        return max(1, int(self.down.max()))

    @cached_property
    def bands(self) -> int:
        """Bands an image is cut into: the fewest that keep all threads equally busy."""
        wanted = self.threads // math.gcd(self.batch, self.threads)
        if self.batch >= 4 * self.threads:
            wanted = 1
        return max(1, min(wanted, self.rows // (4 * self.reach)))

    @cached_property
    def owned(self) -> Array:
        """First and last-plus-one row of every band, for every image: (batch · bands, 2)."""
        edges = np.linspace(0, self.rows, self.bands + 1).round().astype(np.int64)
        one = np.stack((edges[:-1], edges[1:]), 1)
        return np.tile(one, (self.batch, 1))

    def in_flight(self, fields: int) -> int:
        """How many iterations run at once, if each keeps `fields` rows per label in the cache."""
        size = torch.empty((), dtype=self.dtype).element_size()
        window = fields * self.reach * self.labels * self.columns * size
        count = max(1, CACHE // window)
        if self.bands > 1:
            height = int((self.owned[:, 1] - self.owned[:, 0]).min())
            count = min(count, max(1, height // (8 * self.reach)))
        return count

    @cached_property
    def row_has_neighbour(self) -> NDArray[np.bool_]:
        """(E, rows): does a row have a row to compare with in that direction?"""
        exists = np.ones((len(self.directions), *self.spatial[:-1]), bool)
        for mask, offset in zip(exists, self.directions, strict=True):
            for axis, step in enumerate(offset[:-1]):
                if step:
                    np.moveaxis(mask, axis, 0)[-step:] = False
        return exists.reshape(len(self.directions), self.rows)

    @cached_property
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


class Weights:
    """Weights as rows. Of the broadcast axes only the last is written out; columns without a
    neighbour have weight zero, rows without one have a negative index in `edges`."""

    def __init__(self, weights: Tensor, layout: Layout) -> None:
        self.shape = weights.shape
        values = weights.detach().numpy()
        directions, width = len(layout.directions), layout.spatial[-1]
        constant = all(size == 1 for size in values.shape[3:-1])
        between = values.shape[3:-1] if constant else layout.spatial[:-1]
        full = np.broadcast_to(values, (*values.shape[:2], directions, *between, width))
        count = math.prod(between)
        self.rows = aligned((*values.shape[:2], directions, count, layout.columns), values.dtype)
        self.rows[..., :width] = full.reshape(*full.shape[:3], count, width)
        self.columns = layout.column_has_neighbour.astype(values.dtype)
        self.rows *= self.columns[:, None]
        index = np.zeros(layout.rows, np.int64) if constant else np.arange(layout.rows)
        self.edges = np.where(layout.row_has_neighbour, index, -1)
        self.zeros = aligned((layout.columns,), values.dtype)

    def of_image(self, image: int) -> Array:
        return cast(Array, self.rows[image % self.rows.shape[0]])


class Bands:
    """The state of all bands, (batch · bands, rows, labels[, directions], columns) a field.

    Everything here runs on our own threads: torch's would still be spinning, waiting for more
    work, when the sweeps need the cores.
    """

    def __init__(self, layout: Layout, depth: int) -> None:
        self.layout = layout
        self.margin = depth * layout.reach if layout.bands > 1 else 0
        owned = layout.owned
        self.first = np.maximum(owned[:, 0] - self.margin, 0)
        last = np.minimum(owned[:, 1] + self.margin, layout.rows)
        self.height = int((last - self.first).max())
        self.tasks = len(owned)
        self.lanes = min(self.tasks, layout.threads)

    def field(self, source: Tensor | None, directions: int = 0, factor: float = 1.0) -> Array:
        """A field filled from factor · source (B, L[, E], *spatial), or with zeros."""
        layout = self.layout
        number = NUMBER[layout.dtype]
        inner = (layout.labels, directions) if directions else (layout.labels,)
        shape = (self.tasks, self.height, *inner, layout.columns)
        field = aligned(shape, np.dtype(number))
        if source is not None:
            planes = math.prod(inner)
            size = (layout.batch, planes, layout.rows, layout.spatial[-1])
            whole = source.detach().contiguous().numpy().reshape(size)
            flat = field.reshape(self.tasks, self.height, planes, layout.columns)

            def load(i: int, lane: int) -> None:
                potts_rows.load(flat[i], self.first[i], whole[i // layout.bands], number(factor))

            workers(load, self.tasks, self.lanes)
        return field

    def collect(self, field: Array, factor: float = 1.0) -> Tensor:
        """factor · field of the whole images, as (B, L[, E], *spatial)."""
        layout = self.layout
        number = NUMBER[layout.dtype]
        inner = field.shape[2:-1]
        planes = math.prod(inner)
        target = np.empty((layout.batch, planes, layout.rows, layout.spatial[-1]), field.dtype)
        flat = field.reshape(*field.shape[:2], planes, layout.columns)

        def store(i: int, lane: int) -> None:
            image, first = target[i // layout.bands], self.first[i]
            potts_rows.store(image, flat[i], first, layout.owned[i], number(factor))

        workers(store, self.tasks, self.lanes)
        return torch.from_numpy(target.reshape(layout.batch, *inner, *layout.spatial))

    def exchange(self, *fields: Array) -> None:
        """Bring the margins of all bands up to date."""
        if self.layout.bands > 1:
            for field in fields:
                flat = field.reshape(*field.shape[:2], -1)
                potts_rows.exchange(
                    flat, self.first, self.layout.owned, self.layout.bands, self.margin
                )


class Sweep:
    """What the forward and the reverse sweep share: the problem in rows, and room to work."""

    def __init__(
        self, cost: Tensor, weights: Tensor, tau: Tensor, sigma: Tensor, settings: PottsSettings
    ) -> None:
        self.layout = layout = Layout(
            cost.shape[0],
            cost.shape[1],
            tuple(cost.shape[2:]),
            settings.neighbours,
            cost.dtype,
            torch.get_num_threads(),
        )
        self.settings = settings
        # Whole images, one a task: for what no band needs margins of.
        self.images = Bands(replace(layout, threads=1), 0)
        self.cost = self.images.field(cost)
        self.weights = Weights(weights, layout)
        number = NUMBER[layout.dtype]
        self.tau, self.sigma = number(float(tau)), number(float(sigma))
        self.shrink = number(1 / (1 + float(tau) * settings.epsilon))
        self.growth = float(tau) * settings.epsilon / (1 + float(tau) * settings.epsilon)
        self.tasks = layout.batch * layout.bands
        self.lanes = min(self.tasks, layout.threads)
        self.no_row = self.room(0, layout.columns)
        self.no_image = self.room(0, layout.labels, layout.columns)
        self.no_tape = self.room(0, 0, layout.labels, layout.columns)

    def room(self, *shape: int) -> Array:
        return aligned(shape, self.cost.dtype)

    def lines(self, count: int, depth: int) -> Array:
        """Lines of all labels with margins: `depth` an iteration in flight, a set a lane."""
        width = self.layout.columns + 2 * potts_rows.MARGIN
        return self.room(self.lanes, count, depth, self.layout.labels, width)

    def forward(
        self,
        mirror: Tensor | None,
        dual: Tensor | None,
        iterations: int,
        tape: Array | None,
        mean: Array | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run from (a⁰, b⁰) to (a, b, u); tape[:, k] becomes uᵏ, and every uᵏ adds to the mean."""
        layout, w = self.layout, self.weights
        directions = len(layout.directions)
        count = min(iterations, layout.in_flight(8 + directions))
        bands = Bands(layout, count)
        a, u = bands.field(mirror), bands.field(mirror)
        b = bands.field(dual, directions)

        def begin(i: int, lane: int) -> None:
            potts_rows.recentre(a[i])
            potts_rows.soften(u[i])
            if tape is not None:
                image, (low, high), first = i // layout.bands, layout.owned[i], bands.first[i]
                tape[image, 0, low:high] = u[i, low - first : high - first]

        workers(begin, self.tasks, self.lanes)
        flush = self.cost.dtype.type(FLUSH[layout.dtype][0])
        ring, lead = self.lines(count, int(layout.base[-1])), self.lines(count, layout.reach + 1)
        work = self.room(self.lanes, layout.labels + 3, layout.columns)
        for done in range(0, iterations, count):
            now = min(count, iterations - done)

            def advance(i: int, lane: int, done: int = done, now: int = now) -> None:
                image = i // layout.bands
                potts_rows.advance(
                    a[i], u[i], b[i], bands.first[i], layout.owned[i], now, self.cost[image],
                    self.no_tape if tape is None else tape[image, done + 1 : done + 1 + now],
                    self.no_image if mean is None else mean[image], self.no_row,
                    w.of_image(image), w.zeros, w.edges, self.tau, self.sigma, self.shrink, flush,
                    layout.base, layout.down, layout.right, ring[lane], lead[lane], work[lane],
                )  # fmt: skip

            workers(advance, self.tasks, self.lanes)
            bands.exchange(a, u, b)
        return bands.collect(a), bands.collect(b), bands.collect(u)


class Reverse:
    """The reverse sweep: the cotangents s of a, q of b, the last Kᵀq, and the gradients that they
    leave on their way."""

    def __init__(self, sweep: Sweep, s: Tensor, q: Tensor | None, mean_bar: Array | None) -> None:
        layout = sweep.layout
        self.sweep = sweep
        self.s, self.q, self.mean_bar = s, q, mean_bar
        self.carry: Tensor | None = None
        self.cost_bar = sweep.room(*sweep.cost.shape)
        labels = sweep.weights.rows.shape[1]
        self.weight_bar = sweep.room(
            layout.batch, layout.rows, labels, len(layout.directions), layout.columns
        )
        self.sums = np.zeros((sweep.lanes, 4, layout.columns))

    def run(self, tape: Array, last: int, dual: Tensor) -> None:
        """Go back over the iterations of the tape, tape[:, −1] being iterate `last`."""
        sweep, layout, w = self.sweep, self.sweep.layout, self.sweep.weights
        directions = len(layout.directions)
        iterations = tape.shape[1] - 1
        count = min(iterations, layout.in_flight(12 + 2 * directions))
        bands = Bands(layout, count)
        s, g = bands.field(self.s), bands.field(self.carry)
        q, b = bands.field(self.q, directions), bands.field(dual, directions)
        flush = sweep.cost.dtype.type(FLUSH[layout.dtype][1])
        depth = layout.reach + 1
        ring, lead = sweep.lines(count, int(layout.base[-1])), sweep.lines(count, depth)
        slope = sweep.lines(count, depth)
        work = sweep.room(sweep.lanes, layout.labels + 3, layout.columns)
        for end in range(iterations, 0, -count):
            now = min(count, end)

            def retreat(i: int, lane: int, end: int = end, now: int = now) -> None:
                image = i // layout.bands
                potts_rows.retreat(
                    s[i], g[i], q[i], b[i], bands.first[i], layout.owned[i],
                    now, last - iterations + end, tape[image, end - now : end + 1],
                    sweep.no_image if self.mean_bar is None else self.mean_bar[image], sweep.no_row,
                    self.cost_bar[image], self.weight_bar[image], sweep.cost[image],
                    w.of_image(image), w.zeros, w.edges,
                    sweep.tau, sweep.sigma, sweep.shrink, flush, sweep.growth,
                    layout.base, layout.down, layout.right,
                    ring[lane], lead[lane], slope[lane], work[lane], self.sums[lane],
                )  # fmt: skip

            workers(retreat, sweep.tasks, sweep.lanes)
            bands.exchange(s, g, q, b)
        self.s, self.carry, self.q = bands.collect(s), bands.collect(g), bands.collect(q)


def _unit(bars: Sequence[Tensor | None]) -> float:
    """A power of two near the largest cotangent: dividing by it makes the flush thresholds fit."""
    arrays = [bar.detach().numpy() for bar in bars if bar is not None]
    largest = max((max(float(x.max()), -float(x.min())) for x in arrays if x.size), default=0.0)
    return 2.0 ** round(math.log2(largest)) if 0 < largest < math.inf else 1.0


class NumbaPotts:
    """The kernel, as `potts_operator` wants it."""

    def tape_shapes(
        self, cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        batch, labels, *spatial = cost.shape
        if settings.checkpoint:
            marks = -(-settings.iterations // settings.checkpoint)
            return (0,), (marks, *cost.shape), (marks, batch, labels, directions, *spatial)
        columns = -(-spatial[-1] // VECTOR) * VECTOR
        rows = math.prod(spatial[:-1])
        return (batch, settings.iterations + 1, rows, labels, columns), (0,), (0,)

    def forward(
        self,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        mirror: Tensor | None,
        dual: Tensor | None,
        settings: PottsSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        sweep = Sweep(cost, weights, tau, sigma, settings)
        layout, total = sweep.layout, settings.iterations
        mean = sweep.room(*sweep.cost.shape) if settings.average else None
        shapes = self.tape_shapes(cost, len(layout.directions), settings) if keep else ((0,),) * 3
        tape = pool.take(tuple(shapes[0]), sweep.cost.dtype)
        marked_a, marked_b = (cost.new_empty(tuple(shape)) for shape in shapes[1:])
        if keep and settings.checkpoint:
            a, b = mirror, dual
            for i, start in enumerate(range(0, total, settings.checkpoint)):
                marked_a[i] = 0 if a is None else a
                marked_b[i] = 0 if b is None else b
                count = min(settings.checkpoint, total - start)
                a, b, u = sweep.forward(a, b, count, None, mean)
            assert a is not None
            assert b is not None
        else:
            a, b, u = sweep.forward(mirror, dual, total, tape if keep else None, mean)
        averaged = cost.new_empty(0)
        if mean is not None:
            averaged = sweep.images.collect(mean, 1 / total)
        return a, b, u, averaged, torch.from_numpy(tape), marked_a, marked_b

    def reverse(
        self,
        bars: PottsCotangents,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final: tuple[Tensor, Tensor, Tensor],
        tape: Tensor,
        marked: tuple[Tensor, Tensor],
        settings: PottsSettings,
        to_mirror: bool,
        to_dual: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        sweep = Sweep(cost, weights, tau, sigma, settings)
        images, total, t = sweep.images, settings.iterations, float(tau)
        unit = _unit(bars)
        final_a, final_b, final_u = final

        arriving = images.field(bars.mirror, factor=1 / unit)
        if bars.mirror is not None:
            self._each(potts_rows.through_maximum, arriving, images.field(final_a))
        if bars.probabilities is not None:
            u_bar = images.field(bars.probabilities, factor=1 / unit)
            self._each(potts_rows.through_softmax, arriving, images.field(final_u), u_bar)
        mean_bar = None
        if bars.mean is not None:
            mean_bar = images.field(bars.mean, factor=1 / (unit * total))
        # With ε > 0 τ also scales a itself; this is its share at the last iterate.
        at_the_end = 0.0
        if settings.epsilon > 0:
            at_the_end = sum(self._each(potts_rows.inner_product, arriving, images.field(final_a)))
        q = None if bars.dual is None else bars.dual / unit
        reverse = Reverse(sweep, images.collect(arriving), q, mean_bar)

        if settings.checkpoint:
            marked_a, marked_b = marked
            for i in reversed(range(len(marked_a))):
                start = i * settings.checkpoint
                count = min(settings.checkpoint, total - start)
                shape = (images.tasks, count + 1, *sweep.cost.shape[1:])
                segment = pool.take(shape, sweep.cost.dtype)
                _, b, _ = sweep.forward(marked_a[i], marked_b[i], count, segment, None)
                reverse.run(segment, start + count, b)
                first = segment[:, 0]
        else:
            steps = tape.numpy()
            reverse.run(steps, total, final_b)
            first = steps[:, 0]

        assert reverse.q is not None
        assert reverse.carry is not None
        a_bar, b_bar = cost.new_empty(0), cost.new_empty(0)
        if to_mirror:
            field = images.field(reverse.s)
            u_bar = images.field(reverse.carry, factor=-float(sweep.sigma))
            self._each(potts_rows.through_softmax, field, first, u_bar)
            a_bar = images.collect(field, unit)
        if to_dual:
            b_bar = reverse.q.mul_(unit)
        to_sigma, edges, logs, forces = reverse.sums.sum((0, 2)).tolist()
        if settings.epsilon == 0:
            forces = sum(self._each(potts_rows.inner_product, reverse.cost_bar, sweep.cost))
        to_tau = -(edges + logs + sweep.growth * total * at_the_end) / t - forces
        w = sweep.weights
        for bar in reverse.weight_bar:
            potts_rows.keep_edges(bar, w.edges, w.columns)
        return (
            images.collect(reverse.cost_bar, -t * unit),
            images.collect(reverse.weight_bar, unit).sum_to_size(w.shape),
            tau.new_tensor(to_tau * unit),
            sigma.new_tensor(to_sigma * unit),
            a_bar,
            b_bar,
        )

    @staticmethod
    def _each(function: Callable[..., Any], *fields: Array) -> list[Any]:
        """The function on every image of the fields."""
        return [function(*image) for image in zip(*fields, strict=True)]


potts = make_operator("numba", NumbaPotts())
