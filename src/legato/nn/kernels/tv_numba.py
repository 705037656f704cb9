"""Total variation and its gradient on the CPU, compiled by Numba.

Bands of rows as in `numba_bands`. Channels that are not coupled are images of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from legato.nn.kernels import numba_rows, tv_rows
from legato.nn.kernels.numba_bands import (
    NUMBER,
    VECTOR,
    Array,
    Bands,
    Layout,
    aligned,
    pool,
    taken,
    unit_of,
    workers,
)
from legato.nn.kernels.tv_iterates import momentum, step_size
from legato.nn.kernels.tv_operator import TVSettings, make_operator

FLUSH = {torch.float32: 1e-30, torch.float64: 1e-290}
"""Where cotangents scaled to unit size become zero rather than denormal."""

PAGE, APART = 4096, 256
"""Bytes: rows lie at least so far apart, but for whole pages."""


def padded(width: int, dtype: torch.dtype) -> int:
    """Columns for so many pixels: whole vectors, and rows of p that do not lie a page apart.

    A load and a recent store whose addresses differ by a multiple of a page wait for each other,
    and every row is written while the one above it is read.
    """
    columns = -(-width // VECTOR) * VECTOR
    while (row := 2 * columns * dtype.itemsize) > PAGE - APART and (
        min(row % PAGE, -row % PAGE) < APART
    ):
        columns += VECTOR
    return columns


class Rows(Layout):
    """How images lie in rows here."""

    @cached_property
    def columns(self) -> int:
        return padded(self.spatial[-1], self.dtype)


class Problem:
    """The problem in rows: λ and the image, and how both are shared out."""

    def __init__(self, image: Tensor, weight: Tensor, settings: TVSettings) -> None:
        batch, channels, *spatial = image.shape
        self.settings = settings
        self.joint = settings.channels and channels > 1
        self.images = batch if self.joint else batch * channels
        self.channels = channels if self.joint else 1
        self.of_batch = 1 if self.joint else channels
        self.layout = layout = Rows(
            self.images, self.channels, tuple(spatial), 4, image.dtype, torch.get_num_threads()
        )
        self.directions = len(spatial)
        self.width = spatial[-1]
        self.dtype = np.dtype(NUMBER[image.dtype])
        self.alpha = self.dtype.type(step_size(self.directions))
        self.betas = np.array(momentum(settings.iterations, settings.first), self.dtype)
        self.flush = self.dtype.type(FLUSH[image.dtype])
        # Over one channel and by direction the norms are absolute values.
        self.grouped = settings.directions or self.joint
        self.by_direction = not settings.directions
        self.edges = layout.row_has_neighbour
        self.zeros = aligned((layout.columns,), self.dtype)
        self.limits = self._limits(weight)
        self.no_codes = np.zeros((1, 1, layout.columns), np.uint8)
        self.no_points = aligned((1, 1, self.channels, self.directions, layout.columns), self.dtype)

    def _limits(self, weight: Tensor) -> Array:
        """λ as (b, c, e, rows or 1, columns), zero in the padding."""
        values = weight.detach().numpy()
        constant = all(size == 1 for size in values.shape[3:-1])
        between = (1,) if constant else self.layout.spatial[:-1]
        if constant:
            values = values.reshape(*values.shape[:3], 1, values.shape[-1])
        full = np.broadcast_to(values, (*values.shape[:3], *between, self.width))
        rows = aligned((*full.shape[:3], math.prod(between), self.layout.columns), self.dtype)
        rows[..., : self.width] = full.reshape(*rows.shape[:-1], self.width)
        return rows

    def limits_of(self, image: int) -> Array:
        b, c = divmod(image, self.of_batch)
        return self.limits[b % self.limits.shape[0], c % self.limits.shape[1]]

    def whole(self, directions: int = 0) -> Array:
        """Room for a field of whole images in rows."""
        layout = self.layout
        inner = (self.channels, directions) if directions else (self.channels,)
        return taken((self.images, layout.rows, *inner, layout.columns), layout.dtype)

    def by_rows(self, task: Callable[[int, int, int], object]) -> None:
        """Call task(image, first, last) until all rows of all images have had their turn."""
        layout = self.layout
        parts = -(-layout.threads // self.images) if layout.rows >= 4 * layout.threads else 1
        edges = [layout.rows * i // parts for i in range(parts + 1)]

        def part(i: int, lane: int) -> None:
            task(i // parts, edges[i % parts], edges[i % parts + 1])

        workers(part, self.images * parts, layout.threads)

    def rows_of(self, source: Tensor, factor: float = 1.0, *, edges: bool = False) -> Array:
        """factor · source (B, C[, E], *spatial) in rows; with `edges` zero without neighbours."""
        layout = self.layout
        fields = self.directions if source.dim() > self.directions + 2 else 0
        target = self.whole(fields)
        planes = self.channels * max(fields, 1)
        whole = source.detach().contiguous().numpy()
        whole = whole.reshape(self.images, planes, layout.rows, self.width)
        flat = target.reshape(self.images, layout.rows, planes, layout.columns)

        def load(image: int, first: int, last: int) -> None:
            numba_rows.load(flat[image], first, last, whole[image], self.dtype.type(factor))
            if edges:
                tv_rows.keep_edges(
                    target[image, first:last], self.edges[:, first:last], self.width,
                    layout.across,
                )  # fmt: skip

        self.by_rows(load)
        return target

    def tensor_of(self, source: Array, shape: Sequence[int], factor: float = 1.0) -> Tensor:
        """factor · whole images in rows as a tensor of that shape."""
        layout = self.layout
        planes = math.prod(source.shape[2:-1])
        target = taken((self.images, planes, layout.rows, self.width), layout.dtype)
        flat = source.reshape(self.images, layout.rows, planes, layout.columns)

        def store(image: int, first: int, last: int) -> None:
            numba_rows.store(target[image], flat[image], first, last, self.dtype.type(factor))

        self.by_rows(store)
        # Reshaped by torch: the memory is given back when `target` itself is no longer held.
        return torch.from_numpy(target).reshape(tuple(shape))

    def tape(self, iterations: int) -> Array:
        """Room for what the reverse sweep needs to know of that many iterations."""
        layout = self.layout
        shape: tuple[int, ...] = (self.images, iterations, layout.rows)
        if self.grouped:
            shape = (*shape, self.channels, self.directions, layout.columns)
            return taken(shape, layout.dtype)
        return pool.take((*shape, layout.columns), np.dtype(np.uint8))

    def part(self, tape: Array | None, image: int, first: int, count: int) -> tuple[Array, Array]:
        """Codes and points of some iterations of an image."""
        if tape is None:
            return self.no_codes, self.no_points
        some = tape[image, first : first + count]
        return (self.no_codes, some) if self.grouped else (some, self.no_points)

    def ring(self, lanes: int, depth: int) -> Array:
        """Lines with margins, as many as the reach of ∇ asks for, for each iteration in flight."""
        columns = self.layout.columns + 2 * numba_rows.MARGIN
        shape = (lanes, depth, self.layout.reach + 1, self.channels, columns)
        return aligned(shape, self.dtype)

    def sums(self, lanes: int) -> Array:
        return aligned((lanes, 2, self.directions, self.layout.columns), self.dtype)


class Forward:
    """The iteration: the bands' p and p₋."""

    def __init__(self, problem: Problem, bands: Bands, image: Array) -> None:
        self.problem, self.bands, self.image = problem, bands, image
        self.p, self.before = (bands.field(problem.directions) for _ in range(2))
        self.ring = problem.ring(bands.lanes, bands.depth)
        self.sums = problem.sums(bands.lanes)

    def start(self, p: Array | None, before: Array | None) -> None:
        def start(i: int, lane: int) -> None:
            self.bands.spread(i, self.p, p)
            self.bands.spread(i, self.before, before)

        self.bands.each(start)

    def run(self, first: int, iterations: int, tape: Array | None) -> None:
        """Iterations first, first + 1, … of this call; they fill the tape from its beginning."""
        problem, bands, layout = self.problem, self.bands, self.problem.layout
        for done in range(0, iterations, bands.depth):
            now = min(bands.depth, iterations - done)
            betas = problem.betas[first + done : first + done + now]

            def advance(
                i: int, lane: int, done: int = done, now: int = now, betas: Array = betas
            ) -> None:
                image = i // layout.bands
                tv_rows.advance(
                    self.p[i], self.before[i], bands.first[i], layout.owned[i], problem.width,
                    self.image[image], problem.limits_of(image), problem.edges, betas,
                    problem.alpha, layout.down, layout.across,
                    *problem.part(tape, image, done, now), tape is not None,
                    problem.grouped, problem.by_direction, problem.zeros,
                    self.ring[lane], self.sums[lane],
                )  # fmt: skip

            bands.each(advance)
            if now % 2 == 1:
                self.p, self.before = self.before, self.p
            bands.exchange(self.p, self.before)

    def gather(self, p: Array, before: Array) -> None:
        """Write p and p₋ to whole images."""

        def gather(i: int, lane: int) -> None:
            self.bands.gather(i, p, self.p)
            self.bands.gather(i, before, self.before)

        self.bands.each(gather)


