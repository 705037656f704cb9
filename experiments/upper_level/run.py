"""Is iPiano "usually faster and less sensitive to local optima" than proximal gradient descent?

    python experiments/upper_level/run.py

Section 3 of the paper says so of its experiments and shows none. Five bilevel problems, each from
three starts, and the optimisers at their defaults; the price is counted in lower-level iterations,
without those of the gradients. Writes results.json and a figure.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato.console.provenance import provenance

FOLDER = Path(__file__).parent
STEPS, SEEDS = 12, (0, 1, 2)
STOP = lg.Stop(2000, tol=1e-7)

OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "IPiano, searched": lambda p: lg.optim.IPiano(p),
    "IPiano, variable": lambda p: lg.optim.IPiano(p, rule=lg.optim.VariableMomentum()),
    "ProximalGradient": lambda p: lg.optim.ProximalGradient(p),
    "HeavyBall, lr 0.1": lambda p: lg.optim.HeavyBall(p, lr=0.1, momentum=0.8),
    "NonlinearCG": lambda p: lg.optim.NonlinearCG(p),
    "L-BFGS": lambda p: torch.optim.LBFGS(p, max_iter=4),
    "Adam, lr 0.1": lambda p: torch.optim.Adam(p, lr=0.1),
}


@dataclass(frozen=True)
class Bilevel:
    """A start θ⁰ for a seed, and the loss of θ by the solves of ``inner``."""

    start: Callable[[torch.Generator], Tensor]
    loss: Callable[[Tensor, Callable[..., Tensor]], Tensor]


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def around(value: float, count: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: value + torch.randn(count, generator=g, dtype=torch.float64)


def lasso() -> Bilevel:
    """One penalty a feature, validated."""
    A, x = normal(0, 60, 20), torch.zeros(20).double()
    x[:4] = 1.0
    b = A @ x + 0.5 * normal(1, 60)

    def loss(theta: Tensor, solve: Callable[..., Tensor]) -> Tensor:
        found = solve(lg.LeastSquares(A[:40], b[:40]) + lg.L1(theta.exp()))
        return 0.5 * (A[40:] @ found - b[40:]).square().mean()

    return Bilevel(around(0.0, 20), loss)


def ridge() -> Bilevel:
    """One quadratic penalty a feature: a smooth lower level."""
    A = normal(2, 50, 15) * torch.logspace(0, -1, 15).double()
    b = A @ torch.linspace(1, 0, 15).double() + 0.3 * normal(3, 50)

    def loss(theta: Tensor, solve: Callable[..., Tensor]) -> Tensor:
        found = solve(lg.LeastSquares(A[:30], b[:30]) + lg.SquaredNorm(theta.exp()))
        return 0.5 * (A[30:] @ found - b[30:]).square().mean()

    return Bilevel(around(0.0, 15), loss)


def nonnegative() -> Bilevel:
    """The positions of two peaks in a spectrum, by nonnegative least squares: not convex."""
    grid = torch.linspace(0, 1, 40).double()
    truth = torch.tensor([0.3, 0.65]).double()

    def peaks(centres: Tensor) -> Tensor:
        return torch.exp(-(((grid[:, None] - centres) / 0.1) ** 2))

    seen = peaks(truth) @ torch.tensor([1.0, 0.6]).double() + 0.02 * normal(4, 40)

    def loss(theta: Tensor, solve: Callable[..., Tensor]) -> Tensor:
        A = peaks(torch.sigmoid(theta))
        found = solve(lg.LeastSquares(A, seen) + lg.SquaredNorm(1e-2) + lg.NonNegative())
        return 0.5 * (A @ found - seen).square().sum()

    return Bilevel(around(0.0, 2), loss)


def variation() -> Bilevel:
    """A weight of total variation a place, for a signal with a step and a wave."""
    place = torch.linspace(0, 1, 48).double()
    clean = torch.where(place < 0.5, (place > 0.2).double(), 0.5 + 0.5 * torch.sin(40 * place))
    noisy = clean + 0.15 * normal(5, 48)

    def loss(theta: Tensor, solve: Callable[..., Tensor]) -> Tensor:
        weight = theta.exp().repeat_interleave(8)[None]
        found = solve(lg.SquaredDistance(noisy) + lg.L1(weight) @ lg.Differences((-1,)))
        return (found - clean).square().sum()

    return Bilevel(around(-2.0, 6), loss)


def logistic() -> Bilevel:
    """One penalty a group of a logistic regression, validated."""
    A, x = normal(6, 90, 12), torch.tensor([2.0, -2.0, 1.0] + 9 * [0.0]).double()
    b = torch.where(A @ x + normal(7, 90) > 0, 1.0, -1.0).double()
    held = lg.Logistic(A[60:], b[60:])

    def loss(theta: Tensor, solve: Callable[..., Tensor]) -> Tensor:
        weight = theta.exp().repeat_interleave(3)
        found = solve(lg.Logistic(A[:60], b[:60]) + lg.L1(weight) + lg.SquaredNorm(1e-2))
        return held(found) / 30

    return Bilevel(around(0.0, 4), loss)


PROBLEMS: dict[str, Callable[[], Bilevel]] = {
    "lasso": lasso, "ridge": ridge, "peaks": nonnegative, "total variation": variation,
    "logistic": logistic,
}  # fmt: skip


def run(problem: Bilevel, make: Callable[[Any], Any], seed: int, steps: int) -> dict[str, Any]:
    """The least loss so far against the lower-level iterations spent."""
    theta = problem.start(torch.Generator().manual_seed(100 + seed)).requires_grad_()
    spent, course = 0, []

    def loss(inner: Any) -> Tensor:
        nonlocal spent

        def solve(energy: Any) -> Tensor:
            nonlocal spent
            found = inner.solve(energy, gradient=lg.Implicit(), stop=STOP)
            spent += int(found.iterations)
            return found.x

        value = problem.loss(theta, solve)
        course.append((spent, float(value.detach())))
        return value

    failed = None
    try:
        lg.fit(loss, [theta], make, steps=steps)
    except lg.errors.LegatoError as error:
        failed = f"{type(error).__name__}: {error}"[:200]
    best, least = [], math.inf
    for iterations, value in course:
        if value < least:
            least = value
            best.append([iterations, value])
    return {"loss": least, "spent": spent, "evaluations": len(course), "best": best} | (
        {} if failed is None else {"failed": failed}
    )


def at(one: dict[str, Any], budget: float) -> float:
    """The least loss within so many lower-level iterations."""
    return min((value for n, value in one["best"] if n <= budget), default=math.inf)


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """How each optimiser's loss compares with proximal gradient descent's at the same price, the
    lower-level iterations of the one of the two that spent less; within 1 % they are equal."""
    found = {}
    for name in OPTIMISERS:
        counts = {"lower": 0, "equal": 0, "higher": 0}
        for problem in rows.values():
            for one, plain in zip(problem[name], problem["ProximalGradient"], strict=True):
                budget = min(one["spent"], plain["spent"])
                own, other = at(one, budget), at(plain, budget)
                equal = abs(own - other) <= 0.01 * other
                counts["equal" if equal else "lower" if own < other else "higher"] += 1
        found[name] = counts
    return found


def markdown(found: dict[str, Any]) -> str:
    """The summary as a table."""
    lines = ["| against ProximalGradient | lower | equal | higher |", "|---|---:|---:|---:|"]
    for name, one in found.items():
        if name != "ProximalGradient":
            lines.append(f"| {name} | {one['lower']} | {one['equal']} | {one['higher']} |")
    return "\n".join(lines)


def draw(rows: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(rows), figsize=(3 * len(rows), 3.4), layout="constrained")
    for axes, (name, problem) in zip(panels, rows.items(), strict=True):
        least = min(one["loss"] for runs in problem.values() for one in runs[:1])
        for optimiser, runs in problem.items():
            points = [(n, v - least) for n, v in runs[0]["best"]]
            line = axes.step(*zip(*points, strict=True), where="post", lw=1.2, label=optimiser)
            line[0].set_linestyle("-" if "IPiano" in optimiser else "--")
        axes.set(title=name, xscale="log", yscale="log", xlabel="lower-level iterations")
    panels[0].set_ylabel("loss − best, seed 0")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    made = provenance()
    rows: dict[str, Any] = {}
    for name, make in PROBLEMS.items():
        problem = make()
        rows[name] = {
            optimiser: [run(problem, build, seed, chosen.steps) for seed in SEEDS]
            for optimiser, build in OPTIMISERS.items()
        }
        print(name, "done", flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    found = {"steps": chosen.steps, "seeds": SEEDS, "summary": summary(rows), "rows": rows}
    text = json.dumps(made | found, indent=1) + "\n"
    (chosen.out / "results.json").write_text(text, encoding="utf-8")
    draw(rows, chosen.out / "upper_level.png")
    print(markdown(found["summary"]))


if __name__ == "__main__":
    main()
