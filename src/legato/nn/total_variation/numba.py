"""Total variation and its gradient on the CPU, compiled by Numba.

Bands of rows as in `fused.bands`. Channels that are not coupled are images of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from legato.nn.fused.bands import Array, Bands, Layout, padded, pool, taken
from legato.nn.fused.images import Images, unit_of, weights_in_rows
from legato.nn.fused.operator import ABSENT, FusedKernel, Like, Record, Tensors, register
from legato.nn.fused.unrolling import sections
from legato.nn.neighbourhood import offsets
from legato.nn.total_variation import rows
from legato.nn.total_variation.growth import warn_if_grown
from legato.nn.total_variation.model import (
    TVSettings,
    dual_shape,
    momentum,
    step_size,
    tv_function,
)

FLUSH_BELOW = {torch.float32: 1e-30, torch.float64: 1e-290}
"""Where cotangents scaled to unit size become zero rather than denormal."""

LINES_BETWEEN_ROWS = 2
"""Lines of p, down and across, from a row that is read to the one above, which is written."""


class Sweep(Images):
    """The problem in rows: λ and the image, and how both are shared out."""

    def __init__(self, image: Tensor, weight: Tensor, settings: TVSettings) -> None:
        batch, channels, *spatial = image.shape
        joint = settings.channels and channels > 1
        self.of_batch = 1 if joint else channels
        self.channels = channels if joint else 1
        images, threads = batch * self.of_batch, torch.get_num_threads()
        super().__init__(
            Layout(
                images,
                self.channels,
                tuple(spatial),
                offsets(len(spatial)),
                image.dtype,
                threads,
                LINES_BETWEEN_ROWS,
            )
        )
        self.settings = settings
        self.directions = len(spatial)
        self.alpha = step_size(self.directions)
        self.betas = np.array(momentum(settings.iterations, settings.first), self.number)
        self.grouped = settings.coupling.is_grouped(channels)
        self.image = self.rows_of(image)
        self.limits = weights_in_rows(weight, self.layout)
        self.zeros = self.room(self.layout.columns)
        self.no_codes = np.zeros((1, 1, self.layout.columns), np.uint8)
        self.no_points = self.room(1, 1, self.channels, self.directions, self.layout.columns)

    def problem(self, image: int) -> rows.Problem:
        """What the row kernels see of an image."""
        b, c = divmod(image, self.of_batch)
        layout, limits = self.layout, self.limits
        return rows.Problem(
            self.image[image], limits[b % limits.shape[0], c % limits.shape[1]],
            layout.row_has_neighbour, layout.down, layout.across, layout.spatial[-1], self.zeros,
            self.number(self.alpha), self.number(FLUSH_BELOW[layout.dtype]), bool(self.grouped),
            not self.settings.directions,
        )  # fmt: skip

    def edges_of(self, source: Tensor, factor: float) -> Array:
        """factor · source (B, C, E, *spatial) in rows, zero where there is no neighbour."""
        target, layout = self.rows_of(source, factor), self.layout

        def keep(image: int, first: int, last: int) -> None:
            edges = layout.row_has_neighbour[:, first:last]
            rows.keep_edges(target[image, first:last], edges, layout.spatial[-1], layout.across)

        self.by_rows(keep)
        return target

    def tape(self, iterations: int) -> Array:
        """Room for what the reverse sweep needs to know of that many iterations."""
        layout = self.layout
        shape: tuple[int, ...] = (layout.batch, iterations, layout.rows)
        if self.grouped:
            shape = (*shape, self.channels, self.directions, layout.columns)
            return taken(shape, layout.dtype)
        return cast(Array, pool.take((*shape, layout.columns), np.dtype(np.uint8)))

    def part(self, tape: Array | None, image: int, first: int, count: int) -> rows.Tape:
        """The tape of some iterations of an image."""
        if tape is None:
            return rows.Tape(self.no_codes, self.no_points)
        some = tape[image, first : first + count]
        if self.grouped:
            return rows.Tape(self.no_codes, some)
        return rows.Tape(some, self.no_points)


class _InBands:
    """Two fields of all bands, (p, p₋) or their cotangents, and room for the threads."""

    def __init__(self, sweep: Sweep, bands: Bands) -> None:
        self.sweep, self.bands = sweep, bands
        self.now, self.before = (bands.field(sweep.directions) for _ in range(2))
        self.ring = sweep.lines(bands.depth, sweep.layout.reach + 1)
        self.sums = sweep.room(sweep.lanes, 2, sweep.directions, sweep.layout.columns)

    def room(self, lane: int) -> rows.Room:
        return rows.Room(self.ring[lane], self.sums[lane])

    def start(self, now: Array | None, before: Array | None) -> None:
        """Fill both fields from whole images, or with zeros."""
        self.bands.fill((self.now, now), (self.before, before))


class Forward(_InBands):
    """The iteration: the bands' p and p₋."""

    def run(self, first: int, iterations: int, tape: Array | None) -> None:
        """Iterations first, first + 1, … of this call; they fill the tape from its beginning."""
        sweep, bands = self.sweep, self.bands
        for done, now in sections(iterations, bands.depth):

            def steps(i: int, lane: int, done: int = done, now: int = now) -> None:
                image = i // sweep.layout.bands
                rows.forward_steps(
                    self.now[i], self.before[i], bands.span(i, now),
                    sweep.betas[first + done : first + done + now], sweep.problem(image),
                    sweep.part(tape, image, done, now), tape is not None, self.room(lane),
                )  # fmt: skip

            bands.each(steps)
            if now % 2 == 1:
                self.now, self.before = self.before, self.now
            bands.exchange(self.now, self.before)


