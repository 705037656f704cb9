"""How lists of Triton launches reach the GPU: once as they are, then replayed as a CUDA graph.

A solve is one table of addresses and a fixed list of launches that look them up, so the list can
be captured once and replayed on whatever tensors come.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from legato._support.forking import renew_after_fork

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
TABLE_ENTRIES = 23
"""Entries of a table, used or not."""

Entries = Mapping[Any, Tensor | int]
"""Tensors, addresses or bits of a number, by slot: constants such as `COST = tl.constexpr(0)`."""


def make_slots() -> tuple[tl.constexpr, ...]:
    """Numbers for the slots of a table, as constants that kernels may name."""
    return tuple(tl.constexpr(i) for i in range(TABLE_ENTRIES))


def addresses(entries: Entries, default: Tensor) -> list[int]:
    """The table as numbers; what is absent has an address that may be read."""
    table = [default.data_ptr()] * TABLE_ENTRIES
    for slot, entry in entries.items():
        table[slot.value] = entry.data_ptr() if isinstance(entry, Tensor) else entry
    return table


@cache
def bits(number: float) -> int:
    """A double as the integer of the same bits, to travel among addresses."""
    return int(struct.unpack("q", struct.pack("d", number))[0])


@triton.jit(do_not_specialize=[f"p{i}" for i in range(TABLE_ENTRIES)])
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


MOST_GRAPHS = 64
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
        self._forget()
        renew_after_fork(self._forget)

    def _forget(self) -> None:
        """CUDA does not survive a fork, and neither do its graphs."""
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
            table = torch.empty(TABLE_ENTRIES, dtype=torch.int64, device=device)
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
                table = torch.empty(TABLE_ENTRIES, dtype=torch.int64, device=device)
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
        if len(self._solves) > MOST_GRAPHS:
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
