"""Checks the Triton Potts kernels on a GPU, times ways to launch them, and their rivals.

    python benchmarks/potts_gpu_check.py --commit $(git rev-parse HEAD) [--budget 270]
        [--launches] [--rivals | --rivals-from old/potts_h200.json]

Writes everything to potts_h200.json in the folder $OUT (or the current one) as it goes, and prints
a short table last. Stops starting new measurements once its time budget is spent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import triton
from potts import loop, step, steps
from record import provenance
from torch import Tensor

from legato.nn import Potts
from legato.nn.fused.launch import Launch
from legato.nn.fused.operator import register
from legato.nn.neighbourhood import offsets
from legato.nn.potts.model import PottsSettings, potts_function
from legato.nn.potts.reference import potts as reference
from legato.nn.potts.triton import host as triton_kernel
from legato.nn.potts.triton.host import TritonPotts, choose_launch
from legato.nn.potts.triton.host import potts as ours

PROBLEMS = {
    "1x3x240x320": ((1, 3, 240, 320), 100, 0.9),
    "5x3x240x320": ((5, 3, 240, 320), 100, 3.5),
    "5x8x240x320": ((5, 8, 240, 320), 100, 9.0),
    "1x19x1024x2048": ((1, 19, 1024, 2048), 20, 30.0),
}

CHECKS: list[dict[str, Any]] = [
    {"shape": (2, 3, 65, 129), "iterations": 20},
    {"shape": (2, 3, 65, 129), "iterations": 20, "epsilon": 0.1, "average": True},
    {"shape": (1, 8, 120, 161), "iterations": 20, "neighbours": 8},
    {"shape": (1, 19, 64, 100), "iterations": 10, "weights": "label"},
    {"shape": (1, 64, 33, 47), "iterations": 10, "weights": "all"},
    {"shape": (2, 4, 17, 33, 41), "iterations": 10, "average": True},
    {"shape": (32, 2, 31, 37), "iterations": 20, "checkpoint": 6},
    {"shape": (1, 5, 1, 1000), "iterations": 20},
    {"shape": (1, 5, 1000, 1), "iterations": 20},
    {"shape": (1, 3, 240, 320), "iterations": 100},
    {"shape": (1, 3, 240, 320), "iterations": 100, "cold": True},
    {"shape": (1, 3, 240, 320), "iterations": 100, "scale": 8.0},
    {"shape": (1, 2, 64, 65), "iterations": 100, "weight_scale": 100.0},
    {"shape": (1, 3, 40, 33), "iterations": 500, "epsilon": 0.05},
    {"shape": (1, 2, 20, 33), "iterations": 1500, "epsilon": 0.05, "average": True},
]


# --- correctness ----------------------------------------------------------------------------------


def draw(check: dict[str, Any]) -> list[Tensor]:
    """cost, weights, τ, σ and, unless the start is cold, a⁰ and b⁰, in float64."""
    shape = check["shape"]
    axes = len(shape) - 2
    edges = len(offsets(axes, check.get("neighbours", 4)))
    weights = {
        "pixel": (shape[0], 1, edges, *shape[2:]),
        "label": (1, shape[1], 1, *(1,) * axes),
        "all": (*shape[:2], edges, *shape[2:]),
    }[check.get("weights", "pixel")]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, device="cuda")

    scale = check.get("weight_scale", 1.0)
    size = torch.tensor(0.3 / scale, dtype=torch.float64, device="cuda")
    tensors = [
        normal(*shape) * check.get("scale", 1.0),
        (normal(*weights).abs() * 0.5 + 0.1) * scale,
        size,
        size * 1.2,
    ]
    if check.get("cold"):
        return tensors
    return [*tensors, normal(*shape), normal(*shape[:2], edges, *shape[2:]) * 0.5]


def outputs_and_gradients(
    potts: Callable[..., Any], tensors: list[Tensor], check: dict[str, Any], bars: list[Tensor]
) -> list[Tensor]:
    """Every output, then every gradient of its product with `bars`, drawn when there are none."""
    names = ("iterations", "epsilon", "neighbours", "average", "checkpoint")
    options = {name: check[name] for name in names if name in check}
    t = [x.clone().requires_grad_() for x in tensors]
    start = dict(zip(("mirror", "dual"), t[4:], strict=False))
    out = [o for o in potts(*t[:4], **start, **options) if o is not None]
    if not bars:
        bars += [torch.randn_like(o) for o in out]
    loss = sum((o * bar.to(o.dtype)).sum() for o, bar in zip(out, bars, strict=True))
    return [*(o.detach() for o in out), *torch.autograd.grad(loss, t)]


def errors_of(got: list[Tensor], right: list[Tensor]) -> list[float]:
    """Errors relative to the larger of 1 and the size of the tensor."""
    errors = []
    for x, y in zip(got, right, strict=True):
        error = (x.double() - y).abs().max() / y.abs().max().clamp(min=1)
        errors.append(float(error) if torch.isfinite(x).all() else float("inf"))
    return errors


def worst(got: list[Tensor], right: list[Tensor]) -> float:
    return max(errors_of(got, right))


def error_of(
    check: dict[str, Any], potts: Callable[..., Any], dtype: torch.dtype
) -> tuple[float, str]:
    """The largest error of two calls on tensors of their own, launched and replayed, and where."""
    names = ["a", "b", "u", *(["mean"] if check.get("average") else [])]
    names += [f"gradient of {name}" for name in ("cost", "weights", "τ", "σ", "a⁰", "b⁰")]
    worst_of_all = (0.0, "")
    for _ in range(2):
        tensors = draw(check)
        bars: list[Tensor] = []
        right = outputs_and_gradients(reference, tensors, check, bars)
        got = outputs_and_gradients(potts, [t.to(dtype) for t in tensors], check, bars)
        errors = errors_of(got, right)
        worst_of_all = max(worst_of_all, max(zip(errors, names, strict=False)))
        if check["iterations"] > 200:
            break
    return worst_of_all


def gradients_of_ours(cost: Tensor, weights: Tensor, tau: Tensor, bar: Tensor) -> list[Tensor]:
    u = ours(cost, weights, tau, tau, iterations=50).probabilities
    return [u.detach(), *torch.autograd.grad(u, (cost, weights), bar)]


def integration_errors() -> dict[str, float]:
    """Within a user's CUDA graph, in several streams and threads at once, and compiled."""
    shape = (2, 3, 120, 160)

    def fresh() -> tuple[Tensor, ...]:
        cost = torch.randn(shape, device="cuda", requires_grad=True)
        weights = torch.rand(2, 1, 2, 120, 160, device="cuda", requires_grad=True)
        tau = torch.tensor(0.3, device="cuda")
        return cost, weights, tau, torch.randn(shape, device="cuda")

    def right(given: tuple[Tensor, ...]) -> list[Tensor]:
        cost, weights, tau, bar = (t.detach().double() for t in given)
        cost.requires_grad_(), weights.requires_grad_()
        u = reference(cost, weights, tau, tau, iterations=50).probabilities
        return [u.detach(), *torch.autograd.grad(u, (cost, weights), bar)]

    errors = {}
    static = fresh()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            gradients_of_ours(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = gradients_of_ours(*static)
    other = fresh()
    with torch.no_grad():
        for target, source in zip(static, other, strict=True):
            target.copy_(source)
    graph.replay()
    torch.cuda.synchronize()
    errors["in the user's graph"] = worst(result, right(other))

    inputs = [fresh() for _ in range(4)]
    results: dict[int, list[Tensor]] = {}

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(6):
                results[i] = gradients_of_ours(*inputs[i])

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    errors["streams and threads"] = max(worst(results[i], right(inputs[i])) for i in range(4))

    cost, weights, tau, bar = inputs[0]
    layer = torch.compile(lambda c, w: ours(2 * c, w, tau, tau, iterations=50).probabilities.sin())
    u = layer(cost, weights)
    compiled = [u.detach(), *torch.autograd.grad(u, (cost, weights), bar)]
    u = ours(2 * cost, weights, tau, tau, iterations=50).probabilities.sin()
    plain = [u.detach(), *torch.autograd.grad(u, (cost, weights), bar)]
    errors["compiled"] = worst(compiled, [p.double() for p in plain])
    return errors


# --- speed ----------------------------------------------------------------------------------------


def median_ms(run: Callable[[], object], seconds: float = 0.3) -> float:
    """Median time of a call on the device, by events."""
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def bandwidth(megabytes: int) -> float:
    """Bytes read and written per second by a copy, in GB/s, sixteen copies a graph."""
    source = torch.randn(megabytes * 2**18, device="cuda")
    target = torch.empty_like(source)
    graph = torch.cuda.CUDAGraph()
    target.copy_(source)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(16):
            target.copy_(source)
    return 2 * 16 * source.nbytes / (median_ms(graph.replay, 0.2) * 1e6)


def floors(shape: tuple[int, ...], iterations: int, rate: float) -> dict[str, float]:
    """Milliseconds if every iteration read and wrote its fields once at `rate` GB/s.

    Forward: a, c, two of Z in, a and Z out, weights. Reverse: two of Z, ā, Q, c̄ in, ā, Q, c̄ out,
    weights, and their gradient in and out.
    """
    field = 4 * shape[0] * shape[1] * shape[2] * shape[3]
    edges = 2 * field // shape[1]
    forward = iterations * (6 * field + edges) / rate / 1e6
    reverse = iterations * (8 * field + 3 * edges) / rate / 1e6
    return {"forward_ms": forward, "both_ms": forward + reverse}


class Run:
    """Forward and reverse of one problem with a given launch, on fixed tensors."""

    def __init__(self, shape: tuple[int, ...], iterations: int, launch: Launch) -> None:
        self.kernel = TritonPotts(launch)
        self.settings = PottsSettings(iterations)
        batch, _, height, width = shape
        self.cost = torch.randn(shape, device="cuda")
        self.weights = torch.rand(batch, 1, 2, height, width, device="cuda") + 0.1
        size = torch.tensor(1 / (8**0.5 * 1.1), device="cuda")
        self.tensors = (self.cost, self.weights, size, size.clone())
        self.bar = torch.randn(shape, device="cuda")

    def forward(self) -> Any:
        return self.kernel.forward((*self.tensors, None, None), self.settings, True)

    def both(self) -> Any:
        outputs, tape = self.forward()
        bars, tensors = (None, None, self.bar, None), (*self.tensors, None, None)
        wanted = (True, True, False, False, False, False)
        return self.kernel.reverse(bars, tensors, outputs[:3], tape, self.settings, wanted)


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    """The same work within a user's CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def launches(cost: Tensor) -> Iterator[Launch]:
    """The chosen launch, and its neighbours."""
    chosen = choose_launch(int(cost.shape[1]), int(cost.shape[-1]), lean=True)
    yield chosen
    yield replace(chosen, overlap=not chosen.overlap)
    yield replace(chosen, tile_y=2 * chosen.tile_y)
    yield replace(chosen, registers=None)
    if cost.shape[1] > chosen.held:
        yield replace(chosen, unroll=2)


def time_launch(name: str, launch: Launch) -> dict[str, Any]:
    shape, iterations, _ = PROBLEMS[name]
    run = Run(shape, iterations, launch)
    run.both()  # compiles; the next call captures
    times = {"both_ms": median_ms(run.both), "forward_ms": median_ms(run.forward, 0.2)}
    if shape[2] < 1000:
        times["both_graph_ms"] = median_ms(graphed(run.both))
    return {"problem": name, **asdict(launch), **times}


class Tensors:
    """One problem for everybody; the last row and column have weight zero."""

    def __init__(self, name: str) -> None:
        shape, self.iterations, _ = PROBLEMS[name]
        run = Run(shape, self.iterations, Launch(tile_y=2))
        cost, weights, self.tau, self.sigma = run.tensors
        weights[:, :, 0, -1] = 0
        weights[:, :, 1, :, -1] = 0
        self.cost, self.weights = cost.requires_grad_(), weights.requires_grad_()
        self.bar = run.bar

    def solve(self, potts: Callable[..., Tensor]) -> Tensor:
        return potts(self.cost, self.weights, self.tau, self.sigma, self.iterations)

    def both(self, potts: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.solve(potts), (self.cost, self.weights), self.bar)

    @torch.no_grad()
    def forward(self, potts: Callable[..., Tensor]) -> Tensor:
        return self.solve(potts)


def through_autograd(tensors: Tensors, potts: Callable[..., Tensor]) -> dict[str, float]:
    """What a user gets: times and peak memory, inputs and cotangent counted in."""
    for _ in range(2):
        tensors.both(potts)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    tensors.both(potts)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**20
    began = time.perf_counter()
    tensors.both(potts)
    submitted = time.perf_counter()
    torch.cuda.synchronize()
    wall = time.perf_counter()
    return {
        "both_ms": median_ms(lambda: tensors.both(potts)),
        "forward_ms": median_ms(lambda: tensors.forward(potts), 0.2),
        "wall_ms": (wall - began) * 1e3,
        "host_ms": (submitted - began) * 1e3,
        "peak_MiB": peak,
    }


def jax_times(tensors: Tensors) -> dict[str, float] | None:
    try:
        from jax_potts import JaxPotts
    except ImportError:
        return None
    names = ("cost", "weights", "tau", "sigma", "bar")
    data = {name: getattr(tensors, name).detach().cpu().numpy() for name in names}
    jax = JaxPotts(data, tensors.iterations)
    calls = {"both_ms": jax.both, "forward_ms": jax.forward}
    result = {}
    for what, call in calls.items():
        call()
        times = []
        for _ in range(10):
            began = time.perf_counter()
            call()
            times.append((time.perf_counter() - began) * 1e3)
        result[what] = statistics.median(times)
    return result


def our_function(cost: Tensor, weights: Tensor, tau: Tensor, sigma: Tensor, n: int) -> Tensor:
    return ours(cost, weights, tau, sigma, iterations=n).probabilities


def our_layer() -> Callable[..., Tensor]:
    """The module, which finds τ and σ itself, and returns log-probabilities and p besides."""
    layers: dict[int, Potts] = {}

    def solve(cost: Tensor, weights: Tensor, tau: Tensor, sigma: Tensor, n: int) -> Tensor:
        if n not in layers:
            layers[n] = Potts(n).to(cost.device)
        return layers[n](cost, weights).exp()

    return solve


# --- the run --------------------------------------------------------------------------------------


class Report:
    """Results as they come, on disk after each of them."""

    def __init__(self, commit: str, budget: float) -> None:
        self.began, self.budget = time.perf_counter(), budget
        self.path = Path(os.environ.get("OUT", ".")) / "potts_h200.json"
        self.data: dict[str, Any] = provenance("cuda") | {"commit": commit, "copy_GBs": {}}
        self.data["versions"] |= {"triton": triton.__version__}
        # The commit alone does not say what ran if there were changes on top of it.
        folder = Path(triton_kernel.__file__).parent
        fused = Path(register.__code__.co_filename).parent
        kernels = sorted([*folder.glob("*.py"), *fused.glob("*.py")])
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in kernels)).hexdigest()
        self.data["sha256 of nn/potts/triton and nn/fused"] = digest
        self.data |= {"checks": [], "integration": {}, "problems": {}, "launches": [], "errors": []}
        self.data["problems"] = {name: {} for name in PROBLEMS}

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do it if there is time, and note what went wrong."""
        if time.perf_counter() - self.began > self.budget:
            self.data["errors"].append({"what": what, "error": "no time left"})
            return
        try:
            action()
        except Exception as error:
            trace = traceback.format_exc()[-2000:]
            self.data["errors"].append({"what": what, "error": repr(error)[:500], "trace": trace})
            print("FAILED", what, repr(error)[:300], trace[-700:], flush=True)
        torch.cuda.empty_cache()
        self.data["seconds"] = time.perf_counter() - self.began
        self.path.write_text(json.dumps(self.data, indent=1, default=str) + "\n")


def check_all(report: Report) -> None:
    looped = TritonPotts(Launch(held=0, tile_y=2, tile_x=64))
    looped.name = "potts_looped"
    kernels = {"chosen": ours, "looped": potts_function(register(looped))}

    def compare(check: dict[str, Any], name: str, dtype: torch.dtype) -> None:
        error, where = error_of(check, kernels[name], dtype)
        fine = error <= (2e-5 if dtype == torch.float32 else 1e-10)
        entry = {"check": check, "kernel": name, "dtype": str(dtype), "error": error}
        entry |= {"where": where, "fine": fine}
        report.data["checks"].append(entry)

    for i, check in enumerate(CHECKS):
        for name in kernels:
            for dtype in (torch.float32, torch.float64):
                # Compiling dominates: float64 and the other kernel on two problems.
                if i in (0, 3) or (name == "chosen" and dtype == torch.float32):
                    action = lambda c=check, n=name, d=dtype: compare(c, n, d)  # noqa: E731
                    report.attempt(f"check {check} {name} {dtype}", action)
    report.attempt("integration", lambda: report.data["integration"].update(integration_errors()))


def time_rivals(report: Report, with_rivals: bool) -> None:
    for name, (shape, iterations, _) in PROBLEMS.items():
        row = report.data["problems"][name]

        def measure(who: str, potts: Callable[..., Tensor], name: str, row: dict[str, Any]) -> None:
            row[who] = through_autograd(Tensors(name), potts)

        rate = report.data["copy_GBs"]["12 MB" if shape[2] < 1000 else "1024 MB"]
        row["floor"] = floors(shape, iterations, rate)
        for who, potts in (("ours", our_function), ("ours, the module", our_layer())):
            report.attempt(
                f"{who} {name}", lambda w=who, p=potts, n=name, r=row: measure(w, p, n, r)
            )
        if not with_rivals:
            continue
        for who, potts in (("eager", loop(step, 1)), ("compile", loop(torch.compile(steps(1)), 1))):
            report.attempt(
                f"{who} {name}", lambda w=who, p=potts, n=name, r=row: measure(w, p, n, r)
            )
        report.attempt(f"jax {name}", lambda n=name, r=row: r.update(jax=jax_times(Tensors(n))))


def copy_rivals(report: Report, earlier: dict[str, Any]) -> None:
    """Take the times of the rivals from an earlier record, and say so."""
    report.data["rivals"] = {
        "measured in": {name: earlier[name] for name in ("date", "commit", "device", "versions")},
        "problems": {
            name: {who: row[who] for who in ("eager", "compile", "jax") if who in row}
            for name, row in earlier["problems"].items()
        },
    }


def time_launches(report: Report) -> None:
    plan = [
        (order, name, launch)
        for name, (shape, _, _) in PROBLEMS.items()
        for order, launch in enumerate(dict.fromkeys(launches(torch.empty(shape, device="meta"))))
    ]
    # Round by round, so that every problem has its likeliest launches timed if time runs out.
    for _, name, launch in sorted(plan, key=lambda entry: entry[0]):
        report.attempt(
            f"time {name} {launch}",
            lambda n=name, c=launch: report.data["launches"].append(time_launch(n, c)),
        )


def print_summary(data: dict[str, Any]) -> None:
    failed = [c for c in data["checks"] if not c["fine"]]
    print(f"checks: {len(data['checks'])} run, {len(failed)} failed")
    for check in failed:
        print("  off by", check["error"], check)
    single = [c["error"] for c in data["checks"] if "32" in c["dtype"]]
    print("worst error in float32:", max(single, default=None))
    print("integration errors:", data["integration"])
    print("copy GB/s:", {k: round(v) for k, v in data["copy_GBs"].items()})
    for name, (_, _, target) in PROBLEMS.items():
        print(f"{name}, target {target} ms")
        for who, row in data["problems"][name].items():
            print(f"  {who:8s}", {k: round(v, 3) for k, v in (row or {}).items()})
        rows = [t for t in data["launches"] if t["problem"] == name]
        for t in sorted(rows, key=lambda t: t["both_ms"]):
            times = {k: round(v, 3) for k, v in t.items() if k.endswith("_ms")}
            names = ("tile_y", "overlap", "unroll", "registers")
            print(" ", times, {name: t[name] for name in names})
    for error in data["errors"]:
        print("ERROR", error["what"], error["error"][:160])
    print(f"{data['seconds']:.0f} s in all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=270.0)
    parser.add_argument("--commit", default="unknown", help="the machine may have no git")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--launches", action="store_true", help="time the ways to launch")
    parser.add_argument("--rivals", action="store_true", help="time eager, torch.compile, jax")
    parser.add_argument("--rivals-from", type=Path, help="copy them from an earlier record")
    arguments = parser.parse_args()
    report = Report(arguments.commit, arguments.budget)
    if arguments.rivals_from:
        copy_rivals(report, json.loads(arguments.rivals_from.read_text()))
    torch.manual_seed(0)
    sizes = {f"{size} MB": size for size in (4, 12, 1024)}
    report.attempt(
        "bandwidth",
        lambda: report.data["copy_GBs"].update({k: bandwidth(v) for k, v in sizes.items()}),
    )
    if not arguments.no_checks:
        check_all(report)
        print(f"checks done after {time.perf_counter() - report.began:.0f} s", flush=True)
    time_rivals(report, arguments.rivals)
    if arguments.launches:
        time_launches(report)
    print_summary(report.data)


if __name__ == "__main__":
    main()
