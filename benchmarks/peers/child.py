"""One row of the race, alone in a process of its own, in the library's own environment.

    python child.py PROBLEM LIBRARY METHOD DATA.npz RESULT.json --seconds 10

The clock starts after the import. ``first`` is the cost of preparing and of the first gradient;
``forward`` is a solve without preparing for a derivative, ``backward`` what a gradient takes beyond
that; both are medians. Memory is what the process adds at its peak to what it holds before it
begins. A limit on the address space is set by whoever starts this process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import re
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from contract import flat


def memory(field: str) -> float:
    """MiB of this process: VmRSS now, or VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def relative_error(found: Any, true: Any) -> float:
    """‖found − true‖/‖true‖ over all entries; infinite where a value is not a number."""
    found, true = flat(found), np.ravel(true)
    if found.shape != true.shape:
        raise ValueError(f"{found.shape[0]} entries where {true.shape[0]} were expected")
    error = float(np.linalg.norm(found - true) / np.linalg.norm(true))
    return error if np.isfinite(error) else float("inf")


class Times(NamedTuple):
    """Medians of repeated calls; CPU time is what others on the machine disturb less."""

    wall: float
    cpu: float
    runs: int


def repeat(call: Callable[[], Any], seconds: float, most: int = 15) -> Times:
    """At least two calls, more while the time lasts; one where it takes much longer than that."""
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < 2 or (sum(wall) < seconds and len(wall) < most):
        begin, used = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
        if wall[0] > 3 * seconds:
            break
    return Times(statistics.median(wall), statistics.median(cpu), len(wall))


def race(problem: str, library: str, method: str, data: dict[str, Any], seconds: float) -> dict:
    methods = importlib.import_module(f"contestants.{library}").METHODS
    build = methods[problem][method]
    forget_peak()
    before = memory("VmRSS")
    begin = time.perf_counter()
    made = build(data)
    row: dict[str, Any] = {"note": made.note}
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if made.gradient is None:
            x = made.solve()
            row["first_s"] = time.perf_counter() - begin
        else:
            x, gradient = made.gradient()
            row["first_s"] = time.perf_counter() - begin
            row["gradient_error"] = relative_error(gradient, data["gradient"])
            numbers = flat(gradient)
            row["gradient_is_zero"] = bool(np.all(numbers == 0))
            if numbers.size <= 4:
                row["gradient"] = numbers.tolist()
        row["solution_error"] = relative_error(x, data["x"])
        row["peak_MiB"] = memory("VmHWM") - before
        said += [f"{w.category.__name__}: {w.message}" for w in caught]
    if made.tells is not None:
        row["tells"] = made.tells()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if made.gradient is not None:
            made.solve()  # compiled apart from the gradient, where there is a compiler
        forward = repeat(made.solve, seconds)
        row |= {"forward_s": forward.wall, "forward_cpu_s": forward.cpu}
        row["runs"] = forward.runs
        if made.gradient is not None:
            both = repeat(made.gradient, seconds)
            row |= {"both_s": both.wall, "both_cpu_s": both.cpu}
            row["backward_s"] = max(both.wall - forward.wall, 0.0)
            row["runs"] = both.runs
    row["peak_MiB"] = max(row["peak_MiB"], memory("VmHWM") - before)
    row["warnings"] = [tidy(text) for text in dict.fromkeys(said)]
    return row


def tidy(text: str) -> str:
    """One line without paths of this machine."""
    return re.sub(r"(/[\w.+-]+){2,}/", "…/", " ".join(text.split()))[:600]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("problem", "library", "method"):
        parser.add_argument(name)
    parser.add_argument("data", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    with np.load(given.data) as file:
        data = {name: file[name] for name in file.files}
    try:
        row = race(given.problem, given.library, given.method, data, given.seconds)
    except MemoryError as error:
        row = {"failed": f"out of memory: {tidy(str(error))}"}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        row = {"failed": tidy(f"{type(error).__name__}: {error}") + f" (in {place})"}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        row["version"] = importlib.metadata.version(given.library)
    given.result.write_text(json.dumps(row))


if __name__ == "__main__":
    main()
