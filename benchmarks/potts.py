"""The Potts kernels against what one would write without them, on the same tensors.

    python benchmarks/potts.py                      the CPU, 2 threads, under 5 minutes
    python benchmarks/potts.py --device cuda        the GPU
    python benchmarks/potts.py --quick              without torch.compile, under a minute
    python benchmarks/potts.py --jax PYTHON         with JAX from another environment
    python benchmarks/potts.py --device cuda --launches    ways to lay the kernels on the GPU

Forward, and forward with the gradients of cost and weights, float32. All rivals run in one process,
a round of all after another, so that a busy machine is unfair to none; first they have to agree,
and errors against float64 are part of the record. Prints tables with floors and peak memory, writes
JSON after each problem, and plots of time against size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import (
    Task,
    arguments,
    copy_speed,
    peak_memory,
    record,
    relative_errors,
    repeat,
    slope,
    take_turns,
)
from kernel_parts import potts_function, potts_launches
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from legato.nn import Potts

Solver = Callable[..., Tensor]  # (cost, weights, τ, σ, iterations) to the last u
State = tuple[Tensor, Tensor, Tensor]

JAX_SERVER = Path(__file__).with_name("jax_potts.py")

# --- rivals ---------------------------------------------------------------------------------------


def step(a: Tensor, b: Tensor, u: Tensor, c: Tensor, w: Tensor, t: Tensor, s: Tensor) -> State:
    """One iteration as one would write it in torch; the last row and column have weight zero."""
    y = w * torch.tanh(b)
    down, right = y[:, :, 0], y[:, :, 1]
    force = c + pad(down, (0, 0, 1, 0))[:, :, :-1] - down + pad(right, (1, 0))[..., :-1] - right
    a = a - t * force
    a = a - a.amax(1, keepdim=True)
    new = torch.softmax(a, 1)
    v = 2 * new - u
    rise = torch.stack(
        (pad(v[:, :, 1:] - v[:, :, :-1], (0, 0, 0, 1)), pad(v[..., 1:] - v[..., :-1], (0, 1))), 2
    )
    return a, b + s * w * rise, new


def steps(count: int) -> Callable[..., State]:
    """Several iterations as one function."""

    def several(a: Tensor, b: Tensor, u: Tensor, *rest: Tensor) -> State:
        for _ in range(count):
            a, b, u = step(a, b, u, *rest)
        return a, b, u

    return several


def loop(several: Callable[..., State], count: int) -> Solver:
    """All iterations, `count` of them a call."""

    def potts(c: Tensor, w: Tensor, tau: Tensor, sigma: Tensor, iterations: int) -> Tensor:
        a, u = torch.zeros_like(c), torch.full_like(c, 1 / c.shape[1])
        b = c.new_zeros(*c.shape[:2], 2, *c.shape[2:])
        if torch.is_grad_enabled() and c.requires_grad:  # else the first call compiles differently
            a, b, u = (t.requires_grad_() for t in (a, b, u))
        for _ in range(iterations // count):
            a, b, u = several(a, b, u, c, w, tau, sigma)
        return u

    return potts


def checkpointed(count: int) -> Callable[..., State]:
    several = steps(count)
    return lambda *state: checkpoint(several, *state, use_reentrant=False)


class Jax:
    """JAX as a rival: another interpreter, so that it may live in another environment."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, JAX_SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},  # it shares the GPU
        )
        self.version = self.answer()

    @classmethod
    def start(cls, python: str) -> Jax | None:
        """None where that interpreter cannot import JAX."""
        if subprocess.run([python, "-c", "import jax"], capture_output=True).returncode:
            return None
        return cls(python)

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("the JAX process ended early")
        return line

    def ask(self, question: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self.answer()

    def load(self, problem: Problem) -> tuple[Tensor, ...]:
        """Take the tensors of a problem; u and the gradients of cost and weights."""
        names = ("cost", "weights", "tau", "sigma", "bar")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            np.savez(
                path, **{name: getattr(problem, name).detach().cpu().numpy() for name in names}
            )
            self.ask(f"load {path} {problem.iterations}")
            results = np.load(path)
            return tuple(torch.from_numpy(results[name]) for name in ("u", "cost", "weights"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def our_layer() -> Solver:
    """The module, which finds τ and σ itself."""
    layers: dict[int, Potts] = {}

    def solve(cost: Tensor, weights: Tensor, tau: Tensor, sigma: Tensor, iterations: int) -> Tensor:
        layer = layers.setdefault(iterations, Potts(iterations).to(cost.device))
        return layer(cost, weights).exp()

    return solve


def rivals(device: str, *, quick: bool, with_compile: bool) -> dict[str, Solver]:
    kernel = "numba" if device == "cpu" else "triton"
    result = {"ours": potts_function(kernel), "eager": loop(step, 1)}
    if not quick:
        result |= {
            "ours, the module": our_layer(),
            "ours, checkpoints": potts_function(kernel, checkpoint=10),
            "eager, checkpoints": loop(checkpointed(10), 10),
            "reference (engine)": potts_function("reference"),
        }
    if with_compile:
        result["compile"] = loop(torch.compile(steps(1)), 1)
        result["compile, 10 steps"] = loop(torch.compile(steps(10)), 10)
    return result


# --- measuring ------------------------------------------------------------------------------------


@dataclass
class Problem:
    """One set of tensors, and the two things to do with them."""

    shape: tuple[int, int, int, int]
    iterations: int
    device: str
    scale: float = 1.0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        batch, _, height, width = self.shape
        cost = torch.randn(self.shape, generator=generator) * self.scale
        weights = torch.rand(batch, 1, 2, height, width, generator=generator) + 0.1
        weights[:, :, 0, -1] = 0
        weights[:, :, 1, :, -1] = 0
        bar = torch.randn(self.shape, generator=generator)
        tau = torch.tensor(1 / (8**0.5 * 1.1))  # τ = σ = 1/L with L = √8 max w
        self.cost, self.weights, self.bar, self.tau = (
            t.to(self.device, self.dtype) for t in (cost, weights, bar, tau)
        )
        self.sigma = self.tau.clone()
        self.cost.requires_grad_(), self.weights.requires_grad_()

    def solve(self, potts: Solver) -> Tensor:
        return potts(self.cost, self.weights, self.tau, self.sigma, self.iterations)

    @torch.no_grad()
    def forward(self, potts: Solver) -> Tensor:
        return self.solve(potts)

    def both(self, potts: Solver) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.solve(potts), (self.cost, self.weights), self.bar)

    def results(self, potts: Solver) -> tuple[Tensor, ...]:
        return self.forward(potts), *self.both(potts)

    def __str__(self) -> str:
        scale = "" if self.scale == 1 else f", costs times {self.scale:g}"
        return "x".join(map(str, self.shape)) + scale


def floors(problem: Problem, rate: float) -> dict[str, float]:
    """Milliseconds if every iteration read and wrote its fields once at `rate` GB/s.

    On a GPU, forward: a, c, two of Z in, a and Z out, weights; reverse: two of Z, ā, Q, c̄ in, ā, Q,
    c̄ out, weights, and their gradient in and out. On a CPU, forward: a, c, u and two of b in; a, u
    and two of b out; weights; reverse: two of u, s, c̄, two each of b and q in; s, c̄, b, q out;
    weights and their gradient. Less only with several iterations in the cache at once.
    """
    field, edges = problem.cost.nbytes, problem.weights.nbytes
    passes = (6, 8) if problem.device == "cuda" else (9, 14)
    forward = problem.iterations * (passes[0] * field + edges)
    reverse = problem.iterations * (passes[1] * field + 3 * edges)
    return {"forward_ms": forward / rate / 1e6, "both_ms": (forward + reverse) / rate / 1e6}


def errors(problem: Problem, potts: Solver) -> dict[str, float]:
    """How far u and both gradients are from those of the engine in float64."""
    exact = Problem(problem.shape, problem.iterations, problem.device, problem.scale, torch.float64)
    return relative_errors(
        ("u", "cost", "weights"),
        problem.results(potts),
        exact.results(potts_function("reference", checkpoint=10)),  # whose whole tape is 100 GB
    )


def require_agreement(problem: Problem, potts: dict[str, Solver], jax: Jax | None) -> None:
    """Refuse to time different functions against each other."""
    results = {name: problem.results(f) for name, f in potts.items()}
    if jax is not None:
        results["jax"] = jax.load(problem)
    for name, result in results.items():
        right = [t.to(result[0].device) for t in results["ours"]]
        worst = max(relative_errors(("u", "c̄", "w̄"), result, right).values())
        if not worst < 1e-2:
            raise SystemExit(f"{name} and ours disagree by {worst:.1e}")


def measure(
    problem: Problem, potts: dict[str, Solver], rounds: int, jax: Jax | None
) -> dict[str, dict[str, float]]:
    """Median and least time of each rival, the rivals taking turns, and its peak memory."""
    require_agreement(problem, potts, jax)
    table: dict[str, dict[str, float]] = {name: {} for name in potts}
    for what, call in (("forward", problem.forward), ("both", problem.both)):
        tasks: dict[str, Task] = {name: partial(call, f) for name, f in potts.items()}
        for name, times in take_turns(tasks, rounds, problem.device).items():
            table[name] |= {f"{what}_ms": times.median, f"{what}_least_ms": times.least}
        if jax is not None:  # it tells its own time
            asked = sorted(float(jax.ask(what)) for _ in range(rounds))
            entry = table.setdefault("jax", {})
            entry |= {f"{what}_ms": asked[rounds // 2], f"{what}_least_ms": asked[0]}
    for name, function in potts.items():
        table[name]["peak_MiB"] = peak_memory(partial(problem.both, function), problem.device)
    return table


def launches(problem: Problem) -> dict[str, float]:
    """Milliseconds of forward and reverse for several ways to lay the kernels on the GPU."""
    tried = potts_launches(problem.shape[1], problem.shape[3])
    return {name: repeat(partial(problem.both, f), "cuda").median for name, f in tried.items()}


def growth(potts: Solver, device: str, *, quick: bool) -> dict[str, Any]:
    """Time of forward and reverse against pixels and against iterations."""
    sides = (192, 384, 768) if quick else (192, 384, 768, 1536)
    cases = {
        "pixels": [(side * side, Problem((1, 3, side, side), 20, device)) for side in sides],
        "iterations": [(n, Problem((1, 3, 240, 320), n, device)) for n in (50, 100, 200, 400)],
    }
    result: dict[str, Any] = {}
    for what, problems in cases.items():
        rows = [
            {
                what: size,
                "forward_ms": repeat(partial(problem.forward, potts), device).median,
                "both_ms": repeat(partial(problem.both, potts), device).median,
            }
            for size, problem in problems
        ]
        sizes = [row[what] for row in rows]
        slopes = {k: slope(sizes, [row[k] for row in rows]) for k in ("forward_ms", "both_ms")}
        result[what] = {"rows": rows, "slopes": slopes}
        print(f"\ntime against {what}, log-log slopes {slopes} (1 is linear)")
        for row in rows:
            print(f"{row[what]:9d} {row['forward_ms']:9.2f} {row['both_ms']:9.2f}", flush=True)
    return result


# --- reporting ------------------------------------------------------------------------------------


def print_table(problem: Problem, table: dict[str, dict[str, float]]) -> None:
    columns = ("forward_ms", "forward_least_ms", "both_ms", "both_least_ms", "peak_MiB")
    print(f"\n{problem}, {problem.iterations} iterations\n{'':20s}", *columns, sep="  ")
    for name, row in table.items():
        cells = (f"{row[c]:{len(c)}.2f}" if c in row else " " * len(c) for c in columns)
        print(f"{name:20s}", *cells, sep="  ", flush=True)


def plot(growing: dict[str, Any], folder: Path, name: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for what, result in growing.items():
        figure, axes = plt.subplots(figsize=(4.5, 3.4), layout="constrained")
        sizes = [row[what] for row in result["rows"]]
        for key, label in (("forward_ms", "forward"), ("both_ms", "forward + reverse")):
            times = [row[key] for row in result["rows"]]
            axes.loglog(sizes, times, "o-", label=f"{label}, slope {result['slopes'][key]:.2f}")
            line = [times[-1] * size / sizes[-1] for size in sizes]
            axes.loglog(sizes, line, ":", color="grey", linewidth=1)
        axes.set(xlabel=what, ylabel="ms", title=f"Potts, {name} (dotted: linear)")
        axes.legend()
        figure.savefig(folder / f"potts_{name}_{what}.png", dpi=150)
        plt.close(figure)


def main() -> None:
    parser = arguments(__doc__ or "", "out/potts.json")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--launches", action="store_true", help="ways to lay out the GPU kernels")
    parser.add_argument("--jax", default=sys.executable, help="a Python that can import JAX")
    parser.set_defaults(threads=2)
    given = parser.parse_args()
    device, quick = given.device, given.quick
    torch.set_num_threads(given.threads)
    began = time.perf_counter()

    rates = {size: copy_speed(size, device) for size in (4, 12, 1024)}
    print("copy, GB/s:", {f"{k} MB": round(v) for k, v in rates.items()}, flush=True)
    potts = rivals(device, quick=quick, with_compile=not (quick or given.no_compile))
    jax = None if quick else Jax.start(given.jax)
    problems = [Problem((1, 3, 240, 320), 100, device)]
    if device == "cuda" and not quick:
        problems += [
            Problem((5, 3, 240, 320), 100, device),
            Problem((5, 8, 240, 320), 100, device),
            Problem((1, 19, 1024, 2048), 20, device),
        ]
    elif not quick:
        problems += [Problem((1, 3, 240, 320), 100, device, scale) for scale in (4.0, 16.0)]
    results: dict[str, Any] = {
        "rounds": given.rounds,
        "jax": "not installed" if jax is None else jax.version,
        "copy_GBs": {f"{size} MB": rate for size, rate in rates.items()},
        "problems": {},
        "relative error to float64": {},
    }
    for problem in problems:
        table = measure(problem, potts, given.rounds, jax)
        rate = rates[12 if problem.cost.numel() < 10**7 else 1024]
        results["problems"][str(problem)] = {"floor": floors(problem, rate)} | table
        results["relative error to float64"][str(problem)] = errors(problem, potts["ours"])
        if given.launches:
            results.setdefault("launches", {})[str(problem)] = launches(problem)
        print_table(problem, results["problems"][str(problem)])
        record(given.out, results, device)
    if jax is not None:
        jax.close()
    results["growth"] = growth(potts["ours"], device, quick=quick)
    results["seconds"] = time.perf_counter() - began
    record(given.out, results, device)
    plot(results["growth"], given.out.parent, device)
    print(f"\n{results['seconds']:.0f} s; written to {given.out}")


if __name__ == "__main__":
    main()
