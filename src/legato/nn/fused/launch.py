"""How a problem on a grid is laid on the GPU: tiles, grid, and what kernels are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from legato.nn.fused.replay import INTERPRETED


@dataclass(frozen=True)
class Launch:
    """How a kernel is laid on the machine.

    A program works on tile_y × tile_x pixels, one a thread. With at most `held` labels it keeps
    them all in registers, else it visits them in a loop, `unroll` at a time. `overlap` starts an
    iteration's constant part before the iteration before it has ended. `registers` is how many a
    thread may take: left to itself, the compiler saves some by waiting for one load before it
    starts the next.
    """

    tile_y: int = 8
    tile_x: int = 32
    held: int = 8
    unroll: int = 1
    overlap: bool = not INTERPRETED
    registers: int | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """What solves of one shape have in common: the grid, what kernels are given and made for."""

    grid: tuple[int, ...]
    field: int  # entries of the tape of one iteration
    strides: tuple[int, ...]
    extent: tuple[int, int, int]
    case: Any
    launch: Launch

    def compiled_for(self, **more: Any) -> Any:
        """The case, with what differs between solves of one shape."""
        return replace(self.case, **more)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": max(1, self.launch.tile_y * self.launch.tile_x // 32), "num_stages": 1}

    @property
    def step_options(self) -> dict[str, Any]:
        """Those of an iteration, many of which follow each other."""
        return self.options | ({} if INTERPRETED else {"launch_pdl": self.launch.overlap})

    @property
    def limited_options(self) -> dict[str, Any]:
        """Those of an iteration with a limit on registers."""
        limited = self.launch.registers is not None and not INTERPRETED
        return self.step_options | ({"maxnreg": self.launch.registers} if limited else {})


def extent_of(spatial: Sequence[int]) -> tuple[int, int, int]:
    """(depth, height, width)."""
    depth, height, width = (1, 1, *spatial)[-3:]
    return depth, height, width


def strides_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Over (batch, channel, direction, z, y, x), zero along broadcast axes."""
    steps = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
    return (*steps[:3], *(0,) * (6 - len(steps)), *steps[3:])