class Reverse:
    """The reverse sweep: the cotangents q of p and of p₋, and the gradients they leave."""

    def __init__(
        self, problem: Problem, bands: Bands, q: Array, before: Array | None, to_weight: bool
    ) -> None:
        layout = problem.layout
        self.problem, self.bands = problem, bands
        self.q, self.before = (bands.field(problem.directions) for _ in range(2))
        self.image_bar = problem.whole()
        kinds = problem.limits.shape[2]
        self.to_weight = to_weight
        # Grouped entries compute the gradient of λ on their way, so it needs a place in any case.
        rows = layout.rows if to_weight or problem.grouped else 1
        shape = (problem.images, rows, kinds, layout.columns)
        self.weight_bar = taken(shape, layout.dtype)
        self.waste = aligned((bands.lanes, kinds, layout.columns), problem.dtype)
        self.ring = problem.ring(bands.lanes, bands.depth)
        self.sums = problem.sums(bands.lanes)

        def start(i: int, lane: int) -> None:
            bands.spread(i, self.q, q)
            bands.spread(i, self.before, before)

        def clear(image: int, first: int, last: int) -> None:
            self.image_bar[image, first:last] = 0
            self.weight_bar[image, first:last] = 0

        bands.each(start)
        problem.by_rows(clear)

    def run(self, first: int, iterations: int, tape: Array) -> None:
        """Back over the iterations first, …, first + iterations − 1 that the tape holds."""
        problem, bands, layout = self.problem, self.bands, self.problem.layout
        for end in range(iterations, 0, -bands.depth):
            now = min(bands.depth, end)
            betas = problem.betas[first + end - now : first + end]

            def retreat(
                i: int, lane: int, end: int = end, now: int = now, betas: Array = betas
            ) -> None:
                image = i // layout.bands
                tv_rows.retreat(
                    self.q[i], self.before[i], bands.first[i], layout.owned[i], problem.width,
                    problem.limits_of(image), problem.edges, betas, problem.alpha, problem.flush,
                    layout.down, layout.across, *problem.part(tape, image, end - now, now),
                    self.image_bar[image], self.weight_bar[image], self.to_weight,
                    problem.grouped, problem.by_direction, problem.zeros,
                    self.ring[lane], self.sums[lane], self.waste[lane],
                )  # fmt: skip

            bands.each(retreat)
            bands.exchange(self.q, self.before)

    def whole(self, field: Array) -> Array:
        whole = self.problem.whole(self.problem.directions)
        self.bands.each(lambda i, lane: self.bands.gather(i, whole, field))
        return whole


