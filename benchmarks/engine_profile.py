"""Where the time of one compiled solve goes: the clock, calls of torch, graphs, waits, Python.

    python benchmarks/engine_profile.py --device cuda --rows lasso nnls

For each row of `engine.py`: milliseconds forward, with `Unroll`, with `Implicit`; how often its
backward pass calls torch outside of graphs, replays a graph, and waits for the device; and the
functions that it spends its time in. Then the small factorisations of `Direct`, call by call and in
a graph. It prints, for a person who looks for what to make faster; nothing is recorded.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from harness import arguments
from torch import Tensor

import legato as lg
from engine import Row, rows
from legato.gradients import fixed_point

SHAPES = ((256, 20), (1024, 50), (1, 300), (1, 500), (1, 1000))
"""Systems of the rows, and some beside them: how many, of how many unknowns."""


def clock(task: Callable[[], object], device: str, rounds: int = 7) -> float:
    """Milliseconds of a call, the median of some after three others."""
    times = []
    for _ in range(3 + rounds):
        wait(device)
        began = time.perf_counter()
        task()
        wait(device)
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times[3:]), 3)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# --- one backward pass ----------------------------------------------------------------------------


def calls(task: Callable[[], object]) -> tuple[Counter[str], int]:
    """What the host asks of torch, by name, and how many graphs it starts."""
    with torch.profiler.profile() as profile:
        task()
    names: Counter[str] = Counter()
    graphs = 0
    for event in profile.events():
        graphs += event.name == "cudaGraphLaunch"
        if event.name.startswith("aten::") and not _is_inside(event):
            names[event.name] += 1
    return names, graphs


def _is_inside(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False


def waits(task: Callable[[], object], device: str) -> Counter[str]:
    """Where the host waits for the device, by line of the library."""
    if device != "cuda":
        return Counter()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            task()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    synchronising = [w for w in said if "synchroniz" in str(w.message)]
    return Counter(f"{w.filename.rpartition('src/')[2]}:{w.lineno}" for w in synchronising)


def profiled(task: Callable[[], object], most: int) -> str:
    """The functions that a backward pass takes its time in; a GPU's runs in a thread of torch's."""
    profile = cProfile.Profile()
    inner = fixed_point._ReplaceCotangent.backward

    def backward(*arguments: Any) -> Any:
        profile.enable()
        try:
            return inner(*arguments)
        finally:
            profile.disable()

    fixed_point._ReplaceCotangent.backward = staticmethod(backward)
    try:
        task()
    finally:
        fixed_point._ReplaceCotangent.backward = staticmethod(inner)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(most)
    return text.getvalue()


def show(name: str, row: Row, device: str) -> None:
    engine = lg.Compiled()
    print(f"=== {name}", flush=True)
    for kind, task in (
        ("forward", lambda: row.forward(engine)),
        ("unroll", lambda: row.both(engine, lg.Unroll())),
        ("implicit", lambda: row.both(engine, row.implicit)),
    ):
        print(kind, clock(task, device), "ms", flush=True)
    theta = row.theta.detach().requires_grad_()

    def solved() -> lg.Solution:
        return lg.solve(
            row.make(theta), row.algorithm, row.start, gradient=row.implicit,
            stop=lg.Stop(row.iterations), engine=engine,
        )  # fmt: skip

    print("forward of implicit", clock(solved, device), "ms")
    for what, task in (("no grad", lambda: row.forward(engine)), ("implicit", solved)):
        names, graphs = calls(task)
        print(
            f"forward, {what}:",
            names.total(),
            "calls,",
            graphs,
            "graphs",
            dict(waits(task, device)),
        )
    solution = solved()
    (solution.x * row.bar).sum().backward()
    print(solution.backward)
    losses = [(solved().x * row.bar).sum() for _ in range(4)]
    names, graphs = calls(losses.pop().backward)
    print("backward:", names.total(), "calls,", graphs, "graphs", names.most_common(16))
    print("waits:", dict(waits(losses.pop().backward, device)))
    print(profiled(losses.pop().backward, 40), flush=True)


# --- small factorisations -------------------------------------------------------------------------


def factorisations(device: str) -> None:
    for count, size in SHAPES:
        A = torch.randn(count, 2 * size, size, device=device)
        M = A.mT @ A / size + torch.eye(size, device=device)
        b = torch.randn(count, size, 1, device=device)
        for name, task in _ways(M, b).items():
            try:
                direct = clock(task, device)
                alone = clock(_captured(task), device) if device == "cuda" else None
            except RuntimeError as error:
                direct, alone = None, str(error).splitlines()[0][:200]
            print("system", count, size, name, direct, "in a graph:", alone, flush=True)


def _ways(M: Tensor, b: Tensor) -> dict[str, Callable[[], Tensor]]:
    def lu() -> Tensor:
        factors, pivots, _ = torch.linalg.lu_factor_ex(M)
        return torch.linalg.lu_solve(factors, pivots, b)

    def cholesky() -> Tensor:
        return torch.cholesky_solve(b, torch.linalg.cholesky_ex(M)[0])

    return {
        "lu": lu,
        "cholesky": cholesky,
        "solve": lambda: torch.linalg.solve_ex(M, b)[0],
        "inverse": lambda: torch.linalg.inv_ex(M)[0],
        "powers": lambda: torch.linalg.matrix_power(M, 8),
    }


def _captured(task: Callable[[], Tensor]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        task()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        task()
    return graph.replay


def main() -> None:
    parser = arguments(__doc__ or "", "out/engine_profile.json")
    parser.add_argument("--rows", nargs="*", default=["lasso", "nnls", "simplex", "potts"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    found = rows(options.device, torch.float32, options.quick)
    for name in options.rows:
        show(name, found[name], options.device)
    factorisations(options.device)


if __name__ == "__main__":
    main()