class Reverse(_InBands):
    """The reverse sweep: the cotangents q of p and of p₋, and the gradients they leave."""

    def __init__(self, sweep: Sweep, bands: Bands, to_weight: bool) -> None:
        super().__init__(sweep, bands)
        layout, kinds = sweep.layout, sweep.limits.shape[2]
        self.to_weight = to_weight
        self.image_bar = sweep.whole()
        # Grouped entries compute the gradient of λ on their way, so it needs a place in any case.
        height = layout.rows if to_weight or sweep.grouped else 1
        self.weight_bar = taken((layout.batch, height, kinds, layout.columns), layout.dtype)
        self.waste = sweep.room(sweep.lanes, kinds, layout.columns)
        sweep.clear(self.image_bar, self.weight_bar)

    def run(self, first: int, iterations: int, tape: Array) -> None:
        """Back over the iterations first, …, first + iterations − 1 that the tape holds."""
        sweep, bands = self.sweep, self.bands
        for end in range(iterations, 0, -bands.depth):
            now = min(bands.depth, end)

            def steps(i: int, lane: int, end: int = end, now: int = now) -> None:
                image = i // sweep.layout.bands
                rows.reverse_steps(
                    self.now[i], self.before[i], bands.span(i, now),
                    sweep.betas[first + end - now : first + end], sweep.problem(image),
                    sweep.part(tape, image, end - now, now),
                    rows.Gradients(
                        self.image_bar[image], self.weight_bar[image], self.waste[lane]
                    ),
                    self.to_weight, self.room(lane),
                )  # fmt: skip

            bands.each(steps)
            bands.exchange(self.now, self.before)


