"""Total variation: legato's layer against eager torch and others, in one run.

    python benchmarks/tv.py --threads 2 --output benchmarks/results/tv_cpu.json
    python benchmarks/tv.py --device cuda --output benchmarks/results/tv_h200.json

Every row solves the same 512² problem with 100 iterations, but for packages that have an iteration
of their own. Rows take turns, so that a change of the machine's mood meets all of them; the least
of the times counts. `cpu_ms` is the time of the process on all cores, which others disturb less. On
a GPU a batch of colour images follows, large enough to leave the caches, and `--tiles` compares
ways to lay the kernels on the machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import record
from torch import Tensor

from legato.nn import TotalVariation
from legato.nn.total_variation.model import momentum, step_size

WEIGHT = 0.1
REST = 0.02
"""Seconds between two measurements."""


def noisy(size: int) -> Tensor:
    """Rectangles and a wave, with Gaussian noise of σ = 0.1."""
    torch.manual_seed(0)
    axis = torch.linspace(0, 1, size)
    clean = 0.5 + 0.2 * torch.sin(12 * axis)[:, None] * torch.cos(9 * axis)
    clean[size // 8 : size // 2, size // 4 : size // 2] = 0.9
    clean[size // 2 :, size // 3 : size // 2] -= 0.3
    return (clean + 0.1 * torch.randn(size, size))[None, None]


def eager(image: Tensor, weight: Tensor, iterations: int, isotropic: bool) -> Tensor:
    """The same iteration, by hand, as one would write it."""
    pad = torch.nn.functional.pad
    alpha = step_size(2)

    def spread(p: Tensor) -> Tensor:  # ∇ᵀp
        down, across = p[:, :, 0, :-1], p[:, :, 1, :, :-1]
        return (
            pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
            + pad(across, (1, 0)) - pad(across, (0, 1))
        )  # fmt: skip

    def differences(v: Tensor) -> Tensor:
        down = pad(v[:, :, 1:] - v[:, :, :-1], (0, 0, 0, 1))
        return torch.stack((down, pad(v[..., 1:] - v[..., :-1], (0, 1))), 2)

    p = before = image.new_zeros(*image.shape[:2], 2, *image.shape[2:])
    for beta in momentum(iterations):
        a = p + beta * (p - before)
        z = a + alpha * differences(image - spread(a))
        if isotropic:
            new = z * (weight / z.square().sum(2, keepdim=True).clamp(min=1e-30).sqrt()).clamp(
                max=1
            )
        else:
            new = torch.clamp(z, -weight, weight)
        before, p = p, new
    return image - spread(p)


def with_reverse(solve: Callable[[Tensor, Tensor], Tensor], image: Tensor) -> Callable[[], object]:
    y, w = image.clone().requires_grad_(), image.new_full((), WEIGHT).requires_grad_()
    target = image.flip(-1)

    def run() -> object:
        return torch.autograd.grad((solve(y, w) * target).sum(), [y, w])

    return run


def rows(image: Tensor, iterations: int, isotropic: bool, compiled: bool) -> dict[str, Any]:
    """Each row's forward pass and its forward and reverse passes; None where there is none."""
    layer = TotalVariation(iterations, isotropic=isotropic)
    w = image.new_full((), WEIGHT)

    def ours(y: Tensor, w: Tensor) -> Tensor:
        return layer(y, w)

    def plain(y: Tensor, w: Tensor) -> Tensor:
        return eager(y, w, iterations, isotropic)

    table: dict[str, Any] = {
        "legato": (lambda: ours(image, w), with_reverse(ours, image)),
        "eager torch": (lambda: plain(image, w), with_reverse(plain, image)),
    }
    if compiled:
        # One iteration to a graph: a graph of a hundred takes many minutes to compile.
        table["torch.compile"] = compiled_rows(image, w, iterations, isotropic)
    if isotropic and image.is_cpu and importlib.util.find_spec("skimage"):
        from skimage.restoration import denoise_tv_chambolle

        array = image[0, 0].numpy()
        settings = {"weight": WEIGHT, "eps": 0.0, "max_num_iter": iterations}
        table["scikit-image"] = (lambda: denoise_tv_chambolle(array, **settings), None)
    if isotropic and image.is_cpu and importlib.util.find_spec("deepinv"):
        from deepinv.models import TVDenoiser

        model = TVDenoiser(n_it_max=iterations, crit=0.0)
        table["deepinv"] = (lambda: model(image, WEIGHT), None)
    return table


