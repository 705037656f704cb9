"""Total variation and its gradient on CUDA: the Triton kernels put in a row.

With checkpoints a solve is cut into sections, of which only the p and p₋ at their beginnings are
kept; their tapes are made again, one at a time.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato.nn.fused.launch import Launch, Plan, extent_of, strides_of
from legato.nn.fused.operator import ABSENT, FusedKernel, Like, Record, Tensors, register
from legato.nn.fused.replay import addresses, bits, replays
from legato.nn.fused.unrolling import sections
from legato.nn.total_variation.growth import warn_if_grown
from legato.nn.total_variation.model import (
    Coupling,
    TVSettings,
    dual_shape,
    momentum,
    step_size,
    tv_function,
)
from legato.nn.total_variation.triton import pixels as slots
from legato.nn.total_variation.triton.forward import begin, finish, forward_step
from legato.nn.total_variation.triton.pixels import Case
from legato.nn.total_variation.triton.reverse import reverse_step, seed_cotangents

TURNS = 3
"""p, p₋ and p⁺ take turns in so many fields."""


def choose_launch(width: int) -> Launch:
    """The launch that measured best, fitted to narrow images."""
    tile_x = min(Launch.tile_x, triton.next_power_of_2(width))
    return Launch(Launch.tile_y * Launch.tile_x // tile_x, tile_x)


def tape_like(shape: tuple[int, ...], dtype: torch.dtype, coupling: Coupling) -> Like:
    """Shape and dtype of the tape of one iteration."""
    if coupling.is_grouped(shape[1]):
        return (*shape[:2], len(shape) - 2, *shape[2:]), dtype
    return shape, torch.uint8


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weight_shape: tuple[int, ...],
    weight_strides: tuple[int, ...],
    coupling: Coupling,
    launch: Launch | None,
) -> Plan:
    """The plan for images and λ of these shapes."""
    batch, channels, *spatial = shape
    joint, grouped = coupling.channels and channels > 1, coupling.is_grouped(channels)
    directions = len(spatial)
    launch = launch or choose_launch(spatial[-1])
    depth, height, width = extent = extent_of(spatial)
    tiles = -(-height // launch.tile_y) * -(-width // launch.tile_x)
    images, inner = (batch, channels) if joint else (batch * channels, 1)
    number = tl.float64 if dtype == torch.float64 else tl.float32
    case = Case(
        channels=tl.constexpr(inner),
        directions=tl.constexpr(directions),
        volume=directions == 3,
        grouped=grouped,
        by_direction=not coupling.directions,
        kinds=tl.constexpr(weight_shape[2]),
        of_batch=1 if joint else channels,
        dtype=number,
        tape=number if grouped else tl.uint8,
        tile_y=launch.tile_y,
        tile_x=launch.tile_x,
        wide=inner * directions * depth * height * width >= 2**31,
        overlap=launch.overlap,
        alpha=step_size(directions),
    )
    field = math.prod(tape_like(shape, dtype, coupling)[0])
    strides = strides_of(weight_shape, weight_strides)
    return Plan((images * depth * tiles,), field, strides, extent, case, launch)


class _Problem:
    """The tensors that do not change while iterating, and what to launch on them."""

    def __init__(self, tensors: Tensors, settings: TVSettings, launch: Launch | None) -> None:
        image, weight, *_ = tensors
        self.image, self.weight, self.settings = image.contiguous(), weight, settings
        shape, coupling = tuple(image.shape), settings.coupling
        self.plan = _plan(
            shape, image.dtype, tuple(weight.shape), weight.stride(), coupling, launch
        )
        self.sections = sections(settings.iterations, settings.checkpoint)
        self._tape_shape, self._tape_dtype = tape_like(shape, image.dtype, coupling)

    def fields(self, count: int) -> list[Tensor]:
        """Room for so many p."""
        return [self.image.new_empty(dual_shape(self.image)) for _ in range(count)]

    def tape(self, iterations: int) -> Tensor:
        return self.image.new_empty((iterations, *self._tape_shape), dtype=self._tape_dtype)

    def _betas(self, section: tuple[int, int]) -> list[int]:
        first, count = section
        return [bits(beta) for beta in momentum(count, self.settings.first + first)]

    def forward(
        self,
        section: tuple[int, int],
        turns: Sequence[Tensor],
        start: tuple[Tensor, Tensor] | None,
        tape: Tensor | None,
        value: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """p and p₋ after a section; what is asked for beside them is a tape, and u."""
        p, (first, count) = self.plan, section
        names = (slots.FIRST, slots.SECOND, slots.THIRD)
        entries: dict[Any, Tensor | int] = dict(zip(names, turns, strict=True))
        if start is not None:
            entries |= {slots.START: start[0], slots.START_BEFORE: start[1]}
        if tape is not None:
            entries[slots.TAPE] = tape
        if value is not None:
            entries[slots.VALUE] = value
        cold, keep, end = start is None, tape is not None, value is not None

        def launch(table: Tensor) -> None:
            case = p.compiled_for(keep=keep)
            begin[p.grid](table, p.extent, case, cold, **p.options)
            shape = (p.field, p.strides, p.extent, case)
            for k, beta in enumerate(self._betas(section)):
                places = (k % TURNS, (k - 1) % TURNS, (k + 1) % TURNS)
                forward_step[p.grid](table, k, *places, beta, *shape, **p.limited_options)
            if end:
                finish[p.grid](table, count % TURNS, p.extent, case, **p.options)

        key = (p, "forward", self.settings.first + first, count, cold, keep, end)
        self._run(key, entries, launch)
        return turns[count % TURNS], turns[(count - 1) % TURNS]

    def reverse(
        self,
        section: tuple[int, int],
        entries: dict[Any, Tensor | int],
        last: bool,
        weigh: bool,
    ) -> None:
        """From the cotangents at the end of a section to those where it begins."""
        p, (first, count) = self.plan, section
        ends = (slots.END_VALUE_BAR, slots.END_DUAL_BAR, slots.END_BEFORE_BAR)
        arriving = (last, *(slot in entries for slot in ends))

        def launch(table: Tensor) -> None:
            case = p.compiled_for(weigh=weigh)
            shape = (p.field, p.strides, p.extent, case)
            seed_cotangents[p.grid](table, count - 1, *shape, *arriving, **p.options)
            for i, beta in enumerate(reversed(self._betas(section))):
                k = count - 2 - i
                reverse_step[p.grid](table, i, max(k, 0), beta, *shape, k < 0, **p.limited_options)

        key = (p, "reverse", self.settings.first + first, count, weigh, arriving)
        self._run(key, entries, launch)

    def _run(
        self, key: Hashable, entries: dict[Any, Tensor | int], launch: Callable[[Tensor], None]
    ) -> None:
        table = addresses({slots.WEIGHT: self.weight} | entries, self.image)
        replays.run(key, self.image.device, table, launch)


class TritonTV(FusedKernel[TVSettings]):
    """The kernel; a fixed launch is for measurements. Its tape is that of the projections, and the
    marked p and p₋."""

    name = "tv_triton"
    title = "triton kernel of total variation"
    settings = TVSettings
    outputs, needed = 3, 0

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch

    def like(self, tensors: Tensors, settings: TVSettings, keep: bool) -> list[Like]:
        image = tensors[0]
        field = dual_shape(image)
        tape: Like = (ABSENT, image.dtype)
        marks: Sequence[int] = ABSENT
        if keep and settings.checkpoint:
            marks = (len(sections(settings.iterations, settings.checkpoint)), 2, *field)
        elif keep:
            shape, dtype = tape_like(tuple(image.shape), image.dtype, settings.coupling)
            tape = ((settings.iterations, *shape), dtype)
        own = image.dtype
        return [(image.shape, own), (field, own), (field, own), tape, (marks, own)]

    def forward(
        self, tensors: Tensors, settings: TVSettings, keep: bool
    ) -> tuple[Tensors, Tensors]:
        problem = _Problem(tensors, settings, self.launch)
        _, _, dual, previous = tensors
        start = None
        if dual is not None and previous is not None:
            start = dual.contiguous(), previous.contiguous()
        value, turns = torch.empty_like(problem.image), problem.fields(TURNS)
        if not (keep and settings.checkpoint):
            tape = problem.tape(settings.iterations) if keep else None
            ends = problem.forward((0, settings.iterations), turns, start, tape, value)
            return (value, *ends), (tape, None)
        marks = problem.image.new_empty(self.like(tensors, settings, keep)[4][0])
        for mark, section in zip(marks, problem.sections, strict=True):
            if start is None:
                mark.zero_()
            else:
                mark[0].copy_(start[0])
                mark[1].copy_(start[1])
            start = problem.forward(section, turns, (mark[0], mark[1]), None, value)
        assert start is not None
        return (value, *start), (None, marks)

    def reverse(self, bars: Tensors, record: Record, wanted: Sequence[bool]) -> Tensors:
        tensors, _, tape, settings = record
        problem = _Problem(tensors, settings, self.launch)
        image, weight, to_weight = problem.image, problem.weight, wanted[1]
        z_bar, other_bar, later, start_bar = problem.fields(4)
        image_bar = torch.empty_like(image)
        entries: dict[Any, Tensor | int] = {
            slots.Z_BAR: z_bar,
            slots.OTHER_Z_BAR: other_bar,
            slots.LATER: later,
            slots.START_BAR: start_bar,
            slots.IMAGE_BAR: image_bar,
        }
        weight_bar = None
        if to_weight:
            channels = 1 if settings.channels else image.shape[1]
            weight_bar = image.new_empty(
                (image.shape[0], channels, weight.shape[2], *image.shape[2:])
            )
            entries[slots.WEIGHT_BAR] = weight_bar
        places = (slots.END_VALUE_BAR, slots.END_DUAL_BAR, slots.END_BEFORE_BAR)
        # Contiguous copies must live until the launches.
        ends: dict[Any, Tensor | int] = {
            slot: bar.contiguous()
            for slot, bar in zip(places, bars, strict=True)
            if bar is not None
        }
        taped, marks = tape
        if taped is not None:
            entries[slots.TAPE] = taped
            problem.reverse((0, settings.iterations), entries | ends, True, to_weight)
        elif marks is not None:
            turns, again = problem.fields(TURNS), problem.tape(settings.checkpoint)
            entries[slots.TAPE] = again
            for mark, section in reversed(list(zip(marks, problem.sections, strict=True))):
                problem.forward(section, turns, (mark[0], mark[1]), again, None)
                last = section == problem.sections[-1]
                problem.reverse(section, entries | ends, last, to_weight)
                # What arrives at earlier sections comes from this one.
                ends = {slots.END_DUAL_BAR: start_bar}
        warn_if_grown(bars, image_bar, settings.iterations)
        if weight_bar is not None:
            shared = [i for i, size in enumerate(weight_bar.shape) if size != weight.shape[i]]
            if shared:
                weight_bar = weight_bar.sum(shared, keepdim=True, dtype=torch.float64)
                weight_bar = weight_bar.to(weight.dtype)
        return image_bar, weight_bar, start_bar, later


tv = tv_function(register(TritonTV()))
