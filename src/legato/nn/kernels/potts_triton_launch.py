"""How lists of Triton launches reach the GPU: once as they are, then replayed as a CUDA graph.

A solve is one table of addresses and a fixed list of launches that look them up, so the list can
be captured once and replayed on whatever tensors come.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# mypy: disable-error-code="assignment"

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato.nn.kernels.neighbourhood import offsets
from legato.nn.kernels.potts_triton_pixels import Case, Place

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


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


@cache
def bits(number: float) -> int:
    """A double as the integer of the same bits, to travel among addresses."""
    return int(struct.unpack("q", struct.pack("d", number))[0])


@triton.jit(do_not_specialize=[f"p{i}" for i in range(Place.ALL)])
def _fill_table(
    table, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11,
    p12, p13, p14, p15, p16, p17, p18, p19, p20, p21, p22,
):  # fmt: skip
    """The addresses travel as arguments of a launch: in stream order, with no copy to wait for."""
    addresses = (
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11,
        p12, p13, p14, p15, p16, p17, p18, p19, p20, p21, p22,
    )  # fmt: skip
    for i in tl.static_range(23):
        tl.store(table + i, addresses[i])


GRAPHS = 64
"""At most so many captured solves are kept, each a list of launches without memory of its own."""


@dataclass
class _Solve:
    """A list of launches, the table that they read, and what fills it."""

    table: Tensor
    fill: Callable[..., object]
    filled: list[int]
    graph: torch.cuda.CUDAGraph | None = None


class Replays:
    """Runs lists of launches, from the second time on as a CUDA graph.

    A graph and its table belong to one stream, so that calls in two streams cannot meet in it.
    """

    def __init__(self) -> None:
        self._solves: OrderedDict[Hashable, _Solve] = OrderedDict()
        self._lock = threading.Lock()

    def run(
        self,
        key: Hashable,
        device: torch.device,
        entries: list[int],
        launch: Callable[[Tensor], None],
    ) -> None:
        """Let `launch(table)` work on these entries, depending on nothing else but the key."""
        if INTERPRETED or torch.cuda.is_current_stream_capturing():
            # The user's own graph takes the launches, and keeps the table.
            table = torch.empty(Place.ALL, dtype=torch.int64, device=device)
            _fill_table[(1,)](table, *entries)
            launch(table)
        elif device.index == torch.cuda.current_device():
            self._run(key, device, entries, launch)
        else:
            with torch.cuda.device(device):
                self._run(key, device, entries, launch)

    def _run(
        self,
        key: Hashable,
        device: torch.device,
        entries: list[int],
        launch: Callable[[Tensor], None],
    ) -> None:
        key = (key, device.index, torch._C._cuda_getCurrentRawStream(device.index))
        with self._lock:
            solve = self._solves.get(key)
            if solve is None:
                # Most of what is seen once is never seen again, and kernels must be compiled
                # before they can be captured.
                table = torch.empty(Place.ALL, dtype=torch.int64, device=device)
                fill = _fill_table[(1,)](table, *entries)
                self._remember(key, _Solve(table, fill[(1, 1, 1)], entries))
                launch(table)
                return
            self._solves.move_to_end(key)
            if solve.graph is None:
                solve.graph = _capture(solve.table, launch)
            # An allocator that gives the same addresses again saves the launch.
            if solve.filled != entries:
                solve.fill(solve.table, *entries)
                solve.filled = entries
            solve.graph.replay()

    def _remember(self, key: Hashable, solve: _Solve) -> None:
        self._solves[key] = solve
        if len(self._solves) > GRAPHS:
            # A graph must not be destroyed while it runs.
            torch.cuda.synchronize()
            self._solves.popitem(last=False)


def _capture(table: Tensor, launch: Callable[[Tensor], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # Nothing is allocated while capturing, so other threads may go on as they like.
    with torch.cuda.stream(torch.cuda.Stream(table.device)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch(table)
        finally:
            graph.capture_end()
    return graph


replays = Replays()