def compiled_rows(image: Tensor, w: Tensor, iterations: int, isotropic: bool) -> Any:
    pad, alpha = torch.nn.functional.pad, step_size(2)

    def step(y: Tensor, w: Tensor, p: Tensor, before: Tensor, beta: Tensor) -> Tensor:
        a = p + beta * (p - before)
        down, across = a[:, :, 0, :-1], a[:, :, 1, :, :-1]
        v = y - (
            pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
            + pad(across, (1, 0)) - pad(across, (0, 1))
        )  # fmt: skip
        down = pad(v[:, :, 1:] - v[:, :, :-1], (0, 0, 0, 1))
        z = a + alpha * torch.stack((down, pad(v[..., 1:] - v[..., :-1], (0, 1))), 2)
        if isotropic:
            return z * (w / z.square().sum(2, keepdim=True).clamp(min=1e-30).sqrt()).clamp(max=1)
        return torch.clamp(z, -w, w)

    # The first iterations, whose p needs no gradient, are graphs of their own. Beyond the limit
    # torch would go on eagerly without a word in the results.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    fast = torch.compile(step, dynamic=False)
    betas = torch.tensor(momentum(iterations), device=image.device).unbind()

    def solve(y: Tensor, w: Tensor) -> Tensor:
        p = before = y.new_zeros(*y.shape[:2], 2, *y.shape[2:])
        for beta in betas:
            before, p = p, fast(y, w, p, before, beta)
        down, across = p[:, :, 0, :-1], p[:, :, 1, :, :-1]
        return y - (
            pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
            + pad(across, (1, 0)) - pad(across, (0, 1))
        )  # fmt: skip

    return (lambda: solve(image, w), with_reverse(solve, image))


