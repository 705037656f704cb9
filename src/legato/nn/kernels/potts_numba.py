"""The Potts iteration and its gradient on the CPU, compiled by Numba.

An image is cut into bands of rows, one per thread; each band carries its rows through several
iterations while they are in the cache (`potts_rows`), then neighbouring bands exchange margins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from legato.nn.kernels import numba_rows, potts_rows
from legato.nn.kernels.numba_bands import (
    NUMBER,
    VECTOR,
    Array,
    Bands,
    Layout,
    aligned,
    taken,
    unit_of,
    workers,
)
from legato.nn.kernels.potts_operator import PottsCotangents, PottsSettings, make_operator

FLUSH = {torch.float32: (1e-30, 1e-18), torch.float64: (1e-290, 1e-140)}
"""Where probabilities, and cotangents scaled to unit size, become zero rather than denormal."""


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
        self.number = number = NUMBER[layout.dtype]
        self.cost = self.rows_of(cost)
        self.weights = Weights(weights, layout)
        self.tau, self.sigma = number(float(tau)), number(float(sigma))
        self.shrink = number(1 / (1 + float(tau) * settings.epsilon))
        self.tiny, self.flush = (number(value) for value in FLUSH[layout.dtype])
        self.lanes = min(layout.batch * layout.bands, layout.threads)
        self.no_image = self.room(0, layout.labels, layout.columns)
        self.no_tape = self.room(0, 0, layout.labels, layout.columns)

    def room(self, *shape: int) -> Array:
        return aligned(shape, np.dtype(self.number))

    def images(self, directions: int = 0, labels: int | None = None) -> Array:
        """Room for a field of whole images."""
        layout = self.layout
        inner = (labels or layout.labels, directions) if directions else (layout.labels,)
        return taken((layout.batch, layout.rows, *inner, layout.columns), layout.dtype)

    def lines(self, count: int, depth: int) -> Array:
        """Lines of all labels with margins: `depth` an iteration in flight, a set a lane."""
        width = self.layout.columns + 2 * numba_rows.MARGIN
        return self.room(self.lanes, count, depth, self.layout.labels, width)

    def by_rows(self, task: Callable[[int, int, int], object]) -> None:
        """Call task(image, first, last) until all rows of all images have had their turn."""
        layout = self.layout
        parts = -(-layout.threads // layout.batch) if layout.rows >= 4 * layout.threads else 1
        edges = [layout.rows * i // parts for i in range(parts + 1)]

        def part(i: int, lane: int) -> None:
            task(i // parts, edges[i % parts], edges[i % parts + 1])

        workers(part, layout.batch * parts, layout.threads)

    def rows_of(self, source: Tensor, factor: float = 1.0) -> Array:
        """factor · source (B, L[, E], *spatial) as whole images in rows."""
        layout = self.layout
        directions = source.shape[2] if source.dim() > len(layout.spatial) + 2 else 0
        target = self.images(directions)
        planes = math.prod(target.shape[2:-1])
        size = (layout.batch, planes, layout.rows, layout.spatial[-1])
        whole = source.detach().contiguous().numpy().reshape(size)
        flat = target.reshape(layout.batch, layout.rows, planes, layout.columns)

        def load(image: int, first: int, last: int) -> None:
            numba_rows.load(flat[image], first, last, whole[image], self.number(factor))

        self.by_rows(load)
        return target

    def tensor_of(self, source: Array, factor: float = 1.0) -> Tensor:
        """factor · whole images in rows as a tensor (B, L[, E], *spatial)."""
        layout = self.layout
        inner = source.shape[2:-1]
        planes = math.prod(inner)
        size = (layout.batch, planes, layout.rows, layout.spatial[-1])
        target = np.empty(size, source.dtype)
        flat = source.reshape(layout.batch, layout.rows, planes, layout.columns)

        def store(image: int, first: int, last: int) -> None:
            numba_rows.store(target[image], flat[image], first, last, self.number(factor))

        self.by_rows(store)
        return torch.from_numpy(target.reshape(layout.batch, *inner, *layout.spatial))

    def soften(self, a: Array) -> Array:
        """softmax(a) of whole images whose maximum over the labels is zero."""
        u = self.images()

        def soften(image: int, first: int, last: int) -> None:
            rows = slice(first, last)
            total = self.room(self.layout.columns)
            potts_rows.soften(u[image, rows], a[image, rows], total, self.tiny)

        self.by_rows(soften)
        return u


class Forward:
    """The iteration: the bands' a, u and b."""

    def __init__(self, sweep: Sweep, bands: Bands) -> None:
        layout = sweep.layout
        self.sweep, self.bands = sweep, bands
        self.a, self.u = bands.field(), bands.field()
        self.b = bands.field(len(layout.directions))
        self.ring = sweep.lines(bands.depth, int(layout.base[-1]))
        self.lead = sweep.lines(bands.depth, layout.reach + 1)
        self.power = sweep.room(sweep.lanes, layout.labels, layout.columns)
        self.work = sweep.room(sweep.lanes, 2, layout.columns)

    def start(self, mirror: Array | None, dual: Array | None) -> None:
        """Begin at (a⁰, b⁰), or at zero, in whole images."""
        sweep, bands = self.sweep, self.bands

        def start(i: int, lane: int) -> None:
            bands.spread(i, self.a, mirror)
            bands.spread(i, self.b, dual)
            if mirror is None:
                self.u[i] = 1 / sweep.layout.labels
                return
            rows = slice(0, bands.last[i] - bands.first[i])
            potts_rows.recentre(self.a[i, rows])
            potts_rows.soften(self.u[i, rows], self.a[i, rows], self.work[lane, 0], sweep.tiny)

        bands.each(start)

    def run(self, iterations: int, tape: Array | None, mean: Array | None) -> None:
        """Go on; tape[:, k] becomes the iterate k, from zero, and every later uᵏ adds to the mean.

        The tape holds u, or a where ε > 0: see `Reverse`.
        """
        sweep, bands, layout, w = self.sweep, self.bands, self.sweep.layout, self.sweep.weights
        mirror = sweep.settings.epsilon > 0
        if tape is not None:
            bands.each(lambda i, lane: bands.gather(i, tape[:, 0], self.a if mirror else self.u))
        for done in range(0, iterations, bands.depth):
            now = min(bands.depth, iterations - done)

            def advance(i: int, lane: int, done: int = done, now: int = now) -> None:
                image = i // layout.bands
                potts_rows.advance(
                    self.a[i], self.u[i], self.b[i], bands.first[i], layout.owned[i], now,
                    sweep.cost[image],
                    sweep.no_tape if tape is None else tape[image, done + 1 : done + 1 + now],
                    mirror, sweep.no_image if mean is None else mean[image],
                    w.of_image(image), w.zeros, w.edges,
                    sweep.tau, sweep.sigma, sweep.shrink, sweep.tiny,
                    layout.base, layout.down, layout.right, layout.across,
                    self.ring[lane], self.lead[lane], self.power[lane], self.work[lane],
                )  # fmt: skip

            bands.each(advance)
            bands.exchange(self.a, self.u, self.b)

    def gather(self, a: Array, b: Array) -> None:
        """Write a and b to whole images."""

        def gather(i: int, lane: int) -> None:
            self.bands.gather(i, a, self.a)
            self.bands.gather(i, b, self.b)

        self.bands.each(gather)


