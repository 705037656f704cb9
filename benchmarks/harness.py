"""What all benchmarks share: tasks timed in turns, memory, errors, bandwidth, growth, records."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from kernel_parts import release_buffers
from record import record
from torch import Tensor

__all__ = [
    "Task",
    "Times",
    "arguments",
    "captured",
    "copy_speed",
    "peak_memory",
    "record",
    "relative_errors",
    "repeat",
    "slope",
    "take_turns",
]

Task = Callable[[], object]


def arguments(description: str, out: str) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks have in common; ``out`` is where results go."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=Path(out), help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each contestant")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    return parser


# --- time -----------------------------------------------------------------------------------------


@dataclass
class Times:
    """Milliseconds of several calls: by the clock, and of the process on all its cores.

    Other load on the machine disturbs the second less; work on a GPU does not count in it.
    """

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def measure(self, task: Task, device: str) -> None:
        _wait(device)
        wall, processor = time.perf_counter(), time.process_time()
        task()
        _wait(device)
        self.wall.append(1e3 * (time.perf_counter() - wall))
        self.processor.append(1e3 * (time.process_time() - processor))

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def least(self) -> float:
        return min(self.wall)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def warm_up(task: Task, device: str, seconds: float = math.inf) -> None:
    """The first call compiles; on a GPU the second captures, and the third is the first replay.

    No call begins after so many ``seconds``.
    """
    end = time.perf_counter() + seconds
    for _ in range(3 if device == "cuda" else 1):
        task()
        if time.perf_counter() > end:
            break


def take_turns(
    tasks: Mapping[str, Task],
    rounds: int,
    device: str = "cpu",
    rest: float = 0.0,
    seconds: float = math.inf,
) -> dict[str, Times]:
    """Each task once a round, so that a change of the machine's mood meets all of them.

    ``rest`` is a pause in seconds before each: threads of the task before may still spin on cores
    that the next one needs. A task that has been measured for so many ``seconds`` sits out the
    rounds that are left.
    """
    for task in tasks.values():
        warm_up(task, device, seconds)
    times = {name: Times() for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            if sum(times[name].wall) < 1e3 * seconds:
                time.sleep(rest)
                times[name].measure(task, device)
    return times


def repeat(task: Task, device: str, seconds: float = 0.3) -> Times:
    """One task, at least three times and as often as fits into some seconds."""
    warm_up(task, device)
    times = Times()
    end = time.perf_counter() + seconds
    while len(times.wall) < 3 or (time.perf_counter() < end and len(times.wall) < 200):
        times.measure(task, device)
    return times


def captured(task: Task) -> Task:
    """The same work, replayed as a CUDA graph: without the time to launch it."""
    task()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        task()
    return graph.replay


# --- memory ---------------------------------------------------------------------------------------


def copy_speed(megabytes: float, device: str) -> float:
    """GB/s of a copy, bytes read and written, the best of many; the floors are made of it."""
    source = torch.randn(int(megabytes * 2**18), device=device)
    target = torch.empty_like(source)
    count = 16 if device == "cuda" else 1

    def copies() -> None:
        for _ in range(count):
            target.copy_(source)

    best = repeat(captured(copies) if device == "cuda" else copies, device).least
    return count * 2 * source.nbytes / (best * 1e6)


def peak_memory(task: Task, device: str) -> float:
    """MiB that a call adds at its peak: the allocator's on a GPU, the resident set's on a CPU.

    NaN where the system does not tell.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        task()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    release_buffers()  # what is kept for the next call would hide what this one needs
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _resident("VmRSS")
        task()
        return _resident("VmHWM") - before
    except (OSError, StopIteration):
        return math.nan


def _resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


# --- numbers --------------------------------------------------------------------------------------


def relative_errors(
    names: Sequence[str], got: Sequence[Tensor], right: Sequence[Tensor]
) -> dict[str, float]:
    """‖x − y‖ / ‖y‖ of each pair, computed in float64; infinite where x is not finite."""
    errors = {}
    for name, x, y in zip(names, got, right, strict=True):
        error = float((x.double() - y.double()).norm() / y.double().norm())
        errors[name] = error if math.isfinite(error) else math.inf
    return errors


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the least-squares line through the logarithms: 1 is linear growth, less is overhead."""
    return statistics.linear_regression(
        [math.log(s) for s in sizes], [math.log(v) for v in values]
    )[0]