class NumbaTV(FusedKernel[TVSettings]):
    """The kernel. Its tape is that of the projections, and the marked p and p₋."""

    name = "tv_numba"
    title = "numba kernel of total variation"
    settings = TVSettings
    outputs, needed = 3, 0

    def like(self, tensors: Tensors, settings: TVSettings, keep: bool) -> list[Like]:
        image = tensors[0]
        batch, channels, *spatial = image.shape
        joint = settings.channels and channels > 1
        grouped = settings.coupling.is_grouped(channels)
        images, inner = (batch, channels) if joint else (batch * channels, 1)
        height, columns = (
            math.prod(spatial[:-1]),
            padded(spatial[-1], image.dtype, LINES_BETWEEN_ROWS),
        )
        line = (inner, len(spatial), columns)
        tape: Sequence[int] = ABSENT
        marks: Sequence[int] = ABSENT
        if keep and settings.checkpoint:
            count = len(sections(settings.iterations, settings.checkpoint))
            marks = (count, 2, images, height, *line)
        elif keep:
            tape = (images, settings.iterations, height, *(line if grouped else line[2:]))
        field = (dual_shape(image), image.dtype)
        kind = image.dtype if grouped or tape == ABSENT else torch.uint8
        return [(image.shape, image.dtype), field, field, (tape, kind), (marks, image.dtype)]

    def forward(
        self, tensors: Tensors, settings: TVSettings, keep: bool
    ) -> tuple[Tensors, Tensors]:
        image, weight, dual, previous = tensors
        sweep = Sweep(image, weight, settings)
        layout, total = sweep.layout, settings.iterations
        segment = min(settings.checkpoint or total, total) if keep else total
        bands = Bands(layout, layout.in_flight(segment, 2 + 2 * sweep.directions))
        forward = Forward(sweep, bands)
        forward.start(*(None if t is None else sweep.rows_of(t) for t in (dual, previous)))
        tape = sweep.tape(total) if keep and not settings.checkpoint else None
        marks = taken(self.like(tensors, settings, keep)[4][0], image.dtype)
        for i, (start, count) in enumerate(sections(total, segment)):
            if marks.size:
                bands.gather((marks[i, 0], forward.now), (marks[i, 1], forward.before))
            forward.run(start, count, tape)
        u, p, before = sweep.whole(), bands.whole(forward.now), bands.whole(forward.before)

        def finish(i: int, first: int, last: int) -> None:
            rows.residual(u[i], sweep.image[i], p[i], first, last, layout.down, layout.across)

        sweep.by_rows(finish)
        outputs = [
            sweep.tensor_of(u, image.shape),
            *(sweep.tensor_of(field, dual_shape(image)) for field in (p, before)),
        ]
        kept = (None if tape is None else torch.from_numpy(tape), torch.from_numpy(marks))
        return outputs, kept if marks.size else (kept[0], None)

    def reverse(self, bars: Tensors, record: Record, wanted: Sequence[bool]) -> Tensors:
        tensors, _, tape, settings = record
        image, weight, *_ = tensors
        sweep = Sweep(image, weight, settings)
        layout, total, unit = sweep.layout, settings.iterations, unit_of(bars)
        segment = min(settings.checkpoint or total, total)
        bands = Bands(layout, layout.in_flight(segment, 3 + 2 * sweep.directions))
        reverse = Reverse(sweep, bands, wanted[1])
        reverse.start(*self._seed_cotangents(sweep, bars, unit))
        taped, marks = tape
        if marks is not None:
            forward = Forward(sweep, bands)
            saved, steps = marks.numpy(), sweep.tape(segment)
            for i, (start, count) in reversed(list(enumerate(sections(total, segment)))):
                forward.start(*saved[i])
                forward.run(start, count, steps)
                reverse.run(start, count, steps)
        elif taped is not None:
            reverse.run(0, total, taped.numpy())
        image_bar = sweep.tensor_of(reverse.image_bar, image.shape, sweep.alpha * unit)
        if bars[0] is not None:
            image_bar += bars[0]
        warn_if_grown(bars, image_bar, total)
        weight_bar = None
        if wanted[1]:
            shape = (image.shape[0], sweep.of_batch, weight.shape[2], *image.shape[2:])
            weight_bar = sweep.tensor_of(reverse.weight_bar, shape, unit)
            if weight_bar.shape != weight.shape:
                weight_bar = weight_bar.double().sum_to_size(weight.shape).to(weight.dtype)
        starts = (
            sweep.tensor_of(bands.whole(field), dual_shape(image), unit) if yes else None
            for field, yes in zip((reverse.now, reverse.before), wanted[2:], strict=True)
        )
        return image_bar, weight_bar, *starts

    @staticmethod
    def _seed_cotangents(
        sweep: Sweep, bars: Tensors, unit: float
    ) -> tuple[Array | None, Array | None]:
        """Those of the last p, directly and through u = y − ∇ᵀp, and of the p₋ before it."""
        u_bar, dual_bar, previous_bar = bars
        layout = sweep.layout
        q, before = (
            None if bar is None else sweep.edges_of(bar, 1 / unit)
            for bar in (dual_bar, previous_bar)
        )
        if u_bar is None:
            return q, before
        if q is None:
            q = sweep.whole(sweep.channels, sweep.directions)
            sweep.clear(q)
        arriving, seeded = sweep.rows_of(u_bar, 1 / unit), q

        def push(i: int, first: int, last: int) -> None:
            rows.push_difference(
                seeded[i], arriving[i], layout.spatial[-1], layout.row_has_neighbour, first, last,
                layout.down, layout.across,
            )  # fmt: skip

        sweep.by_rows(push)
        return q, before


tv = tv_function(register(NumbaTV()))