class Reverse:
    """The reverse sweep: the cotangents s of a, q of b, the last Kᵀq as g, and the gradients that
    they leave on their way.

    The gradient of τ is −Σₖ ⟨v, fᵏ + εaᵏ⁺¹⟩, with v = s/(1 + τε) and the force f = c + Kᵀ tanh b.
    Summing by parts would do without a, but weighs the terms by k, and near the solution
    they cancel: so with ε > 0 the tape holds a, not u, which underflows where a is large.
    """

    def __init__(self, sweep: Sweep, bands: Bands, s: Array, q: Array | None, u: Array) -> None:
        layout = sweep.layout
        self.sweep, self.bands = sweep, bands
        directions, labels = len(layout.directions), sweep.weights.rows.shape[1]
        self.s, self.slope = bands.field_with_margins()
        self.g, self.q = bands.field(), bands.field(directions)
        self.u = bands.field() if sweep.settings.epsilon > 0 else None
        self.cost_bar, self.weight_bar = sweep.images(), sweep.images(directions, labels)

        def start(i: int, lane: int) -> None:
            bands.spread(i, self.s, s)
            bands.spread(i, self.g, None)
            bands.spread(i, self.q, q)
            if self.u is not None:
                bands.spread(i, self.u, u)

        bands.each(start)

        def clear(image: int, first: int, last: int) -> None:
            self.cost_bar[image, first:last] = 0
            self.weight_bar[image, first:last] = 0

        sweep.by_rows(clear)
        depth = layout.reach + 1
        self.ring = sweep.lines(bands.depth, int(layout.base[-1]))
        self.lead = sweep.lines(bands.depth, depth)
        self.u_bar = sweep.room(sweep.lanes, layout.labels, layout.columns)
        self.before = sweep.room(sweep.lanes, layout.labels, layout.columns)
        self.waste = sweep.room(sweep.lanes, labels, directions, layout.columns)
        self.work = sweep.room(sweep.lanes, 6, layout.columns)
        self.sums = np.zeros((sweep.lanes, 3, layout.columns))

    def run(self, tape: Array, b: Array, mean_bar: Array | None) -> None:
        """Go back over the iterations of the tape; b, in bands, belongs to its last iterate."""
        sweep, bands, layout, w = self.sweep, self.bands, self.sweep.layout, self.sweep.weights
        nothing = sweep.room(0, layout.columns)
        for end in range(tape.shape[1] - 1, 0, -bands.depth):
            now = min(bands.depth, end)

            def retreat(i: int, lane: int, end: int = end, now: int = now) -> None:
                image = i // layout.bands
                potts_rows.retreat(
                    self.s[i], self.slope[i], self.g[i], self.q[i], b[i],
                    sweep.no_image if self.u is None else self.u[i],
                    bands.first[i], layout.owned[i], now, tape[image, end - now : end + 1],
                    sweep.no_image if mean_bar is None else mean_bar[image], nothing,
                    self.cost_bar[image], self.weight_bar[image], sweep.cost[image],
                    w.of_image(image), w.zeros, w.edges, sweep.tau, sweep.sigma, sweep.shrink,
                    sweep.number(sweep.settings.epsilon), sweep.flush, sweep.tiny,
                    layout.base, layout.down, layout.right, layout.across,
                    self.ring[lane], self.lead[lane], self.u_bar[lane],
                    self.before[lane], self.waste[lane],
                    self.work[lane], sweep.settings.to_steps, self.sums[lane],
                )  # fmt: skip

            bands.each(retreat)
            bands.exchange(self.s, self.g, self.q, b, *(() if self.u is None else (self.u,)))

    def whole(self, field: Array) -> Array:
        """A field of the bands as whole images."""
        whole = self.sweep.images(field.shape[3] if field.ndim == 5 else 0)
        self.bands.each(lambda i, lane: self.bands.gather(i, whole, field))
        return whole


