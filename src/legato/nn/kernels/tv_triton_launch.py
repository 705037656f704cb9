"""How total variation is laid on the GPU: tiles, grid, and what the kernels are compiled for."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from legato.nn.kernels.triton_replay import INTERPRETED
from legato.nn.kernels.tv_iterates import Coupling, step_size
from legato.nn.kernels.tv_triton_pixels import Case


@dataclass(frozen=True)
class Launch:
    """How a kernel is laid on the machine.

    A program works on tile_y × tile_x pixels, one a thread. `overlap` starts an iteration's
    constant part before the iteration before it has ended. `registers` is how many a thread may
    take: left to itself, the compiler saves some by waiting for one load before it starts the next.
    """

    tile_y: int = 8
    tile_x: int = 32
    overlap: bool = True
    registers: int | None = None


def choose_launch(width: int) -> Launch:
    """The launch that measured best, fitted to narrow images."""
    tile_x = min(Launch.tile_x, triton.next_power_of_2(width))
    return Launch(Launch.tile_y * Launch.tile_x // tile_x, tile_x, overlap=not INTERPRETED)


@dataclass(frozen=True, eq=False)
class Plan:
    """What solves of one shape have in common: the grid, what kernels are given and made for."""

    grid: tuple[int]
    tape_shape: tuple[int, ...]
    tape_dtype: torch.dtype
    field: int
    strides: tuple[int, ...]
    extent: tuple[int, int, int]
    case: Case
    launch: Launch

    def compiled_for(self, **more: bool) -> Case:
        return replace(self.case, **more)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": max(1, self.launch.tile_y * self.launch.tile_x // 32), "num_stages": 1}

    @property
    def step_options(self) -> dict[str, Any]:
        """Those of an iteration, many of which follow each other."""
        options = self.options
        if not INTERPRETED:
            options |= {"launch_pdl": self.launch.overlap}
            if self.launch.registers is not None:
                options |= {"maxnreg": self.launch.registers}
        return options


def is_grouped(channels: int, coupling: Coupling) -> bool:
    """Whether entries are projected in groups; one by one, their norms are absolute values."""
    return coupling.directions or (coupling.channels and channels > 1)


def tape_of(
    shape: tuple[int, ...], dtype: torch.dtype, coupling: Coupling
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of the tape of one iteration."""
    if is_grouped(shape[1], coupling):
        return (*shape[:2], len(shape) - 2, *shape[2:]), dtype
    return shape, torch.uint8


@lru_cache(maxsize=256)
def plan(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weight_shape: tuple[int, ...],
    weight_strides: tuple[int, ...],
    coupling: Coupling,
    launch: Launch | None,
) -> Plan:
    """The plan for images and λ of these shapes."""
    batch, channels, *spatial = shape
    joint = coupling.channels and channels > 1
    directions = len(spatial)
    launch = launch or choose_launch(spatial[-1])
    depth, height, width = (1, 1, *spatial)[-3:]
    down, across = -(-height // launch.tile_y), -(-width // launch.tile_x)
    # Over (batch, channel, direction, z, y, x), zero along broadcast axes.
    strides = [0 if n == 1 else step for n, step in zip(weight_shape, weight_strides, strict=True)]
    strides = [*strides[:3], *(0,) * (6 - len(strides)), *strides[3:]]
    images, inner = (batch, channels) if joint else (batch * channels, 1)
    tape_shape, tape_dtype = tape_of(shape, dtype, coupling)
    number = tl.float64 if dtype == torch.float64 else tl.float32
    grouped = is_grouped(channels, coupling)
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
    field = 1
    for size in tape_shape:
        field *= size
    return Plan(
        (images * depth * down * across,), tape_shape, tape_dtype, field, tuple(strides),
        (depth, height, width), case, launch,
    )  # fmt: skip
