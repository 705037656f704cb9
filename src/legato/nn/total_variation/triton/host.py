"""Total variation and its gradient on CUDA: the Triton kernels put in a row.

With checkpoints a solve is cut into sections, of which only the p and p₋ at their beginnings are
kept; their tapes are made again, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from legato.nn.kernels.triton_replay import bits, replays
from legato.nn.kernels.tv_iterates import momentum
from legato.nn.kernels.tv_operator import TVSettings, make_operator
from legato.nn.kernels.tv_triton_forward import begin, finish, iterate
from legato.nn.kernels.tv_triton_launch import Launch, Plan, plan, tape_of
from legato.nn.kernels.tv_triton_pixels import Place
from legato.nn.kernels.tv_triton_reverse import arrive, retreat

SLOTS = 3
"""p, p₋ and p⁺ take turns in so many fields."""


class _Problem:
    """The tensors that do not change while iterating, and what to launch on them."""

    def __init__(
        self, image: Tensor, weight: Tensor, settings: TVSettings, launch: Launch | None
    ) -> None:
        self.image, self.weight, self.settings = image.contiguous(), weight, settings
        self.field = (*image.shape[:2], image.dim() - 2, *image.shape[2:])
        self.plan: Plan = plan(
            tuple(image.shape), image.dtype, tuple(weight.shape), weight.stride(),
            settings.coupling, launch,
        )  # fmt: skip

    @property
    def sections(self) -> list[tuple[int, int]]:
        """Where each section begins, and how many iterations it has."""
        total = self.settings.iterations
        length = self.settings.checkpoint or total
        return [(start, min(length, total - start)) for start in range(0, total, length)]

    def betas(self, start: int, count: int) -> list[int]:
        return [bits(beta) for beta in momentum(count, self.settings.first + start)]

    def slots(self) -> list[Tensor]:
        return [self.image.new_empty(self.field) for _ in range(SLOTS)]

    def tape(self, iterations: int) -> Tensor:
        shape = (iterations, *self.plan.tape_shape)
        return self.image.new_empty(shape, dtype=self.plan.tape_dtype)

    def forward(
        self,
        section: tuple[int, int],
        slots: Sequence[Tensor],
        start: tuple[Tensor, Tensor] | None,
        tape: Tensor | None,
        value: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """p and p₋ after a section; what is asked for beside them is a tape, and u."""
        p, (first, count) = self.plan, section
        entries = {Place.P + i: slot.data_ptr() for i, slot in enumerate(slots)}
        if start is not None:
            entries[Place.START], entries[Place.START_BEFORE] = (t.data_ptr() for t in start)
        if tape is not None:
            entries[Place.TAPE] = tape.data_ptr()
        if value is not None:
            entries[Place.VALUE] = value.data_ptr()
        cold, keep, end = start is None, tape is not None, value is not None

        def launch(table: Tensor) -> None:
            case = p.compiled_for(keep=keep)
            begin[p.grid](table, p.extent, case, cold, **p.options)
            for k, beta in enumerate(self.betas(first, count)):
                places = (k % SLOTS, (k - 1) % SLOTS, (k + 1) % SLOTS)
                iterate[p.grid](
                    table, k, *places, beta, p.field, p.strides, p.extent, case, **p.step_options
                )
            if end:
                finish[p.grid](table, count % SLOTS, p.extent, case, **p.options)

        key = (p, "forward", self.settings.first + first, count, cold, keep, end)
        self._run(key, entries, launch)
        return slots[count % SLOTS], slots[(count - 1) % SLOTS]

    def reverse(
        self, section: tuple[int, int], entries: dict[int, int], last: bool, weigh: bool
    ) -> None:
        """From the cotangents at the end of a section to those where it begins."""
        p, (first, count) = self.plan, section
        arriving = (
            last, Place.END_VALUE_BAR in entries, Place.END_DUAL_BAR in entries,
            Place.END_BEFORE_BAR in entries,
        )  # fmt: skip

        def launch(table: Tensor) -> None:
            case = p.compiled_for(weigh=weigh)
            shape = (p.field, p.strides, p.extent, case)
            arrive[p.grid](table, count - 1, *shape, *arriving, **p.options)
            for i, beta in enumerate(reversed(self.betas(first, count))):
                k = count - 2 - i
                retreat[p.grid](table, i, max(k, 0), beta, *shape, k < 0, **p.step_options)

        key = (p, "reverse", self.settings.first + first, count, weigh, arriving)
        self._run(key, entries, launch)

    def _run(
        self, key: Hashable, entries: dict[int, int], launch: Callable[[Tensor], None]
    ) -> None:
        table = [self.image.data_ptr()] * Place.ALL
        table[Place.WEIGHT] = self.weight.data_ptr()
        for at, entry in entries.items():
            table[at] = entry
        replays.run(key, self.image.device, table, launch)


class TritonTV:
    """The kernel, as `tv_operator` wants it; a fixed launch is for measurements."""

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch

    def tape_like(
        self, image: Tensor, settings: TVSettings
    ) -> tuple[tuple[Sequence[int], torch.dtype], Sequence[int]]:
        shape, dtype = tape_of(tuple(image.shape), image.dtype, settings.coupling)
        if settings.checkpoint:
            marks = -(-settings.iterations // settings.checkpoint)
            field = (*image.shape[:2], image.dim() - 2, *image.shape[2:])
            return ((0,), dtype), (marks, 2, *field)
        return ((settings.iterations, *shape), dtype), (0,)

    def forward(
        self,
        image: Tensor,
        weight: Tensor,
        dual: Tensor | None,
        previous: Tensor | None,
        settings: TVSettings,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        problem = _Problem(image, weight, settings, self.launch)
        start = None
        if dual is not None and previous is not None:
            start = dual.contiguous(), previous.contiguous()
        value, slots = torch.empty_like(problem.image), problem.slots()
        if not (keep and settings.checkpoint):
            tape = problem.tape(settings.iterations) if keep else problem.tape(0).reshape(0)
            p, before = problem.forward(
                (0, settings.iterations), slots, start, tape if keep else None, value
            )
            return value, p, before, tape, image.new_empty(0)
        marks = image.new_empty(self.tape_like(image, settings)[1])
        for mark, section in zip(marks, problem.sections, strict=True):
            if start is None:
                mark.zero_()
            else:
                mark[0].copy_(start[0])
                mark[1].copy_(start[1])
            start = problem.forward(section, slots, (mark[0], mark[1]), None, value)
        assert start is not None
        return value, *start, problem.tape(0).reshape(0), marks

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
        problem = _Problem(image, weight, settings, self.launch)
        z_bar, other_bar, later, start_bar = (image.new_empty(problem.field) for _ in range(4))
        image_bar = torch.empty_like(problem.image)
        # Contiguous copies must live until the launches.
        arriving = [None if bar is None else bar.contiguous() for bar in bars]
        entries = {
            Place.Z_BAR: z_bar.data_ptr(),
            Place.Z_BAR + 1: other_bar.data_ptr(),
            Place.LATER: later.data_ptr(),
            Place.START_BAR: start_bar.data_ptr(),
            Place.IMAGE_BAR: image_bar.data_ptr(),
            Place.TAPE: tape.data_ptr(),
        }
        if to_weight:
            channels = 1 if settings.channels else image.shape[1]
            weight_bar = image.new_empty(
                (image.shape[0], channels, weight.shape[2], *image.shape[2:])
            )
            entries[Place.WEIGHT_BAR] = weight_bar.data_ptr()
        places = (Place.END_VALUE_BAR, Place.END_DUAL_BAR, Place.END_BEFORE_BAR)
        ends = {
            place: bar.data_ptr()
            for place, bar in zip(places, arriving, strict=True)
            if bar is not None
        }
        if not settings.checkpoint:
            problem.reverse((0, settings.iterations), entries | ends, True, to_weight)
        else:
            slots, again = problem.slots(), problem.tape(settings.checkpoint)
            entries[Place.TAPE] = again.data_ptr()
            for mark, section in reversed(list(zip(marks, problem.sections, strict=True))):
                problem.forward(section, slots, (mark[0], mark[1]), again, None)
                last = section == problem.sections[-1]
                problem.reverse(section, entries | ends, last, to_weight)
                # What arrives at earlier sections comes from this one.
                ends = {Place.END_DUAL_BAR: start_bar.data_ptr()}
        to_limits = weight.new_zeros(weight.shape)
        if to_weight:
            to_limits = weight_bar
            shared = [i for i, size in enumerate(weight_bar.shape) if size != weight.shape[i]]
            if shared:
                to_limits = weight_bar.sum(shared, keepdim=True, dtype=torch.float64)
                to_limits = to_limits.to(weight.dtype)
        return image_bar, to_limits, start_bar, later


tv = make_operator("triton", TritonTV())
