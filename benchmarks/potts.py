"""The Potts kernels against what one would write without them, on the same tensors.

    python benchmarks/potts.py                      the CPU, 2 threads, under 5 minutes
    python benchmarks/potts.py --device cuda        the GPU
    python benchmarks/potts.py --quick              without torch.compile, under a minute
    python benchmarks/potts.py --jax PYTHON         with JAX from another environment

Forward, and forward with the gradients of cost and weights, float32. All rivals run in one process,
a round of all after another, so that a busy machine is unfair to none; first they have to agree.
Prints tables with floors and peak memory, writes JSON and plots of time against size.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import record
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

Potts = Callable[..., Tensor]
Run = Callable[[], object]
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


def loop(several: Callable[..., State], count: int) -> Potts:
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


def ours(kernel: str, **options: Any) -> Potts:
    place = {"triton": "triton.host"}.get(kernel, kernel)
    function = importlib.import_module(f"legato.nn.potts.{place}").potts
    return lambda *x: function(*x[:4], iterations=x[4], **options).probabilities


class Jax:
    """JAX as a rival: another interpreter, so that it may live in another environment."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, JAX_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
            np.savez(path, **{name: getattr(problem, name).detach().numpy() for name in names})
            self.ask(f"load {path} {problem.iterations}")
            results = np.load(path)
            return tuple(torch.from_numpy(results[name]) for name in ("u", "cost", "weights"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def rivals(device: str, *, quick: bool, with_compile: bool) -> dict[str, Potts]:
    kernel = "numba" if device == "cpu" else "triton"
    result = {f"ours ({kernel})": ours(kernel), "eager": loop(step, 1)}
    if not quick:
        result |= {
            "ours, checkpoints": ours(kernel, checkpoint=10),
            "eager, checkpoints": loop(checkpointed(10), 10),
            "reference (engine)": ours("reference"),
        }
    if with_compile:
        result["compile, 1 step"] = loop(torch.compile(steps(1)), 1)
        result["compile, 10 steps"] = loop(torch.compile(steps(10)), 10)
    return result


# --- measuring ------------------------------------------------------------------------------------


@dataclass
class Problem:
    """One set of tensors, and the two things to do with them."""

    shape: tuple[int, int, int, int]
    iterations: int
    scale: float
    device: str

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        batch, _, height, width = self.shape
        cost = torch.randn(self.shape, generator=generator) * self.scale
        weights = torch.rand(batch, 1, 2, height, width, generator=generator) + 0.1
        weights[:, :, 0, -1] = 0
        weights[:, :, 1, :, -1] = 0
        self.cost = cost.to(self.device).requires_grad_()
        self.weights = weights.to(self.device).requires_grad_()
        # τ = σ = 1/L with L = √8 max w.
        self.tau = torch.tensor(1 / (8**0.5 * 1.1), device=self.device)
        self.sigma = self.tau.clone()
        self.bar = torch.randn(self.shape, generator=generator).to(self.device)

    def solve(self, potts: Potts) -> Tensor:
        return potts(self.cost, self.weights, self.tau, self.sigma, self.iterations)

    @torch.no_grad()
    def forward(self, potts: Potts) -> Tensor:
        return self.solve(potts)

    def both(self, potts: Potts) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.solve(potts), (self.cost, self.weights), self.bar)

    def __str__(self) -> str:
        size = "×".join(map(str, self.shape))
        return f"{size}, {self.iterations} iterations, cost scale {self.scale:g}"


def clock(run: Run, device: str) -> float:
    """Milliseconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def release_memory() -> None:
    """Give back what allocators and our buffer pool hold, so that the next call shows its need."""
    gc.collect()
    importlib.import_module("legato.nn.fused.bands").pool.clear()
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_memory(run: Run, device: str) -> float:
    """MiB that a call adds at its peak: the allocator's on CUDA, the resident set's on the CPU."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def resident(field: str) -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024

    try:
        release_memory()
        reset.write_text("5")
        before = resident("VmRSS")
        run()
        return resident("VmHWM") - before
    except (OSError, StopIteration):
        return math.nan


def bandwidth(megabytes: float, device: str) -> float:
    """GB/s of a copy, bytes read and written, the best of many."""
    source = torch.randn(int(megabytes * 2**18), device=device)
    target = torch.empty_like(source)
    best = min(clock(lambda: target.copy_(source), device) for _ in range(30))
    return 2 * source.nbytes / (best * 1e6)


def floors(problem: Problem, rate: float) -> dict[str, float]:
    """Milliseconds if every iteration read and wrote its fields once at `rate` GB/s.

    Forward: a, c, u and two of b in; a, u and two of b out; weights. Reverse: two of u, s, c̄, two
    each of b and q in; s, c̄, b, q out; weights and their gradient. Less only with several
    iterations in the cache at once.
    """
    field, edges = problem.cost.nbytes, problem.weights.nbytes
    forward = problem.iterations * (9 * field + edges)
    reverse = problem.iterations * (14 * field + 3 * edges)
    return {"forward_ms": forward / rate / 1e6, "both_ms": (forward + reverse) / rate / 1e6}


def require_agreement(problem: Problem, potts: dict[str, Potts], jax: Jax | None) -> None:
    """Warm everybody up, and refuse to time different functions against each other."""
    names = list(potts)
    results = [(problem.forward(f), *problem.both(f)) for f in potts.values()]
    if jax is not None:
        names.append("jax scan")
        results.append(jax.load(problem))
    for name, result in zip(names, results, strict=True):
        for what, got, right in zip(("u", "c̄", "w̄"), result, results[0], strict=True):
            error = float((got - right).abs().max() / right.abs().max())
            if not error < 1e-2:
                raise SystemExit(f"{name} and {names[0]} disagree by {error:.1e} in {what}")


def measure(
    problem: Problem, potts: dict[str, Potts], repeats: int, jax: Jax | None
) -> dict[str, dict[str, float]]:
    """Median and least time of each rival, the rivals taking turns."""
    require_agreement(problem, potts, jax)
    calls: dict[tuple[str, str], Run] = {}
    timers: dict[tuple[str, str], Callable[[], float]] = {}
    for name, function in potts.items():
        calls[name, "forward"] = lambda f=function: problem.forward(f)
        calls[name, "both"] = lambda f=function: problem.both(f)
    for key, call in calls.items():
        timers[key] = lambda c=call: clock(c, problem.device)  # type: ignore[misc]
    if jax is not None:
        for what in ("forward", "both"):
            timers["jax scan", what] = lambda w=what: float(jax.ask(w))  # type: ignore[misc]
    times: dict[tuple[str, str], list[float]] = {key: [] for key in timers}
    for turn in range(repeats):
        for key, timer in timers.items():
            often = key[0].startswith(("ours (", "compile")) or problem.device == "cuda"
            if often or turn % 3 == 0 or turn == repeats - 1:
                times[key].append(timer())
    table: dict[str, dict[str, float]] = {}
    for (name, what), values in times.items():
        entry = table.setdefault(name, {})
        entry[f"{what}_ms"] = statistics.median(values)
        entry[f"{what}_least_ms"] = min(values)
    for name in potts:
        table[name]["peak_MiB"] = peak_memory(calls[name, "both"], problem.device)
    return table


# --- reporting ------------------------------------------------------------------------------------


def ratios(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times faster we are than eager, and than the better torch.compile."""
    mine = next(iter(table.values()))
    compiled = [row for name, row in table.items() if name.startswith("compile")]
    result = {}
    for what in ("forward_ms", "both_ms"):
        result[f"eager/ours {what[:-3]}"] = table["eager"][what] / mine[what]
        if compiled:
            best = min(row[what] for row in compiled)
            result[f"best compile/ours {what[:-3]}"] = best / mine[what]
    return result


def print_table(title: str, table: dict[str, Any], floor: dict[str, float]) -> None:
    print(f"\n{title}")
    print(f"{'':20s} {'forward':>9s} {'least':>9s} {'+ reverse':>9s} {'least':>9s} {'MiB':>7s}")
    for name, row in table.items():
        peak = f"{row['peak_MiB']:7.0f}" if "peak_MiB" in row else ""
        print(
            f"{name:20s} {row['forward_ms']:9.2f} {row['forward_least_ms']:9.2f} "
            f"{row['both_ms']:9.2f} {row['both_least_ms']:9.2f} {peak}"
        )
    print(
        f"{'floor, one pass each':20s} {floor['forward_ms']:9.2f} {'':9s} {floor['both_ms']:9.2f}"
    )
    print("  ".join(f"{k}: {v:.2f}×" for k, v in ratios(table).items()), flush=True)


def slope(points: list[tuple[float, float]]) -> float:
    """Of the least-squares line through the logarithms: 1 is linear growth, less is overhead."""
    xs, ys = ([math.log(p[i]) for p in points] for i in (0, 1))
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mx) ** 2 for x in xs
    )


def growth(potts: Potts, device: str, *, quick: bool) -> dict[str, Any]:
    """Time of forward and reverse against pixels and against iterations."""
    sides = (192, 384, 768) if quick else (192, 384, 768, 1536)
    cases = {
        "pixels": [(side * side, Problem((1, 3, side, side), 20, 1.0, device)) for side in sides],
        "iterations": [(n, Problem((1, 3, 240, 320), n, 1.0, device)) for n in (50, 100, 200, 400)],
    }
    result: dict[str, Any] = {}
    for what, problems in cases.items():
        rows = []
        for size, problem in problems:
            problem.both(potts)
            times = {
                "forward_ms": [clock(lambda: problem.forward(potts), device) for _ in range(5)],  # noqa: B023
                "both_ms": [clock(lambda: problem.both(potts), device) for _ in range(5)],  # noqa: B023
            }
            rows.append({what: size} | {k: statistics.median(v) for k, v in times.items()})
        slopes = {
            k: slope([(row[what], row[k]) for row in rows]) for k in ("forward_ms", "both_ms")
        }
        result[what] = {"rows": rows, "slopes": slopes}
        print(f"\ntime against {what}")
        for row in rows:
            print(f"{row[what]:9d} {row['forward_ms']:9.2f} {row['both_ms']:9.2f}")
        print(
            f"log-log slopes {slopes['forward_ms']:.2f} {slopes['both_ms']:.2f} (1 is linear)",
            flush=True,
        )
    return result


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


def versions(jax: Jax | None) -> dict[str, str]:
    names = ("numba", "triton", "numpy")
    found = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    installed = {name: found[name] for name in names if name in found}
    return installed | {"jax": "not installed" if jax is None else jax.version}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="one cost scale, no torch.compile")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 4.0, 16.0])
    parser.add_argument("--jax", default=sys.executable, help="a Python that can import JAX")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    device, quick = options.device, options.quick
    output = options.output or Path(f"out/potts_{device}.json")
    repeats = options.repeats or (3 if quick else 9)
    torch.set_num_threads(options.threads)
    began = time.perf_counter()

    sizes = (4, 64, 1024) if device == "cuda" else (1.5, 6, 30, 300)
    rates = {f"{size} MB": bandwidth(size, device) for size in sizes}
    print("copy, GB/s:", {k: round(v) for k, v in rates.items()}, flush=True)
    rate = max(rates.values()) if device == "cuda" else rates["30 MB"]

    potts = rivals(device, quick=quick, with_compile=not (quick or options.no_compile))
    jax = Jax.start(options.jax) if device == "cpu" and not quick else None
    shapes: list[tuple[tuple[int, int, int, int], int]] = [((1, 3, 240, 320), 100)]
    if device == "cuda" and not quick:
        shapes += [((5, 3, 240, 320), 100), ((5, 8, 240, 320), 100), ((1, 19, 1024, 2048), 20)]
    results: dict[str, Any] = {
        "threads": options.threads,
        "repeats": repeats,
        "versions_of_rivals": versions(jax),
        "bandwidth_GBs": rates,
        "problems": [],
    }
    for shape, iterations in shapes:
        for scale in options.scales[:1] if quick else options.scales:
            problem = Problem(shape, iterations, scale, device)
            table = measure(problem, potts, repeats, jax)
            floor = floors(problem, rate)
            results["problems"].append(
                {
                    "problem": str(problem),
                    "times": table,
                    "floors": floor,
                    "times_faster": ratios(table),
                }
            )
            print_table(str(problem), table, floor)
            record(output, results, device)
    if jax is not None:
        jax.close()
    results["growth"] = growth(next(iter(potts.values())), device, quick=quick)
    results["seconds"] = time.perf_counter() - began
    record(output, results, device)
    plot(results["growth"], output.parent, device)
    print(f"\n{results['seconds']:.0f} s; written to {output}")


if __name__ == "__main__":
    main()
