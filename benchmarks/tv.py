"""Total variation: legato's layer against eager torch and others, in one run.

    python benchmarks/tv.py benchmarks/results/tv_cpu.json
    python benchmarks/tv.py --device cuda benchmarks/results/tv_h200.json

Every row solves the same 512² problem with 100 iterations, but for packages that have an iteration
of their own. Rows take turns, and the least of their times counts; `cpu_ms` is the time of the
process on all cores, which others disturb less. On a GPU a batch of colour images follows, large
enough to leave the caches, and `--launches` compares ways to lay the kernels on the machine.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from harness import (
    Task,
    arguments,
    captured,
    copy_speed,
    peak_memory,
    record,
    relative_errors,
    repeat,
    take_turns,
)
from kernel_parts import momentum, step_size, tv_launches
from torch import Tensor
from torch.nn.functional import pad

from legato.nn import TotalVariation

WEIGHT = 0.1
SIZE, ITERATIONS = 512, 100
REST = 0.02  # seconds between two measurements
BOTH = ("forward", "forward and reverse")

Solver = Callable[[Tensor, Tensor], Tensor]  # (image, λ) to u


def noisy(size: int) -> Tensor:
    """Rectangles and a wave, with Gaussian noise of σ = 0.1."""
    torch.manual_seed(0)
    axis = torch.linspace(0, 1, size)
    clean = 0.5 + 0.2 * torch.sin(12 * axis)[:, None] * torch.cos(9 * axis)
    clean[size // 8 : size // 2, size // 4 : size // 2] = 0.9
    clean[size // 2 :, size // 3 : size // 2] -= 0.3
    return (clean + 0.1 * torch.randn(size, size))[None, None]


# --- rivals ---------------------------------------------------------------------------------------


def spread(p: Tensor) -> Tensor:
    """∇ᵀp."""
    down, across = p[:, :, 0, :-1], p[:, :, 1, :, :-1]
    return (
        pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
        + pad(across, (1, 0)) - pad(across, (0, 1))
    )  # fmt: skip


def step(
    y: Tensor, w: Tensor, p: Tensor, before: Tensor, beta: Tensor | float, isotropic: bool
) -> Tensor:
    """One iteration on the dual, as one would write it in torch."""
    a = p + beta * (p - before)
    v = y - spread(a)
    down = pad(v[:, :, 1:] - v[:, :, :-1], (0, 0, 0, 1))
    z = a + step_size(2) * torch.stack((down, pad(v[..., 1:] - v[..., :-1], (0, 1))), 2)
    if isotropic:
        return z * (w / z.square().sum(2, keepdim=True).clamp(min=1e-30).sqrt()).clamp(max=1)
    return torch.clamp(z, -w, w)


def by_steps(one: Callable[..., Tensor], isotropic: bool, device: str | None = None) -> Solver:
    """All iterations; on a device, momenta are tensors there: a graph serves all of them."""
    betas: Any = momentum(ITERATIONS)
    if device is not None:
        betas = torch.tensor(betas, device=device).unbind()

    def solve(y: Tensor, w: Tensor) -> Tensor:
        p = before = y.new_zeros(*y.shape[:2], 2, *y.shape[2:])
        for beta in betas:
            before, p = p, one(y, w, p, before, beta, isotropic)
        return y - spread(p)

    return solve


def our_layer(isotropic: bool, kernel: str | None = None) -> Solver:
    layer = TotalVariation(ITERATIONS, isotropic=isotropic, kernel=kernel)
    return layer


def rivals(isotropic: bool, device: str, compiled: bool) -> dict[str, Solver]:
    found = {"legato": our_layer(isotropic), "eager torch": by_steps(step, isotropic)}
    if compiled:
        # One iteration to a graph: a graph of a hundred takes many minutes to compile. The first
        # iterations, whose p needs no gradient, are graphs of their own. Beyond the limit torch
        # would go on eagerly without a word in the results.
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        fast = torch.compile(step, dynamic=False)
        found["torch.compile"] = by_steps(fast, isotropic, device)
    return found


def without_gradient(image: Tensor) -> dict[str, Task]:
    """Packages with an iteration of their own, isotropic, where they are installed."""
    found: dict[str, Task] = {}
    if importlib.util.find_spec("skimage"):
        from skimage.restoration import denoise_tv_chambolle

        array, settings = image[0, 0].numpy(), {"eps": 0.0, "max_num_iter": ITERATIONS}
        found["scikit-image"] = lambda: denoise_tv_chambolle(array, weight=WEIGHT, **settings)
    if importlib.util.find_spec("deepinv"):
        from deepinv.models import TVDenoiser

        model = TVDenoiser(n_it_max=ITERATIONS, crit=0.0)
        found["deepinv"] = lambda: model(image, WEIGHT)
    return found


# --- measuring ------------------------------------------------------------------------------------


def results(solve: Solver, image: Tensor) -> tuple[Tensor, ...]:
    """u, and the gradients of image and weight."""
    y, w = image.clone().requires_grad_(), image.new_full((), WEIGHT).requires_grad_()
    u = solve(y, w)
    return u.detach(), *torch.autograd.grad(u.pow(3).sum(), [y, w])


def tasks(solvers: Mapping[str, Solver], image: Tensor) -> tuple[dict[str, Task], dict[str, Task]]:
    """Forward passes, and forward with reverse passes."""
    w = image.new_full((), WEIGHT)
    forward: dict[str, Task] = {name: partial(f, image, w) for name, f in solvers.items()}
    return forward, {name: partial(results, f, image) for name, f in solvers.items()}


def timed(some: Mapping[str, Task], rounds: int, device: str) -> dict[str, dict[str, float]]:
    return {
        name: {"ms": round(times.least, 2), "cpu_ms": round(min(times.processor), 2)}
        for name, times in take_turns(some, rounds, device, REST).items()
    }


def compare(image: Tensor, isotropic: bool, given: Any, compiled: bool) -> dict[str, Any]:
    """All rows of one problem."""
    device = given.device
    solvers = rivals(isotropic, device, compiled)
    forward, both = tasks(solvers, image)
    if isotropic and device == "cpu":
        forward |= without_gradient(image)
    times = {
        what: timed(some, given.rounds, device)
        for what, some in zip(BOTH, (forward, both), strict=True)
    }
    exact = results(our_layer(isotropic, "reference"), image.double())
    names = ("u", "image", "weight")
    return times | {
        "times faster than eager": {
            what: {
                unit: round(t["eager torch"][unit] / t["legato"][unit], 1)
                for unit in ("ms", "cpu_ms")
            }
            for what, t in times.items()
        },
        "peak MiB of forward and reverse": {
            name: round(peak_memory(task, device), 1) for name, task in both.items()
        },
        "relative error to float64": relative_errors(
            names, results(solvers["legato"], image), exact
        ),
    }


# --- the devices ----------------------------------------------------------------------------------


def on_cpu(given: Any) -> dict[str, Any]:
    image = noisy(SIZE)
    speeds = {f"{mb} MB": round(copy_speed(mb, "cpu"), 1) for mb in (8, 400)}
    pixels = SIZE**2 * ITERATIONS
    found: dict[str, Any] = {
        "size": SIZE,
        "weight": WEIGHT,
        "load_before": round(os.getloadavg()[0], 2),
        "bandwidth GB/s": speeds,
        "floor_ms": {
            # Unblocked, an iteration would read p, p₋ and y and write p: 7 floats a pixel.
            "forward, one pass over memory an iteration": round(
                28 * pixels / speeds["8 MB"] / 1e6, 1
            ),
            "anisotropic tape, written and read": round(2 * pixels / speeds["400 MB"] / 1e6, 1),
            "isotropic tape, written and read": round(16 * pixels / speeds["400 MB"] / 1e6, 1),
        },
    }
    for norm in ("anisotropic", "isotropic"):
        found[norm] = compare(image, norm == "isotropic", given, not given.quick)
        show(norm, found[norm])
    return found


def on_gpu(given: Any) -> dict[str, Any]:
    speeds = {f"{mb} MB": round(copy_speed(mb, "cuda"), 1) for mb in (8, 2000)}
    one = torch.zeros(1, device="cuda")

    def nothing() -> None:  # as many kernels in a row as there are iterations
        for _ in range(ITERATIONS):
            one.add_(1)

    launching = round(repeat(captured(nothing), "cuda").least, 3)
    found: dict[str, Any] = {"bandwidth GB/s": speeds, "launches_ms": launching}
    for batch, channels in ((1, 1), (8, 3)):
        shape = (batch, channels, SIZE, SIZE)
        image = noisy(SIZE).cuda() + 0.05 * torch.randn(shape, device="cuda")
        speed = speeds["8 MB" if batch == 1 else "2000 MB"]
        for norm in ("anisotropic", "isotropic"):
            isotropic = norm == "isotropic"
            result = compare(image, isotropic, given, not given.quick and batch == 1)
            # An iteration reads p, p₋ and y and writes p and its tape: 7 floats a pixel, and a
            # byte or two floats. Its reverse reads and writes z̄, what p₋ receives, ȳ and λ̄.
            pixels, tape = image.numel() * ITERATIONS, 8 if isotropic else 1
            bytes_of = dict(zip(BOTH, (28, 76 + 2 * tape), strict=True))
            result["floor_ms"] = {
                what: round(count * pixels / speed / 1e6, 3) for what, count in bytes_of.items()
            }
            if given.launches and isotropic:
                launches = tv_launches(ITERATIONS, isotropic, f"{batch}_{norm}")
                some = tasks(launches, image)
                result["launches"] = {
                    what: timed(t, given.rounds, "cuda") for what, t in zip(BOTH, some, strict=True)
                }
            name = f"{'x'.join(map(str, shape))}, {norm}"
            found[name] = result
            show(name, result)
    return found


def show(name: str, result: dict[str, Any]) -> None:
    print(name, *(f"\n  {key}: {value}" for key, value in result.items()), flush=True)


def main() -> None:
    parser = arguments(__doc__ or "", "out/tv.json")
    parser.add_argument("--launches", action="store_true", help="ways to lay out the GPU kernels")
    parser.set_defaults(threads=2, rounds=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = on_gpu(given) if given.device == "cuda" else on_cpu(given)
    record(given.out, {"iterations": ITERATIONS} | found, given.device)
    print(f"Written to {given.out}")


if __name__ == "__main__":
    main()
