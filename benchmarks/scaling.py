"""How cost grows: with pixels, labels, iterations, batch and parameters.

    python benchmarks/scaling.py                                one CPU thread, two minutes
    python benchmarks/scaling.py --device cuda OUT.json         the GPU, under a minute
    python benchmarks/scaling.py --quick                        small sizes, to see that it runs

One quantity grows at a time. The slope of log cost against log size is fitted to the larger half of
the sizes, where fixed costs have faded, and stands beside the slope that the mathematics promises.
Writes OUT.json and, beside it, OUT_time.png and OUT_memory.png.
"""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from harness import Task, arguments, record, repeat, slope
from matplotlib.ticker import FuncFormatter, NullFormatter

import legato as lg
from legato.diagnostics import peak_bytes
from legato.nn import Potts


@dataclass(frozen=True)
class Curve:
    """One quantity that grows, what is measured, and the slope to expect."""

    name: str
    what: str
    measured: str  # "seconds" or "bytes"
    expected: float
    sizes: tuple[int, ...]
    make: Callable[[int, torch.device], Task]


def potts(batch: int, labels: int, side: int, iterations: int, device: torch.device) -> Task:
    """The Potts layer, forward and backward, with the kernel that the device chooses."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.randn(batch, labels, side, side, generator=generator).to(device).requires_grad_()
    weights = torch.rand(batch, 1, 2, side, side, generator=generator).to(device).requires_grad_()
    layer = Potts(iterations)

    def run() -> None:
        cost.grad = weights.grad = None
        layer(cost, weights).exp().square().sum().backward()

    return run


def shrinkage(
    unknowns: int, parameters: int, strategy: str, device: torch.device, iterations: int = 50
) -> Task:
    """A separable lasso whose penalties are ``parameters`` numbers, repeated."""
    generator = torch.Generator().manual_seed(0)
    entries = (0.7 + 0.3 * torch.rand(unknowns, generator=generator)).to(device)
    b = torch.randn(unknowns, generator=generator).to(device)
    theta = torch.full((parameters,), 0.1, device=device, requires_grad=True)
    data = lg.LeastSquares(lg.Diagonal(entries), b)
    start = torch.zeros_like(b)
    gradient = {
        "Forward": lambda: lg.Forward(theta),
        "Implicit": lambda: lg.Implicit(lg.GMRES(tol=1e-4)),
        "Unroll": lg.Unroll,
        "sqrt": lambda: lg.Unroll(checkpoint="sqrt"),
    }[strategy]()

    def run() -> None:
        theta.grad = None
        problem = lg.Composite(data, lg.L1(theta.repeat_interleave(unknowns // parameters)))
        stop = lg.Stop(iterations)
        plain = lg.ForwardBackward(inertia=0.0)
        x = lg.solve(problem, plain, start, gradient=gradient, stop=stop).x
        x.square().sum().backward()

    return run


def curves(quick: bool, large: bool) -> list[Curve]:
    """``large`` for a GPU, which small sizes do not fill."""
    sides = (16, 24, 32) if quick else (64, 91, 128, 181, 256, 362, 512)
    if large and not quick:
        sides = tuple(8 * s for s in sides)
    labels = (2, 4) if quick else (2, 4, 8, 16, 32)
    counts = (10, 20) if quick else (25, 50, 100, 200, 400, 800)
    batches = (1, 2) if quick else (1, 2, 4, 8, 16, 32)
    parameters = (1, 2) if quick else (1, 2, 4, 8, 16, 32)
    side = 16 if quick else 1024 if large else 96
    unknowns = 2**22 if large else 2**16
    back = "forward and backward, Potts layer"
    return [
        Curve("pixels", back, "seconds", 1.0, tuple(s * s for s in sides),
              lambda n, d: potts(1, 3, math.isqrt(n), 50, d)),
        Curve("labels", back, "seconds", 1.0, labels, lambda n, d: potts(1, n, side, 50, d)),
        Curve("iterations", back, "seconds", 1.0, counts, lambda n, d: potts(1, 3, side, n, d)),
        Curve("batch", back, "seconds", 1.0, batches, lambda n, d: potts(n, 3, side, 50, d)),
        Curve("parameters, reverse", "shrinkage, Implicit()", "seconds", 0.0, parameters,
              lambda n, d: shrinkage(unknowns, n, "Implicit", d)),
        Curve("parameters, forward mode", "shrinkage, Forward(θ)", "seconds", 1.0, parameters,
              lambda n, d: shrinkage(unknowns, n, "Forward", d, 10)),
        Curve("iterations, Unroll()", "shrinkage", "bytes", 1.0, counts,
              lambda n, d: shrinkage(unknowns, 2, "Unroll", d, n)),
        Curve("iterations, checkpoint", 'shrinkage, Unroll(checkpoint="sqrt")', "bytes", 0.5,
              counts, lambda n, d: shrinkage(unknowns, 2, "sqrt", d, n)),
        Curve("iterations, Implicit()", "shrinkage", "bytes", 0.0, counts,
              lambda n, d: shrinkage(unknowns, 2, "Implicit", d, n)),
    ]  # fmt: skip


def seconds(run: Task, device: torch.device, budget: float) -> float:
    times = repeat(run, device.type, budget)
    # Processor time does not see other load; the GPU's work is no processor time.
    return statistics.median(times.wall if device.type == "cuda" else times.processor) / 1e3


def measure(curve: Curve, device: torch.device, budget: float) -> dict[str, Any]:
    values = []
    for size in curve.sizes:
        run = curve.make(size, device)
        with warnings.catch_warnings():
            # Short solves have not converged; what is measured is their price, not their gradient.
            warnings.simplefilter("ignore")
            if curve.measured == "seconds":
                values.append(seconds(run, device, budget))
            else:
                run()
                values.append(float(peak_bytes(run, device)))
    half = max(2, (len(values) + 1) // 2)  # where fixed costs have faded
    found = slope(curve.sizes[-half:], values[-half:])
    print(f"{curve.name:26s} {curve.measured:8s} slope {found:5.2f}, expected {curve.expected:g}")
    return {
        "grows": curve.name,
        "what": curve.what,
        "measured": curve.measured,
        "sizes": list(curve.sizes),
        "values": values,
        "slope": found,
        "expected": curve.expected,
    }


def plot(rows: list[dict[str, Any]], measured: str, path: Path) -> None:
    chosen = [row for row in rows if row["measured"] == measured]
    columns = min(3, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.4 * columns, 2.7 * lines), layout="constrained", squeeze=False
    )
    for axis, row in zip(axes.flat, chosen, strict=True):
        draw(axis, row, 1e3 if measured == "seconds" else 2**-20)
        axis.set_ylabel("ms" if measured == "seconds" else "MiB", fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_all(rows: list[dict[str, Any]], out: Path) -> None:
    for measured, name in (("seconds", "time"), ("bytes", "memory")):
        plot(rows, measured, out.with_name(f"{out.stem}_{name}.png"))


def short(value: float) -> str:
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value:,.6g}".replace(",", " ")


def draw(axis: Any, row: dict[str, Any], scale: float) -> None:
    """One curve with the promised slope beside it, on at least a decade of height."""
    sizes, values = row["sizes"], [scale * v for v in row["values"]]
    axis.loglog(sizes, values, "o-", color="#2a6f97", markersize=4)
    promised = [values[-1] * (s / sizes[-1]) ** row["expected"] for s in sizes]
    axis.loglog(sizes, promised, "--", color="#bbbbbb", zorder=0)
    low, high = min(values + promised), max(values + promised)
    room = max(1.4, math.sqrt(12 * low / high))
    axis.set_ylim(low / room, high * room)
    axis.set_xticks(sizes[:: max(1, len(sizes) // 3)])
    for side in (axis.xaxis, axis.yaxis):
        side.set_minor_formatter(NullFormatter())
        side.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_title(row["grows"], fontsize=10)
    text = f"slope {row['slope']:.2f}, expected {row['expected']:g}".replace("-", "−")
    axis.text(0.04, 0.95, text, transform=axis.transAxes, fontsize=8, va="top")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = arguments(__doc__ or "", "out/scaling.json")
    parser.add_argument("--redraw", action="store_true", help="the plots of OUT, once more")
    options = parser.parse_args()
    if options.redraw:
        draw_all(json.loads(options.out.read_text(encoding="utf-8"))["curves"], options.out)
        return
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    begin = time.perf_counter()
    rows = [
        measure(c, device, 0.05 if options.quick else 1.0)
        for c in curves(options.quick, device.type == "cuda")
    ]
    record(
        options.out,
        {"seconds": time.perf_counter() - begin, "dtype": "float32", "curves": rows},
        options.device,
    )
    draw_all(rows, options.out)
    print(f"Written to {options.out}")


if __name__ == "__main__":
    main()
