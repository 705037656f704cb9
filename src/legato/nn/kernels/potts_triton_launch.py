"""How the Potts problem is laid on the GPU: tiles, grid, and what the kernels are compiled for."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment"

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_triton_pixels import Case
from legato.nn.kernels.triton_replay import INTERPRETED


@dataclass(frozen=True)
class Launch:
    """How a kernel is laid on the machine.

    A program works on tile_y × tile_x pixels, one a thread. With at most `held` labels it keeps
    them all in registers, else it visits them in a loop, `unroll` at a time. `overlap` starts an
    iteration's constant part before the iteration before it has ended. `registers` is how many a
    thread may take in the reverse sweep: left to itself, the compiler saves some by waiting for one
    load before it starts the next.
    """

    tile_y: int = 2
    tile_x: int = 32
    held: int = 8
    unroll: int = 1
    overlap: bool = True
    registers: int | None = None


def choose_launch(labels: int, width: int, lean: bool) -> Launch:
    """The launch that measured best for such images; lean are float32 and two directions."""
    held = labels <= Launch.held
    tile_x = min(32, triton.next_power_of_2(width))
    registers = (168 if held and labels > 4 else 128) if lean else None
    return Launch(
        (64 if held else 32) // tile_x, tile_x, overlap=not INTERPRETED, registers=registers
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What solves of one shape have in common: the grid, what kernels are given and made for."""

    grid: tuple[int, int, int]
    field: int
    strides: tuple[int, ...]
    extent: tuple[int, int, int]
    by_label: bool
    directions: int
    case: Case
    launch: Launch

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def compiled_for(self, iterations: int, **more: Any) -> Case:
        digits = 63 if self.case.dtype == tl.float64 else 31
        # No difference of lookaheads exceeds the iterations by three.
        scale = float(2.0 ** (digits - (iterations + 2).bit_length()))
        return replace(self.case, scale=scale, **more)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": max(1, self.launch.tile_y * self.launch.tile_x // 32), "num_stages": 1}

    @property
    def step_options(self) -> dict[str, Any]:
        """Those of an iteration, many of which follow each other."""
        return self.options | ({} if INTERPRETED else {"launch_pdl": self.launch.overlap})

    @property
    def reverse_options(self) -> dict[str, Any]:
        limited = self.launch.registers is not None and not INTERPRETED
        return self.step_options | ({"maxnreg": self.launch.registers} if limited else {})


@lru_cache(maxsize=256)
def plan(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weight_shape: tuple[int, ...],
    weight_strides: tuple[int, ...],
    neighbours: int,
    epsilon: bool,
    launch: Launch | None,
) -> Plan:
    """The plan for costs and weights of these shapes."""
    batch, labels, *spatial = shape
    directions = len(offsets(len(spatial), neighbours))
    lean = dtype == torch.float32 and directions == 2
    launch = launch or choose_launch(labels, spatial[-1], lean)
    depth, height, width = (1, 1, *spatial)[-3:]
    down, across = -(-height // launch.tile_y), -(-width // launch.tile_x)
    # Over (batch, label, direction, z, y, x), zero along broadcast axes.
    strides = [0 if n == 1 else step for n, step in zip(weight_shape, weight_strides, strict=True)]
    strides = [*strides[:3], *(0,) * (6 - len(strides)), *strides[3:]]
    image = labels * depth * height * width
    double = dtype == torch.float64
    case = Case(
        labels=tl.constexpr(labels),
        directions=tl.constexpr(directions),
        volume=len(spatial) == 3,
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
    return Plan(
        # Images and slices first: only the first axis of a CUDA grid may be long.
        (batch * depth, down, across), batch * image, tuple(strides), (depth, height, width),
        case.by_label, directions, case, launch,
    )  # fmt: skip