class NumbaPotts:
    """The kernel, as `potts_operator` wants it."""

    def tape_shapes(
        self, cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        batch, labels, *spatial = cost.shape
        columns = -(-spatial[-1] // VECTOR) * VECTOR
        rows = math.prod(spatial[:-1])
        if settings.checkpoint:
            marks = -(-settings.iterations // settings.checkpoint)
            whole = (marks, batch, rows, labels)
            return (0,), (*whole, columns), (*whole, directions, columns)
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
        directions = len(layout.directions)
        shapes = self.tape_shapes(cost, directions, settings) if keep else ((0,),) * 3
        tape, marked_a, marked_b = (taken(shape, cost.dtype) for shape in shapes)
        mean = None
        if settings.average:
            mean = sweep.images()
            mean[...] = 0
        segment = min(settings.checkpoint or total, total) if keep else total
        forward = Forward(sweep, Bands(layout, layout.in_flight(segment, 8 + directions)))
        forward.start(*(None if t is None else sweep.rows_of(t) for t in (mirror, dual)))
        for i, start in enumerate(range(0, total, segment)):
            if marked_a.size:
                forward.gather(marked_a[i], marked_b[i])
            forward.run(min(segment, total - start), tape if tape.size else None, mean)
        a, b, u = sweep.images(), sweep.images(directions), sweep.images()
        forward.gather(a, b)
        forward.bands.each(lambda i, lane: forward.bands.gather(i, u, forward.u))
        return (
            sweep.tensor_of(a),
            sweep.tensor_of(b),
            sweep.tensor_of(u),
            cost.new_empty(0) if mean is None else sweep.tensor_of(mean, 1 / total),
            torch.from_numpy(tape),
            torch.from_numpy(marked_a),
            torch.from_numpy(marked_b),
        )

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
        layout, total, t = sweep.layout, settings.iterations, float(tau)
        directions = len(layout.directions)
        unit = unit_of(bars)
        final_a, final_b, final_u = final

        last_u = sweep.rows_of(final_u)
        s = self._arriving(sweep, bars, final_a, last_u, unit)
        q = None if bars.dual is None else sweep.rows_of(bars.dual, 1 / unit)
        mean_bar = None if bars.mean is None else sweep.rows_of(bars.mean, 1 / (unit * total))
        segment = min(settings.checkpoint or total, total)
        bands = Bands(layout, layout.in_flight(segment, 12 + 2 * directions))
        reverse = Reverse(sweep, bands, s, q, last_u)
        if settings.checkpoint:
            marked_a, marked_b = (x.numpy() for x in marked)
            forward = Forward(sweep, bands)
            steps = taken((layout.batch, segment + 1, *sweep.cost.shape[1:]), cost.dtype)
            for i in reversed(range(len(marked_a))):
                count = min(segment, total - i * segment)
                forward.start(marked_a[i], marked_b[i])
                forward.run(count, steps, None)
                reverse.run(steps[:, : count + 1], forward.b, mean_bar)
        else:
            steps = tape.numpy()
            b, whole = bands.field(directions), sweep.rows_of(final_b)
            bands.each(lambda i, lane: bands.spread(i, b, whole))
            reverse.run(steps, b, mean_bar)

        a_bar, b_bar = cost.new_empty(0), cost.new_empty(0)
        if to_mirror:
            s, u_bar = reverse.whole(reverse.s), reverse.whole(reverse.g)
            u_bar *= -sweep.sigma
            first = steps[:, 0] if settings.epsilon == 0 else sweep.soften(steps[:, 0])
            for image in range(layout.batch):
                potts_rows.through_softmax(s[image], first[image], u_bar[image])
            a_bar = sweep.tensor_of(s, unit)
        if to_dual:
            b_bar = sweep.tensor_of(reverse.whole(reverse.q), unit)
        to_sigma, edges, forces = reverse.sums.sum((0, 2)).tolist()
        if settings.epsilon == 0:
            pairs = zip(reverse.cost_bar, sweep.cost, strict=True)
            forces = sum(potts_rows.inner_product(bar, c) for bar, c in pairs)
        w = sweep.weights
        for bar in reverse.weight_bar:
            potts_rows.keep_edges(bar, w.edges, w.columns)
        return (
            sweep.tensor_of(reverse.cost_bar, -t * unit),
            sweep.tensor_of(reverse.weight_bar, unit).sum_to_size(w.shape),
            tau.new_tensor(-(edges / t + forces) * unit),
            sigma.new_tensor(to_sigma * unit),
            a_bar,
            b_bar,
        )

    @staticmethod
    def _arriving(
        sweep: Sweep, bars: PottsCotangents, final_a: Tensor, u: Array, unit: float
    ) -> Array:
        """The cotangent of the last a, divided by the unit: of a itself and through u."""
        a = None if bars.mirror is None else sweep.rows_of(final_a)
        s = None if bars.mirror is None else sweep.rows_of(bars.mirror, 1 / unit)
        u_bar = None if bars.probabilities is None else sweep.rows_of(bars.probabilities, 1 / unit)
        if s is None:
            s = sweep.images()
            s[...] = 0

        def collect(image: int, first: int, last: int) -> None:
            rows = slice(first, last)
            if a is not None:
                potts_rows.through_maximum(s[image, rows], a[image, rows])
            if u_bar is not None:
                potts_rows.through_softmax(s[image, rows], u[image, rows], u_bar[image, rows])

        sweep.by_rows(collect)
        return s


potts = make_operator("numba", NumbaPotts())