class NumbaTV:
    """The kernel, as `tv_operator` wants it."""

    def tape_like(
        self, image: Tensor, settings: TVSettings
    ) -> tuple[tuple[Sequence[int], torch.dtype], Sequence[int]]:
        batch, channels, *spatial = image.shape
        joint = settings.channels and channels > 1
        images, inner = (batch, channels) if joint else (batch * channels, 1)
        columns = padded(spatial[-1], image.dtype)
        rows, directions = math.prod(spatial[:-1]), len(spatial)
        grouped = settings.directions or joint
        dtype = image.dtype if grouped else torch.uint8
        if settings.checkpoint:
            marks = -(-settings.iterations // settings.checkpoint)
            return ((0,), dtype), (marks, 2, images, rows, inner, directions, columns)
        shape: tuple[int, ...] = (images, settings.iterations, rows, columns)
        if grouped:
            shape = (*shape[:3], inner, directions, columns)
        return (shape, dtype), (0,)

    def forward(
        self,
        image: Tensor,
        weight: Tensor,
        dual: Tensor | None,
        previous: Tensor | None,
        settings: TVSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = Problem(image, weight, settings)
        layout, total = problem.layout, settings.iterations
        rows = problem.rows_of(image)
        segment = min(settings.checkpoint or total, total) if keep else total
        bands = Bands(layout, layout.in_flight(segment, 2 + 2 * problem.directions))
        forward = Forward(problem, bands, rows)
        forward.start(*(None if t is None else problem.rows_of(t) for t in (dual, previous)))
        tape = problem.tape(total) if keep and not settings.checkpoint else None
        shape = self.tape_like(image, settings)[1] if keep else (0,)
        marks = taken(shape, image.dtype)
        for i, start in enumerate(range(0, total, segment)):
            if marks.size:
                forward.gather(*marks[i])
            forward.run(start, min(segment, total - start), tape)
        u = problem.whole()
        p, before = (problem.whole(problem.directions) for _ in range(2))
        forward.gather(p, before)

        def finish(i: int, first: int, last: int) -> None:
            tv_rows.residual(u[i], rows[i], p[i], first, last, layout.down, layout.across)

        problem.by_rows(finish)
        field = (*image.shape[:2], problem.directions, *image.shape[2:])
        empty = image.new_empty(0, dtype=image.dtype if problem.grouped else torch.uint8)
        return (
            problem.tensor_of(u, image.shape),
            problem.tensor_of(p, field),
            problem.tensor_of(before, field),
            empty if tape is None else torch.from_numpy(tape),
            torch.from_numpy(marks),
        )

    def reverse(
        self,
        bars: tuple[Tensor | None, Tensor | None, Tensor | None],
        image: Tensor,
        weight: Tensor,
        tape: Tensor,
        marks: Tensor,
        settings: TVSettings,
        to_weight: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        problem = Problem(image, weight, settings)
        layout, total = problem.layout, settings.iterations
        unit = unit_of(bars)
        u_bar, dual_bar, previous_bar = bars
        field = (*image.shape[:2], problem.directions, *image.shape[2:])
        if dual_bar is None:
            q = problem.whole(problem.directions)
            q[...] = 0
        else:
            q = problem.rows_of(dual_bar, 1 / unit, edges=True)
        before = None
        if previous_bar is not None:
            before = problem.rows_of(previous_bar, 1 / unit, edges=True)
        arriving = None
        if u_bar is not None:
            arriving = problem.rows_of(u_bar, 1 / unit)

            def push(i: int, first: int, last: int) -> None:
                tv_rows.push_difference(
                    q[i], arriving[i], problem.width, problem.edges, first, last,
                    layout.down, layout.across,
                )  # fmt: skip

            problem.by_rows(push)
        segment = min(settings.checkpoint or total, total)
        bands = Bands(layout, layout.in_flight(segment, 3 + 2 * problem.directions))
        reverse = Reverse(problem, bands, q, before, to_weight)
        if settings.checkpoint:
            forward = Forward(problem, bands, problem.rows_of(image))
            saved, steps = marks.numpy(), problem.tape(segment)
            for i in reversed(range(len(saved))):
                count = min(segment, total - i * segment)
                forward.start(*saved[i])
                forward.run(i * segment, count, steps)
                reverse.run(i * segment, count, steps)
        else:
            reverse.run(0, total, tape.numpy())
        image_bar = problem.tensor_of(
            reverse.image_bar, image.shape, float(problem.alpha) * unit
        )  # fmt: skip
        if u_bar is not None:
            image_bar += u_bar
        weight_bar = weight.new_zeros(weight.shape)
        if to_weight:
            weight_bar = self._to_weight(problem, reverse, image, weight, unit)
        return (
            image_bar,
            weight_bar,
            problem.tensor_of(reverse.whole(reverse.q), field, unit),
            problem.tensor_of(reverse.whole(reverse.before), field, unit),
        )

    @staticmethod
    def _to_weight(
        problem: Problem, reverse: Reverse, image: Tensor, weight: Tensor, unit: float
    ) -> Tensor:
        channels = 1 if problem.joint else image.shape[1]
        kinds = weight.shape[2]
        shape = (image.shape[0], channels, kinds, *image.shape[2:])
        bar = problem.tensor_of(reverse.weight_bar, shape, unit)
        if bar.shape == weight.shape:
            return bar
        return bar.double().sum_to_size(weight.shape).to(weight.dtype)


tv = make_operator("numba", NumbaTV())
