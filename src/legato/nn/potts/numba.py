"""The Potts iteration and its gradient on the CPU, compiled by Numba.

An image is cut into bands of rows, one per thread; each band carries its rows through several
iterations while they are in the cache (`rows`), then neighbouring bands exchange margins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from legato.nn.fused.bands import Array, Bands, Layout, aligned, padded, taken
from legato.nn.fused.images import Images, unit_of, weights_in_rows
from legato.nn.fused.operator import ABSENT, Like, Record, Tensors, register
from legato.nn.fused.unrolling import sections
from legato.nn.potts import rows
from legato.nn.potts.model import PottsKernel, PottsSettings, dual_shape, potts_function

FLUSH_BELOW = {torch.float32: (1e-30, 1e-18), torch.float64: (1e-290, 1e-140)}
"""Where probabilities, and cotangents scaled to unit size, become zero rather than denormal."""


class Weights:
    """Weights as rows. Of the broadcast axes only the last is written out; columns without a
    neighbour have weight zero, rows without one have a negative index in `edges`."""

    def __init__(self, weights: Tensor, layout: Layout) -> None:
        sizes = (-1, -1, len(layout.directions), *(-1,) * len(layout.spatial))
        self.rows = weights_in_rows(weights.expand(sizes), layout)
        self.columns = layout.column_has_neighbour.astype(self.rows.dtype)
        self.rows *= self.columns[:, None]
        index = np.arange(layout.rows) % self.rows.shape[3]
        self.edges = np.where(layout.row_has_neighbour, index, -1)
        self.zeros = aligned((layout.columns,), self.rows.dtype)


class Sweep(Images):
    """What the forward and the reverse sweep share: the problem in rows, and room to work."""

    def __init__(self, tensors: Tensors, settings: PottsSettings) -> None:
        cost, weights, tau, sigma, *_ = tensors
        batch, labels, *spatial = cost.shape
        threads = torch.get_num_threads()
        layout = Layout(batch, labels, tuple(spatial), settings.directions, cost.dtype, threads)
        super().__init__(layout)
        self.settings = settings
        self.cost = self.rows_of(cost)
        self.weights = Weights(weights, layout)
        self.tau, self.sigma = float(tau), float(sigma)
        self.tiny = self.number(FLUSH_BELOW[layout.dtype][0])
        # With ε > 0 the tape holds a, not u, which underflows where a is large: see `Reverse`.
        self.tape_mirror = settings.epsilon > 0
        self.no_image = self.room(0, labels, layout.columns)
        self.no_tape = self.room(0, 0, labels, layout.columns)

    def problem(self, image: int) -> rows.Problem:
        """What the row kernels see of an image."""
        layout, w = self.layout, self.weights
        numbers = (
            self.tau, self.sigma, 1 / (1 + self.tau * self.settings.epsilon),
            self.settings.epsilon, *FLUSH_BELOW[layout.dtype],
        )  # fmt: skip
        return rows.Problem(
            self.cost[image], w.rows[image % w.rows.shape[0]], w.zeros, w.edges,
            layout.base, layout.down, layout.right, layout.across, *map(self.number, numbers),
        )  # fmt: skip

    def soften(self, a: Array) -> Array:
        """softmax(a) of whole images whose maximum over the labels is zero."""
        u = self.whole()

        def soften(image: int, first: int, last: int) -> None:
            some = slice(first, last)
            rows.soften(u[image, some], a[image, some], self.room(self.layout.columns), self.tiny)

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
        self.lines = sweep.room(sweep.lanes, 2, layout.columns)

    def start(self, mirror: Array | None, dual: Array | None) -> None:
        """Begin at (a⁰, b⁰), or at zero, in whole images."""
        sweep, bands = self.sweep, self.bands
        bands.fill((self.a, mirror), (self.b, dual))

        def soften(i: int, lane: int) -> None:
            if mirror is None:
                self.u[i] = 1 / sweep.layout.labels
                return
            some = slice(0, bands.last[i] - bands.first[i])
            rows.recentre(self.a[i, some])
            rows.soften(self.u[i, some], self.a[i, some], self.lines[lane, 0], sweep.tiny)

        bands.each(soften)

    def run(self, iterations: int, tape: Array | None, mean: Array | None) -> None:
        """Go on; tape[:, k] becomes the iterate k, from zero, and every later uᵏ adds to the mean.

        The tape holds u, or a with `Sweep.tape_mirror`.
        """
        sweep, bands = self.sweep, self.bands
        if tape is not None:
            bands.gather((tape[:, 0], self.a if sweep.tape_mirror else self.u))
        for done, now in sections(iterations, bands.depth):

            def steps(i: int, lane: int, done: int = done, now: int = now) -> None:
                image = i // sweep.layout.bands
                rows.forward_steps(
                    rows.Iterates(self.a[i], self.u[i], self.b[i]), sweep.problem(image),
                    bands.span(i, now),
                    sweep.no_tape if tape is None else tape[image, done + 1 : done + 1 + now],
                    sweep.tape_mirror, sweep.no_image if mean is None else mean[image],
                    rows.ForwardRoom(
                        self.ring[lane], self.lead[lane], self.power[lane], self.lines[lane]
                    ),
                )  # fmt: skip

            bands.each(steps)
            bands.exchange(self.a, self.u, self.b)


class Reverse:
    """The reverse sweep: the cotangents s of a, q of b, the last Kᵀq as g, and the gradients that
    they leave on their way.

    The gradient of τ is −Σₖ ⟨v, fᵏ + εaᵏ⁺¹⟩, with v = s/(1 + τε) and the force f = c + Kᵀ tanh b.
    Summing by parts would do without a, but weighs the terms by k, and near the solution
    they cancel: so with ε > 0 the tape holds a.
    """

    def __init__(self, sweep: Sweep, bands: Bands, s: Array, q: Array | None, u: Array) -> None:
        layout = sweep.layout
        self.sweep, self.bands = sweep, bands
        directions, labels = len(layout.directions), sweep.weights.rows.shape[1]
        self.s, self.slope = bands.field_with_margins()
        self.g, self.q = bands.field(), bands.field(directions)
        self.u = bands.field() if sweep.tape_mirror else None
        self.cost_bar, self.weight_bar = sweep.whole(), sweep.whole(labels, directions)
        bands.fill((self.s, s), (self.g, None), (self.q, q))
        if self.u is not None:
            bands.fill((self.u, u))
        sweep.clear(self.cost_bar, self.weight_bar)
        self.ring = sweep.lines(bands.depth, int(layout.base[-1]))
        self.lead = sweep.lines(bands.depth, layout.reach + 1)
        self.u_bar = sweep.room(sweep.lanes, layout.labels, layout.columns)
        self.before = sweep.room(sweep.lanes, layout.labels, layout.columns)
        self.waste = sweep.room(sweep.lanes, labels, directions, layout.columns)
        self.lines = sweep.room(sweep.lanes, 6, layout.columns)
        self.sums = np.zeros((sweep.lanes, 3, layout.columns))

    def run(self, tape: Array, b: Array, mean_bar: Array | None, to_steps: bool) -> None:
        """Go back over the iterations of the tape; b, in bands, belongs to its last iterate."""
        sweep, bands = self.sweep, self.bands
        for end in range(tape.shape[1] - 1, 0, -bands.depth):
            now = min(bands.depth, end)

            def steps(i: int, lane: int, end: int = end, now: int = now) -> None:
                image = i // sweep.layout.bands
                rows.reverse_steps(
                    rows.Cotangents(
                        self.s[i], self.slope[i], self.g[i], self.q[i], b[i],
                        sweep.no_image if self.u is None else self.u[i],
                    ),
                    sweep.problem(image), bands.span(i, now), tape[image, end - now : end + 1],
                    sweep.no_image if mean_bar is None else mean_bar[image],
                    rows.Gradients(
                        self.cost_bar[image], self.weight_bar[image], self.waste[lane],
                        self.sums[lane],
                    ),
                    to_steps,
                    rows.ReverseRoom(
                        self.ring[lane], self.lead[lane], self.u_bar[lane], self.before[lane],
                        self.lines[lane],
                    ),
                )  # fmt: skip

            bands.each(steps)
            bands.exchange(self.s, self.g, self.q, b, *(() if self.u is None else (self.u,)))


class NumbaPotts(PottsKernel):
    """The kernel. Its tape is that of u (or a), and the marked a and b."""

    name = "potts_numba"
    title = "numba kernel of the Potts layer"
    needed = 4

    def like(self, tensors: Tensors, settings: PottsSettings, keep: bool) -> list[Like]:
        cost = tensors[0]
        directions = len(settings.directions)
        mean = cost.shape if settings.average else ABSENT
        tape = self._tape_shapes(cost, directions, settings) if keep else (ABSENT,) * 3
        dual = dual_shape(cost, directions)
        return [(s, cost.dtype) for s in (cost.shape, dual, cost.shape, mean, *tape)]

    @staticmethod
    def _tape_shapes(
        cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], ...]:
        batch, labels, *spatial = cost.shape
        columns, height = padded(spatial[-1], cost.dtype), math.prod(spatial[:-1])
        if settings.checkpoint:
            marks = len(sections(settings.iterations, settings.checkpoint))
            whole = (marks, batch, height, labels)
            return ABSENT, (*whole, columns), (*whole, directions, columns)
        return (batch, settings.iterations + 1, height, labels, columns), ABSENT, ABSENT

    def forward(
        self, tensors: Tensors, settings: PottsSettings, keep: bool
    ) -> tuple[Tensors, Tensors]:
        cost, *_, mirror, dual = tensors
        sweep = Sweep(tensors, settings)
        layout, total = sweep.layout, settings.iterations
        directions = len(layout.directions)
        shapes = self._tape_shapes(cost, directions, settings) if keep else (ABSENT,) * 3
        tape, marked_a, marked_b = (taken(shape, cost.dtype) for shape in shapes)
        mean = None
        if settings.average:
            mean = sweep.whole()
            sweep.clear(mean)
        segment = min(settings.checkpoint or total, total) if keep else total
        forward = Forward(sweep, Bands(layout, layout.in_flight(segment, 8 + directions)))
        forward.start(*(None if t is None else sweep.rows_of(t) for t in (mirror, dual)))
        for i, (_, count) in enumerate(sections(total, segment)):
            if marked_a.size:
                forward.bands.gather((marked_a[i], forward.a), (marked_b[i], forward.b))
            forward.run(count, tape if tape.size else None, mean)
        a, b, u = (forward.bands.whole(field) for field in (forward.a, forward.b, forward.u))
        outputs = (
            sweep.tensor_of(a, cost.shape),
            sweep.tensor_of(b, dual_shape(cost, directions)),
            sweep.tensor_of(u, cost.shape),
            None if mean is None else sweep.tensor_of(mean, cost.shape, 1 / total),
        )
        return outputs, [
            torch.from_numpy(t) if t.size else None for t in (tape, marked_a, marked_b)
        ]

    def reverse(self, bars: Tensors, record: Record, wanted: Sequence[bool]) -> Tensors:
        tensors, outputs, tape, settings = record
        cost, weights, tau, sigma, *_ = tensors
        sweep = Sweep(tensors, settings)
        layout, total = sweep.layout, settings.iterations
        directions, to_steps = len(layout.directions), wanted[2] or wanted[3]
        _, dual_bar, _, mean_bar = bars
        unit = unit_of(_in_effect(bars, outputs))
        last_u = sweep.rows_of(outputs[2])
        s = self._seed_cotangents(sweep, bars, outputs, last_u, unit)
        q = None if dual_bar is None else sweep.rows_of(dual_bar, 1 / unit)
        extra = None if mean_bar is None else sweep.rows_of(mean_bar, 1 / (unit * total))
        segment = min(settings.checkpoint or total, total)
        bands = Bands(layout, layout.in_flight(segment, 12 + 2 * directions))
        reverse = Reverse(sweep, bands, s, q, last_u)
        if settings.checkpoint:
            marked_a, marked_b = (t.numpy() for t in tape[1:])
            forward = Forward(sweep, bands)
            steps = taken((layout.batch, segment + 1, *sweep.cost.shape[1:]), cost.dtype)
            for i, (_, count) in reversed(list(enumerate(sections(total, segment)))):
                forward.start(marked_a[i], marked_b[i])
                forward.run(count, steps, None)
                reverse.run(steps[:, : count + 1], forward.b, extra, to_steps)
        else:
            steps = tape[0].numpy()
            b = bands.field(directions)
            bands.fill((b, sweep.rows_of(outputs[1])))
            reverse.run(steps, b, extra, to_steps)
        a_bar = self._to_start(reverse, steps[:, 0], cost.shape, unit) if wanted[4] else None
        b_bar = None
        if wanted[5]:
            b_bar = sweep.tensor_of(bands.whole(reverse.q), dual_shape(cost, directions), unit)
        to_sigma, edges, forces = reverse.sums.sum((0, 2)).tolist()
        if settings.epsilon == 0:
            pairs = zip(reverse.cost_bar, sweep.cost, strict=True)
            forces = sum(rows.inner_product(bar, c) for bar, c in pairs)
        w, weight_bar = sweep.weights, reverse.weight_bar
        for bar in weight_bar:
            rows.keep_edges(bar, w.edges, w.columns)
        shape = (cost.shape[0], *weight_bar.shape[2:-1], *cost.shape[2:])
        return (
            sweep.tensor_of(reverse.cost_bar, cost.shape, -sweep.tau * unit),
            sweep.tensor_of(weight_bar, shape, unit).sum_to_size(weights.shape),
            tau.new_tensor(-(edges / sweep.tau + forces) * unit),
            sigma.new_tensor(to_sigma * unit),
            a_bar,
            b_bar,
        )

    @staticmethod
    def _seed_cotangents(
        sweep: Sweep, bars: Tensors, outputs: Tensors, u: Array, unit: float
    ) -> Array:
        """The cotangent of the last a, divided by the unit: of a itself and through u."""
        mirror_bar, _, u_bar, _ = bars
        a, through_u = None, None if u_bar is None else sweep.rows_of(u_bar, 1 / unit)
        if mirror_bar is None:
            s = sweep.whole()
            sweep.clear(s)
        else:
            a, s = sweep.rows_of(outputs[0]), sweep.rows_of(mirror_bar, 1 / unit)

        def collect(image: int, first: int, last: int) -> None:
            some = slice(first, last)
            if a is not None:
                rows.through_maximum(s[image, some], a[image, some])
            if through_u is not None:
                rows.through_softmax(s[image, some], u[image, some], through_u[image, some])

        sweep.by_rows(collect)
        return s

    @staticmethod
    def _to_start(reverse: Reverse, first: Array, shape: Sequence[int], unit: float) -> Tensor:
        """The gradient of a⁰, given the first iterate on the tape."""
        sweep = reverse.sweep
        s, u_bar = reverse.bands.whole(reverse.s), reverse.bands.whole(reverse.g)
        u_bar *= -sweep.number(sweep.sigma)
        u = sweep.soften(first) if sweep.tape_mirror else first
        for image in range(sweep.layout.batch):
            rows.through_softmax(s[image], u[image], u_bar[image])
        return sweep.tensor_of(s, shape, unit)


def _in_effect(bars: Tensors, outputs: Tensors) -> list[Tensor | None]:
    """The cotangents, that of the mean times the mean: of its logarithm's it has the size.

    A cotangent of 1/mean at one saturated pixel would otherwise set the scale at which those of all
    other pixels are flushed.
    """
    *others, mean_bar = bars
    if mean_bar is not None:
        mean_bar = torch.from_numpy(mean_bar.numpy() * outputs[3].numpy())
    return [*others, mean_bar]


potts = potts_function(register(NumbaPotts()))
