"""The Potts iteration and its gradient on CUDA: the Triton kernels put in a row.

A solve is cut into sections, each with sums Z of its own (see `forward`), so that the fixed point
always has the digits of a float32. Their tapes lie one after another; with checkpoints only the
iterates where sections begin are kept, and the tapes are made again.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato.nn.fused import unrolling
from legato.nn.fused.launch import Launch, Plan, extent_of, strides_of
from legato.nn.fused.operator import ABSENT, Like, Record, Tensors, register
from legato.nn.fused.replay import addresses, bits, replays
from legato.nn.neighbourhood import Offset
from legato.nn.potts.model import PottsKernel, PottsSettings, dual_shape, potts_function
from legato.nn.potts.triton import pixels as slots
from legato.nn.potts.triton.forward import begin, finish, forward_step
from legato.nn.potts.triton.pixels import Case
from legato.nn.potts.triton.reverse import reverse_step, seed_cotangents

SECTION_ITERATIONS = 125
"""Iterations in a section: up to so many, the unit of the fixed point is at most 2⁻²⁴."""


def choose_launch(labels: int, width: int, few_registers: bool) -> Launch:
    """The launch that measured best; float32 and two directions get by with few registers."""
    held = labels <= Launch.held
    tile_x = min(32, triton.next_power_of_2(width))
    registers = (168 if held and labels > 4 else 128) if few_registers else None
    return Launch((64 if held else 32) // tile_x, tile_x, registers=registers)


@lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weight_shape: tuple[int, ...],
    weight_strides: tuple[int, ...],
    offsets: tuple[Offset, ...],
    epsilon: bool,
    launch: Launch | None,
) -> Plan:
    """The plan for costs and weights of these shapes."""
    batch, labels, *spatial = shape
    directions = len(offsets)
    double = dtype == torch.float64
    launch = launch or choose_launch(labels, spatial[-1], not double and directions == 2)
    depth, height, width = extent = extent_of(spatial)
    image = labels * depth * height * width
    case = Case(
        labels=tl.constexpr(labels),
        directions=tl.constexpr(directions),
        volume=len(spatial) == 3,
        offsets=tuple(
            tuple(tl.constexpr(step) for step in (0,) * (3 - len(offset)) + offset)
            for offset in offsets
        ),
        by_label=weight_shape[1] > 1,
        epsilon=epsilon,
        dtype=tl.float64 if double else tl.float32,
        fixed=tl.int64 if double else tl.int32,
        tile_y=launch.tile_y,
        tile_x=launch.tile_x,
        wide=image * directions >= 2**31,
        held=labels <= launch.held,
        unroll=launch.unroll,
        overlap=launch.overlap,
    )
    # Images and slices first: only the first axis of a CUDA grid may be long.
    grid = (batch * depth, -(-height // launch.tile_y), -(-width // launch.tile_x))
    strides = strides_of(weight_shape, weight_strides)
    return Plan(grid, batch * image, strides, extent, case, launch)


@cache
def _sections(iterations: int, checkpoint: int) -> list[tuple[int, int]]:
    """Where each section begins, and how many iterations it has."""
    length = min(checkpoint, SECTION_ITERATIONS)
    if not checkpoint:
        # Of equal lengths, so that one graph serves them all.
        length = -(-iterations // -(-iterations // SECTION_ITERATIONS))
    return unrolling.sections(iterations, length)


class _Problem:
    """The tensors that do not change while iterating, and what to launch on them."""

    def __init__(self, tensors: Tensors, settings: PottsSettings, launch: Launch | None) -> None:
        cost, weights, tau, sigma, *_ = tensors
        self.cost = cost.contiguous()
        # Kept here, because a table holds their addresses only.
        self.weights, self.tau, self.sigma = weights, tau.to(cost), sigma.to(cost)
        self.total = settings.iterations
        self.directions = len(settings.directions)
        self.plan = _plan(
            cost.shape, cost.dtype, weights.shape, weights.stride(), settings.directions,
            settings.epsilon > 0, launch,
        )  # fmt: skip
        self._entries: dict[Any, Tensor | int] = {
            slots.WEIGHTS: weights,
            slots.TAU: self.tau,
            slots.SIGMA: self.sigma,
            slots.EPSILON: bits(settings.epsilon),
        }

    def _case(self, count: int, **more: bool) -> Case:
        digits = 63 if self.plan.case.dtype == tl.float64 else 31
        # No difference of lookaheads exceeds the iterations by three.
        scale = float(2.0 ** (digits - (count + 2).bit_length()))
        case: Case = self.plan.compiled_for(scale=scale, **more)
        return case

    def forward(
        self,
        count: int,
        turns: int,
        entries: dict[Any, Tensor | int],
        fresh: bool,
        average: bool,
        end: bool,
    ) -> None:
        """Iterate over a tape, whose `turns` fields are used in turn; `end` asks for bᴺ and uᴺ."""
        cold, warm = slots.START_MIRROR not in entries, slots.START_DUAL in entries
        p, total = self.plan, self.total

        def launch(table: Tensor) -> None:
            case = self._case(count, warm=warm, average=average)
            begin[p.grid](table, total, p.extent, case, cold, fresh, **p.options)
            shape = (p.field, p.strides, p.extent, case)
            for k in range(count):
                places = (k % turns, max(k - 1, 0) % turns, (k + 1) % turns)
                forward_step[p.grid](table, k, *places, *shape, **p.step_options)
            if end:
                ends = (count % turns, (count - 1) % turns)
                finish[p.grid](table, *ends, total, *shape, **p.options)

        kind = ("forward", count, turns, cold, warm, fresh, average, end)
        self._run((p, total if average else 0, kind), entries, launch)

    def reverse(
        self,
        count: int,
        entries: dict[Any, Tensor | int],
        last: bool,
        average: bool,
        steps: bool,
    ) -> None:
        """From the cotangents at the end of a tape to those where it begins.

        That of b⁰ is added up where there is a slot for it; `last` says that no section comes
        after, and `steps` asks for the gradients of τ and σ.
        """
        warm, to_dual = slots.START_DUAL in entries, slots.DUAL_BAR in entries
        direct, dual = slots.END_MIRROR_BAR in entries, slots.END_DUAL_BAR in entries
        arriving = (last, direct or not last, slots.END_U_BAR in entries, dual)
        p, total = self.plan, self.total

        def launch(table: Tensor) -> None:
            case = self._case(count, warm=warm, average=average, steps=steps, to_dual=to_dual)
            shape = (total, p.field, p.strides, p.extent, case)
            seed_cotangents[p.grid](table, count, count - 1, *shape, *arriving, **p.options)
            for i in range(count):
                k = count - 1 - i
                reverse_step[p.grid](table, k, i, max(k - 1, 0), *shape, **p.limited_options)

        kind = ("reverse", count, warm, average, steps, to_dual, arriving)
        self._run((p, total if average else 0, kind), entries, launch)

    def _run(
        self, key: Hashable, entries: dict[Any, Tensor | int], launch: Callable[[Tensor], None]
    ) -> None:
        table = addresses(self._entries | entries, self.cost)
        replays.run(key, self.cost.device, table, launch)


class TritonPotts(PottsKernel):
    """The kernel; a fixed launch is for measurements. Its tape is Z, and the marked a and b."""

    name = "potts_triton"
    title = "triton kernel of the Potts layer"
    needed = 3

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch

    def like(self, tensors: Tensors, settings: PottsSettings, keep: bool) -> list[Like]:
        cost = tensors[0]
        dual = dual_shape(cost, len(settings.directions))
        mean = cost.shape if settings.average else ABSENT
        count = len(_sections(settings.iterations, settings.checkpoint))
        tape: list[Sequence[int]] = [ABSENT] * 3
        if keep and settings.checkpoint:
            tape = [ABSENT, (count, *cost.shape), (count, *dual)]
        elif keep:
            duals = (count, *dual) if count > 1 else ABSENT
            tape = [(settings.iterations + count, *cost.shape), ABSENT, duals]
        return [(s, cost.dtype) for s in (cost.shape, dual, cost.shape, mean, *tape)]

    def forward(
        self, tensors: Tensors, settings: PottsSettings, keep: bool
    ) -> tuple[Tensors, Tensors]:
        problem = _Problem(tensors, settings, self.launch)
        cost, (mirror, dual) = problem.cost, tensors[4:]
        a, b, u, mean, tape, marked_a, marked_b = (
            None if shape == ABSENT else cost.new_empty(shape)
            for shape, _ in self.like(tensors, settings, keep)
        )
        # Without a tape, three fields are used in turn.
        places = cost.new_empty((3, *cost.shape)) if tape is None else tape
        start_a, start_b = _contiguous(mirror), _contiguous(dual)
        for i, (start, count) in enumerate(_sections(settings.iterations, settings.checkpoint)):
            if marked_a is not None:
                _mark(marked_a[i], start_a)
            if marked_b is not None:
                _mark(marked_b[i], start_b)
                start_b = marked_b[i] if i or dual is not None else None
            entries = _present(
                {
                    slots.TAPE: places if tape is None else tape[start + i],
                    slots.MIRROR: a,
                    slots.FINAL_DUAL: b,
                    slots.FINAL_U: u,
                    slots.MEAN: mean,
                    slots.START_MIRROR: start_a,
                    slots.START_DUAL: start_b,
                }
            )
            turns = 3 if tape is None else count + 1
            problem.forward(count, turns, entries, i == 0, bool(settings.average), True)
            start_a, start_b = a, b
        return (a, b, u, mean), (tape, marked_a, marked_b)

    def reverse(self, bars: Tensors, record: Record, wanted: Sequence[bool]) -> Tensors:
        tensors, outputs, tape, settings = record
        problem = _Problem(tensors, settings, self.launch)
        cost, (mirror, dual) = problem.cost, tensors[4:]
        final_a, final_b, final_u, *_ = outputs
        steps, to_dual = wanted[2] or wanted[3], wanted[5]
        sections = _sections(settings.iterations, settings.checkpoint)
        taped, marked_a, marked_b = tape
        start_a = mirror if marked_a is None else marked_a
        starts_b = _contiguous(dual if marked_b is None else marked_b)
        labels = cost.shape[1] if problem.plan.case.by_label else 1
        cost_bar = torch.empty_like(cost)
        weight_bar = cost.new_empty((cost.shape[0], labels, problem.directions, *cost.shape[2:]))
        # ā twice, Q and, for the shrinkage's share of ∂τ, what is left of ā.
        shrinking = steps and settings.epsilon > 0
        scratch = cost.new_empty((4 if shrinking else 3, *cost.shape))
        bar, other_bar = scratch[0], scratch[1]
        sums = None
        if steps:
            programs = problem.plan.grid[0] * problem.plan.grid[1] * problem.plan.grid[2]
            sums = torch.empty(programs, 2, dtype=torch.float64, device=cost.device)
        dual_bar = torch.empty_like(final_b) if to_dual or len(sections) > 1 else None
        # Contiguous copies must live until the launches.
        arriving = [_contiguous(t) for t in bars]
        entries = _present(
            {
                slots.MIRROR: final_a,
                slots.FINAL_U: final_u,
                slots.REST_BAR: scratch[2],
                slots.COST_BAR: cost_bar,
                slots.WEIGHT_BAR: weight_bar,
                slots.LEFT_BAR: scratch[3] if shrinking else None,
                slots.STEPS_BAR: sums,
                slots.END_MIRROR_BAR: arriving[0],
                slots.END_DUAL_BAR: arriving[1],
                slots.END_U_BAR: arriving[2],
                slots.MEAN: arriving[3],
            }
        )
        again = None
        if taped is None:
            taped = cost.new_empty((sections[0][1] + 1, *cost.shape))
            again = torch.empty_like(cost)
        for i, (start, count) in reversed(list(enumerate(sections))):
            last = i == len(sections) - 1
            start_b = None
            if starts_b is not None:
                start_b = starts_b if marked_b is None else starts_b[i]
            section = _present({slots.TAPE: taped, slots.START_DUAL: start_b})
            if again is not None:
                assert marked_a is not None
                rebuild = section | {slots.START_MIRROR: marked_a[i], slots.MIRROR: again}
                problem.forward(count, count + 1, rebuild, True, False, False)
            else:
                section[slots.TAPE] = taped[start + i]
            if dual_bar is not None and (to_dual or i):
                section[slots.DUAL_BAR] = dual_bar
            section |= {slots.BAR: bar, slots.OTHER_BAR: other_bar}
            problem.reverse(count, entries | section, last, arriving[3] is not None, steps)
            if count % 2:
                bar, other_bar = other_bar, bar
            if last:
                # What arrives at earlier sections comes from this one, and from the mean.
                for slot in (slots.END_MIRROR_BAR, slots.END_U_BAR):
                    entries.pop(slot, None)
                if dual_bar is not None:
                    entries[slots.END_DUAL_BAR] = dual_bar
        to_tau = to_sigma = None
        if sums is not None:
            to_tau, to_sigma = sums.sum(0).unbind()
            to_tau, to_sigma = -to_tau, to_sigma / problem.sigma
            if shrinking and start_a is not None:
                a = start_a if marked_a is None else start_a[0]
                shrunk = other_bar / (1 + problem.tau * settings.epsilon) - scratch[3]
                share = (shrunk * (a - a.amax(1, keepdim=True))).sum(dtype=torch.float64)
                to_tau = to_tau - share / problem.tau
            to_tau, to_sigma = to_tau.to(cost.dtype), to_sigma.to(cost.dtype)
        return (
            cost_bar,
            weight_bar.sum_to_size(problem.weights.shape),
            to_tau,
            to_sigma,
            bar if wanted[4] else None,
            dual_bar if to_dual else None,
        )


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _present(entries: dict[Any, Tensor | None]) -> dict[Any, Tensor | int]:
    return {slot: tensor for slot, tensor in entries.items() if tensor is not None}


def _mark(mark: Tensor, iterate: Tensor | None) -> None:
    if iterate is None:
        mark.zero_()
    else:
        mark.copy_(iterate)


potts = potts_function(register(TritonPotts()))