def measure(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """The least wall and process times of each task in milliseconds, tasks taking turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for task in tasks.values():
        # Kernels are compiled by the first call and, on a GPU, captured by the second.
        for _ in range(3 if torch.cuda.is_available() else 1):
            task()
    for _ in range(rounds):
        for name, task in tasks.items():
            wait()
            # The threads of the row before spin for a while, on cores that this one needs.
            time.sleep(REST)
            wall, cpu = time.perf_counter(), time.process_time()
            task()
            wait()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: {
            "ms": round(1e3 * min(wall for wall, _ in t), 2),
            "cpu_ms": round(1e3 * min(cpu for _, cpu in t), 2),
        }
        for name, t in times.items()
    }


# --- the GPU --------------------------------------------------------------------------------------

PROBLEMS = {"1x1x512x512": (1, 1, 512), "8x3x512x512": (8, 3, 512)}


def copy_speed(megabytes: int) -> float:
    """GB/s of copies on the GPU, replayed as a graph: reading and writing counted."""
    source = torch.rand(megabytes * 2**20 // 8, device="cuda")
    target = torch.empty_like(source)
    count = max(4, 4000 // megabytes)

    def copies() -> None:
        for _ in range(count):
            target.copy_(source)

    copies()
    replay = captured(copies)
    best = measure({"": replay}, 5)[""]["ms"]
    return count * 2 * source.nbytes / best / 1e6


def captured(task: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        task()
    return graph.replay


def launch_ms(iterations: int) -> float:
    """As many kernels in a row as there are iterations, each of which does next to nothing."""
    one = torch.zeros(1, device="cuda")

    def launches() -> None:
        for _ in range(iterations):
            one.add_(1)

    launches()
    return measure({"": captured(launches)}, 5)[""]["ms"]


def errors(image: Tensor, iterations: int, isotropic: bool) -> dict[str, float]:
    """How far u and both gradients are from the reference's in float64, relative to their size."""
    results = []
    for kernel, dtype in (("triton", image.dtype), ("reference", torch.float64)):
        layer = TotalVariation(iterations, isotropic=isotropic, kernel=kernel)
        y = image.to(dtype).requires_grad_()
        w = y.new_full((), WEIGHT).requires_grad_()
        u = layer(y, w)
        results.append((u.detach(), *torch.autograd.grad(u.pow(3).sum(), [y, w])))
    return {
        name: float((got.double() - right).norm() / right.norm())
        for name, got, right in zip(("u", "image", "weight"), *results, strict=True)
    }


def gpu_memory(task: Callable[[], object]) -> float:
    """MiB that a call adds to what is allocated."""
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    task()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def tiles(image: Tensor, iterations: int, isotropic: bool, rounds: int) -> dict[str, Any]:
    """Forward, and forward with reverse, for several ways to lay the kernels on the machine."""
    from legato.nn.fused.launch import Launch
    from legato.nn.fused.operator import register
    from legato.nn.total_variation.model import Coupling, tv_function
    from legato.nn.total_variation.triton.host import TritonTV

    launches = {f"{y}x{x}": Launch(y, x) for y, x in ((2, 32), (4, 32), (8, 32), (1, 128))}
    launches["4x32, 64 registers"] = Launch(4, 32, registers=64)
    launches["4x32, no overlap"] = Launch(4, 32, overlap=False)
    w, forward, both = image.new_full((), WEIGHT), {}, {}
    for i, (name, launch) in enumerate(launches.items()):
        kernel = TritonTV(launch)
        kernel.name = f"tv_triton_tile_{isotropic}_{image.shape[0]}_{i}"
        tv = tv_function(register(kernel))

        def solve(y: Tensor, w: Tensor, tv: Any = tv) -> Tensor:
            value: Tensor = tv(y, w, iterations=iterations, coupling=Coupling(isotropic, False)).x
            return value

        forward[name] = lambda solve=solve: solve(image, w)
        both[name] = with_reverse(solve, image)
    return {"forward": measure(forward, rounds), "forward and reverse": measure(both, rounds)}


def on_gpu(given: argparse.Namespace) -> dict[str, Any]:
    speeds = {f"{mb} MB": round(copy_speed(mb), 1) for mb in (8, 2000)}
    results: dict[str, Any] = {
        "bandwidth GB/s": speeds,
        "launches_ms": round(launch_ms(given.iterations), 3),
    }
    for problem, (batch, channels, size) in PROBLEMS.items():
        image = noisy(size).cuda() + 0.05 * torch.randn(batch, channels, size, size, device="cuda")
        speed = speeds["8 MB" if batch == 1 else "2000 MB"]
        for isotropic in (False, True):
            compiled = not given.no_compile and batch == 1
            table = rows(image, given.iterations, isotropic, compiled)
            forward = measure({n: f for n, (f, _) in table.items()}, given.rounds)
            both = measure({n: b for n, (_, b) in table.items() if b}, given.rounds)
            # An iteration reads p, p₋ and y and writes p and its tape: 7 floats a pixel, and a
            # byte or two floats. Its reverse reads and writes z̄, what p₋ receives, ȳ and λ̄.
            pixels, tape = image.numel() * given.iterations, 8 if isotropic else 1
            result: dict[str, Any] = {
                "forward": forward,
                "forward and reverse": both,
                "times faster than eager": {
                    name: round(t["eager torch"]["ms"] / t["legato"]["ms"], 1)
                    for name, t in (("forward", forward), ("forward and reverse", both))
                },
                "floor_ms": {
                    "forward": round(28 * pixels / speed / 1e6, 3),
                    "forward and reverse": round((76 + 2 * tape) * pixels / speed / 1e6, 3),
                },
                "peak MiB of forward and reverse": {
                    name: round(gpu_memory(b), 1) for name, (_, b) in table.items() if b
                },
                "relative error to float64": errors(image, given.iterations, isotropic),
            }
            if given.tiles and isotropic:
                result["tiles"] = tiles(image, given.iterations, isotropic, given.rounds)
            norm = "isotropic" if isotropic else "anisotropic"
            results[f"{problem}, {norm}"] = result
            print(f"{problem}, {norm}", *(f"\n  {k}: {v}" for k, v in result.items()), flush=True)
            if given.output:
                record(given.output, {"iterations": given.iterations} | results, "cuda")
    return results


# --- the CPU --------------------------------------------------------------------------------------


def bandwidth(megabytes: int) -> float:
    """GB/s of a copy of that size, reading and writing counted."""
    source = torch.ones(megabytes * 2**20 // 8)
    target = torch.empty_like(source)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(4):
            target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 4 * 2 * source.nbytes / best / 1e9


def peak_memory(kind: str, isotropic: bool, size: int, iterations: int) -> float | None:
    """MiB that forward and reverse add to a process of their own."""
    command = [sys.executable, __file__, "--memory", kind, "--size", str(size)]
    command += ["--iterations", str(iterations)] + (["--isotropic"] if isotropic else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def print_memory(kind: str, isotropic: bool, size: int, iterations: int) -> None:
    layer = TotalVariation(iterations, isotropic=isotropic)

    def ours(y: Tensor, w: Tensor) -> Tensor:
        return layer(y, w)

    def plain(y: Tensor, w: Tensor) -> Tensor:
        return eager(y, w, iterations, isotropic)

    solve = ours if kind == "legato" else plain
    with_reverse(solve, noisy(16))()  # compiled before the count begins
    run = with_reverse(solve, noisy(size))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _peak()
    run()
    print((_peak() - before) / 1024)


def _peak() -> int:
    """KiB; not getrusage's, which a new process inherits from the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--memory", choices=["legato", "eager torch"])
    parser.add_argument("--isotropic", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.device == "cuda":
        on_gpu(given)
        return
    if given.memory:
        print_memory(given.memory, given.isotropic, given.size, given.iterations)
        return
    image = noisy(given.size)
    load = os.getloadavg()[0]
    results: dict[str, Any] = {}
    for isotropic in (False, True):
        table = rows(image, given.iterations, isotropic, not given.no_compile)
        forward = measure({n: f for n, (f, _) in table.items()}, given.rounds)
        both = measure({n: b for n, (_, b) in table.items() if b}, given.rounds)
        memory = {
            kind: peak_memory(kind, isotropic, given.size, given.iterations)
            for kind in ("legato", "eager torch")
        }
        mine, theirs = (
            TotalVariation(given.iterations, isotropic=isotropic)(image, WEIGHT),
            eager(image, torch.tensor(WEIGHT), given.iterations, isotropic),
        )
        results["isotropic" if isotropic else "anisotropic"] = {
            "forward": forward,
            "forward and reverse": both,
            "times faster than eager": {
                name: {
                    unit: round(t["eager torch"][unit] / t["legato"][unit], 1)
                    for unit in ("ms", "cpu_ms")
                }
                for name, t in (("forward", forward), ("forward and reverse", both))
            },
            "peak MiB of forward and reverse": memory,
            "largest difference from eager": float((mine - theirs).abs().max()),
        }
    # Unblocked, an iteration would read p, p₋ and y and write p: 7 floats a pixel.
    per_pass = 7 * 4 * given.size**2 * given.iterations
    tape = given.size**2 * given.iterations
    speeds = {f"{mb} MB": round(bandwidth(mb), 1) for mb in (8, 400)}
    record(
        given.output or Path(os.devnull),
        {
            "size": given.size,
            "iterations": given.iterations,
            "threads": given.threads,
            "weight": WEIGHT,
            "load_before": round(load, 2),
            "not installed": [
                name for name in ("skimage", "deepinv") if not importlib.util.find_spec(name)
            ],
            "bandwidth GB/s": speeds,
            "floor_ms": {
                "forward, one pass over memory an iteration": round(
                    per_pass / speeds["8 MB"] / 1e6, 1
                ),
                "anisotropic tape, written and read": round(2 * tape / speeds["400 MB"] / 1e6, 1),
                "isotropic tape, written and read": round(16 * tape / speeds["400 MB"] / 1e6, 1),
            },
        }
        | results,
    )
    for name, result in results.items():
        print(name, *(f"\n  {key}: {value}" for key, value in result.items()))
    print("floors use", speeds)


if __name__ == "__main__":
    main()
