"""The Potts iteration and its gradient on CUDA: the Triton kernels put in a row.

A solve is cut into sections, each with sums Z of its own (see `potts_triton_forward`), so that the
fixed point always has the digits of a float32. Their tapes lie one after another; with checkpoints
only the iterates where sections begin are kept, and the tapes are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache

import torch
from torch import Tensor

from legato.nn.kernels.potts_operator import (
    PottsCotangents,
    PottsGradients,
    PottsResult,
    PottsSettings,
    make_operator,
)
from legato.nn.kernels.potts_triton_forward import begin, finish, iterate
from legato.nn.kernels.potts_triton_launch import Launch, Plan, plan
from legato.nn.kernels.potts_triton_pixels import Place
from legato.nn.kernels.potts_triton_reverse import arrive, reverse
from legato.nn.kernels.triton_replay import bits, replays

SECTION = 125
"""Iterations in a section: up to so many, the unit of the fixed point is at most 2⁻²⁴."""


@cache
def _sections(iterations: int, checkpoint: int) -> tuple[tuple[int, int], ...]:
    """Where each section begins, and how many iterations it has."""
    length = min(checkpoint, SECTION)
    if not checkpoint:
        # Of equal lengths, so that one graph serves them all.
        length = -(-iterations // -(-iterations // SECTION))
    return tuple((start, min(length, iterations - start)) for start in range(0, iterations, length))


class _Problem:
    """The tensors that do not change while iterating, and what to launch on them."""

    def __init__(
        self,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        settings: PottsSettings,
        launch: Launch | None,
    ) -> None:
        self.cost = cost.contiguous()
        # Kept here, because a table holds their addresses only.
        self.weights, self.tau, self.sigma = weights, tau.to(cost), sigma.to(cost)
        self.total = settings.iterations
        self.plan: Plan = plan(
            cost.shape, cost.dtype, weights.shape, weights.stride(), settings.neighbours,
            settings.epsilon > 0, launch,
        )  # fmt: skip
        self._entries = [self.cost.data_ptr()] * Place.ALL
        self._entries[Place.WEIGHTS] = weights.data_ptr()
        self._entries[Place.TAU] = self.tau.data_ptr()
        self._entries[Place.SIGMA] = self.sigma.data_ptr()
        if settings.epsilon > 0:
            self._entries[Place.EPSILON] = bits(settings.epsilon)

    def forward(
        self, count: int, slots: int, entries: dict[int, int], fresh: bool, average: bool, end: bool
    ) -> None:
        """Iterate over a tape, whose places are used in turn; `end` asks for bᴺ and uᴺ."""
        cold, warm = Place.START_MIRROR not in entries, Place.START_DUAL in entries
        p, total = self.plan, self.total

        def launch(table: Tensor) -> None:
            case = p.compiled_for(count, warm=warm, average=average)
            begin[p.grid](table, total, p.extent, case, cold, fresh, **p.options)
            for k in range(count):
                places = (k % slots, max(k - 1, 0) % slots, (k + 1) % slots)
                iterate[p.grid](
                    table, k, *places, p.field, p.strides, p.extent, case, **p.step_options
                )
            if end:
                finish[p.grid](
                    table, count % slots, (count - 1) % slots, total, p.field, p.strides, p.extent,
                    case, **p.options,
                )  # fmt: skip

        kind = ("forward", count, slots, cold, warm, fresh, average, end)
        self._run((p, total if average else 0, kind), entries, launch)

    def reverse(
        self, count: int, entries: dict[int, int], last: bool, average: bool, steps: bool
    ) -> None:
        """From the cotangents at the end of a tape to those where it begins.

        That of b⁰ is added up where there is a place for it; `last` says that no section comes
        after, and `steps` asks for the gradients of τ and σ.
        """
        warm, to_dual = Place.START_DUAL in entries, Place.DUAL_BAR in entries
        direct, dual = Place.END_MIRROR_BAR in entries, Place.END_DUAL_BAR in entries
        arriving = (last, direct or not last, Place.END_U_BAR in entries, dual)
        p, total = self.plan, self.total

        def launch(table: Tensor) -> None:
            case = p.compiled_for(count, warm=warm, average=average, steps=steps, to_dual=to_dual)
            shape = (total, p.field, p.strides, p.extent, case)
            arrive[p.grid](table, count, count - 1, *shape, *arriving, **p.options)
            for i in range(count):
                k = count - 1 - i
                reverse[p.grid](table, k, i, max(k - 1, 0), *shape, **p.reverse_options)

        kind = ("reverse", count, warm, average, steps, to_dual, arriving)
        self._run((p, total if average else 0, kind), entries, launch)

    def _run(
        self, key: Hashable, entries: dict[int, int], launch: Callable[[Tensor], None]
    ) -> None:
        table = self._entries.copy()
        for at, entry in entries.items():
            table[at] = entry
        replays.run(key, self.cost.device, table, launch)


class TritonPotts:
    """The kernel, as `potts_operator` wants it; a fixed launch is for measurements."""

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch

    def tape_shapes(
        self, cost: Tensor, directions: int, settings: PottsSettings
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        batch, labels, *spatial = cost.shape
        count = len(_sections(settings.iterations, settings.checkpoint))
        duals = (count, batch, labels, directions, *spatial)
        if settings.checkpoint:
            return (0,), (count, *cost.shape), duals
        return (settings.iterations + count, *cost.shape), (0,), duals if count > 1 else (0,)

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
    ) -> PottsResult:
        problem = _Problem(cost, weights, tau, sigma, settings, self.launch)
        cost, directions = problem.cost, problem.plan.directions
        dual_shape = (*cost.shape[:2], directions, *cost.shape[2:])
        tape = marked_a = marked_b = mean = None
        if keep:
            shapes = self.tape_shapes(cost, directions, settings)
            tape, marked_a, marked_b = (
                None if shape == (0,) else cost.new_empty(shape) for shape in shapes
            )
        a, u, b = torch.empty_like(cost), torch.empty_like(cost), cost.new_empty(dual_shape)
        if settings.average:
            mean = torch.empty_like(cost)
        # Without a tape, three places are used in turn.
        places = cost.new_empty((3, *cost.shape)) if tape is None else tape
        start_a, start_b = _contiguous(mirror), _contiguous(dual)
        field = cost.nbytes
        for i, (start, count) in enumerate(_sections(settings.iterations, settings.checkpoint)):
            if marked_a is not None:
                _mark(marked_a[i], start_a)
            if marked_b is not None:
                _mark(marked_b[i], start_b)
                start_b = marked_b[i] if i or dual is not None else None
            entries: dict[int, int] = {
                Place.TAPE: places.data_ptr() + (0 if tape is None else (start + i) * field),
                Place.MIRROR: a.data_ptr(),
                Place.FINAL_DUAL: b.data_ptr(),
                Place.FINAL_U: u.data_ptr(),
            }
            if mean is not None:
                entries[Place.MEAN] = mean.data_ptr()
            if start_a is not None:
                entries[Place.START_MIRROR] = start_a.data_ptr()
            if start_b is not None:
                entries[Place.START_DUAL] = start_b.data_ptr()
            slots = 3 if tape is None else count + 1
            problem.forward(count, slots, entries, i == 0, settings.average, True)
            start_a, start_b = a, b
        return a, b, u, mean, tape, marked_a, marked_b

    def reverse(
        self,
        bars: PottsCotangents,
        cost: Tensor,
        weights: Tensor,
        tau: Tensor,
        sigma: Tensor,
        final: tuple[Tensor, Tensor, Tensor],
        tape: Tensor,
        marked: tuple[Tensor | None, Tensor | None],
        settings: PottsSettings,
        to_mirror: bool,
        to_dual: bool,
    ) -> PottsGradients:
        problem = _Problem(cost, weights, tau, sigma, settings, self.launch)
        cost, p, steps = problem.cost, problem.plan, settings.to_steps
        sections = _sections(settings.iterations, settings.checkpoint)
        field, between = cost.nbytes, len(sections) > 1
        marks, dual_marks = marked[0], _contiguous(marked[1])
        labels = cost.shape[1] if p.by_label else 1
        cost_bar = torch.empty_like(cost)
        weight_bar = cost.new_empty((cost.shape[0], labels, p.directions, *cost.shape[2:]))
        # ā twice, Q and, for the shrinkage's share of ∂τ, what is left of ā.
        shrinking = steps and settings.epsilon > 0
        scratch = cost.new_empty((4 if shrinking else 3, *cost.shape))
        bar = scratch.data_ptr()
        other_bar = bar + field
        entries: dict[int, int] = {
            Place.MIRROR: final[0].data_ptr(),
            Place.FINAL_U: final[2].data_ptr(),
            Place.REST_BAR: bar + 2 * field,
            Place.COST_BAR: cost_bar.data_ptr(),
            Place.WEIGHT_BAR: weight_bar.data_ptr(),
        }
        if shrinking:
            entries[Place.LEFT_BAR] = bar + 3 * field
        if steps:
            sums = torch.empty(p.programs, 2, dtype=torch.float64, device=cost.device)
            entries[Place.STEPS_BAR] = sums.data_ptr()
        dual_bar = torch.empty_like(final[1]) if to_dual or between else None
        # Contiguous copies must live until the launches.
        arriving = PottsCotangents(*(_contiguous(t) for t in bars))
        places = (Place.END_MIRROR_BAR, Place.END_DUAL_BAR, Place.END_U_BAR, Place.MEAN)
        for place, t in zip(places, arriving, strict=True):
            if t is not None:
                entries[place] = t.data_ptr()
        if settings.checkpoint:
            tape = cost.new_empty((sections[0][1] + 1, *cost.shape))
            again = torch.empty_like(cost)
        for i, (start, count) in reversed(tuple(enumerate(sections))):
            last = i == len(sections) - 1
            section: dict[int, int] = {Place.TAPE: tape.data_ptr()}
            if dual_marks is not None:
                section[Place.START_DUAL] = dual_marks.data_ptr() + i * final[1].nbytes
            if marks is not None and settings.checkpoint:
                rebuild = section | {
                    Place.START_MIRROR: marks.data_ptr() + i * field,
                    Place.MIRROR: again.data_ptr(),
                }
                problem.forward(count, count + 1, rebuild, True, False, False)
            else:
                section[Place.TAPE] += (start + i) * field
            if dual_bar is not None and (to_dual or i):
                section[Place.DUAL_BAR] = dual_bar.data_ptr()
            section |= {Place.BAR: bar, Place.OTHER_BAR: other_bar}
            problem.reverse(count, entries | section, last, arriving.mean is not None, steps)
            if count % 2:
                bar, other_bar = other_bar, bar
            if last:
                # What arrives at earlier sections comes from this one, and from the mean.
                for place in (Place.END_MIRROR_BAR, Place.END_U_BAR):
                    entries.pop(place, None)
                if dual_bar is not None:
                    entries[Place.END_DUAL_BAR] = dual_bar.data_ptr()
        first = (bar - scratch.data_ptr()) // field
        to_tau = to_sigma = None
        if steps:
            to_tau, to_sigma = sums.sum(0).unbind()
            to_tau, to_sigma = -to_tau, to_sigma / problem.sigma
            if shrinking and marks is not None:
                a = marks[0] if settings.checkpoint else marks
                shrunk = scratch[1 - first] / (1 + problem.tau * settings.epsilon) - scratch[3]
                share = (shrunk * (a - a.amax(1, keepdim=True))).sum(dtype=torch.float64)
                to_tau = to_tau - share / problem.tau
            to_tau, to_sigma = to_tau.to(tau.dtype), to_sigma.to(sigma.dtype)
        return (
            cost_bar,
            weight_bar.sum_to_size(weights.shape),
            to_tau,
            to_sigma,
            scratch[first] if to_mirror else None,
            dual_bar if to_dual else None,
        )


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _mark(mark: Tensor, iterate: Tensor | None) -> None:
    if iterate is None:
        mark.zero_()
    else:
        mark.copy_(iterate)


potts = make_operator("triton", TritonPotts())
