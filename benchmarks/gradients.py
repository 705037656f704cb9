"""Memory, time and bias of every gradient strategy on the same problems.

    python benchmarks/gradients.py [OUT.json]           one CPU thread, about a minute

Each problem is solved with the same number of iterations by every strategy. Time is processor time
(other load does not count) of forward and backward together, as a multiple of the forward solve
alone; memory the largest number of bytes alive at once; bias the relative distance to the gradient
of the solution, which comes from many more iterations, all unrolled in float64, and is checked by
central differences along random directions. The classical alternative is a row of its own: the
smoothed problem, as many iterations of the method that fits it, and a Hessian solve; its bias is
against the gradient of the solution without smoothing.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from harness import Task, arguments, record, take_turns
from torch import Tensor

import legato as lg
from legato.diagnostics import peak_bytes

ROUNDS = 5
MU = 0.01
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A problem that depends on θ, the algorithm for it, and the loss of its solution."""

    name: str
    theta: Tensor
    problem: Callable[[Tensor], Any]
    algorithm: lg.Algorithm
    loss: Callable[[Tensor], Tensor]
    iterations: int
    longer: int  # how many times as many iterations the reference takes
    x0: Tensor | None = None
    smooth_algorithm: lg.Algorithm | None = None  # for the smoothed problem, if not the same

    def smoothed(self, mu: float) -> Case:
        algorithm = self.smooth_algorithm or self.algorithm
        return replace(
            self, problem=lambda theta: lg.smoothed(self.problem(theta), mu), algorithm=algorithm
        )

    def solve(self, theta: Tensor, gradient: lg.GradientStrategy, iterations: int) -> lg.Solution:
        stop = lg.Stop(iterations)
        problem = self.problem(theta)
        return lg.solve(problem, self.algorithm, self.x0, gradient=gradient, stop=stop)

    def value(self, theta: Tensor, iterations: int) -> Tensor:
        with torch.no_grad():
            return self.loss(self.solve(theta, lg.Unroll(), iterations).x)

    def gradient(self, strategy: lg.GradientStrategy, theta: Tensor, iterations: int) -> Any:
        """dL/dθ by one strategy, and what the backward pass reported."""
        theta.grad = None
        solution = self.solve(theta, strategy, iterations)
        self.loss(solution.x).backward()
        return theta.grad, solution


def lasso() -> Case:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(200, 100, generator=generator, dtype=torch.float64)
    truth = torch.where(torch.arange(100) < 10, 1.0, 0.0).double()
    b = A @ truth + 0.5 * torch.randn(200, generator=generator, dtype=torch.float64)
    data = lg.LeastSquares(A, b)  # built once: the norm of A is no part of a solve
    fresh = torch.randn(100, 100, generator=generator, dtype=torch.float64)
    return Case(
        "weighted lasso, 200 × 100, one penalty a feature",
        torch.full((100,), 2.5, dtype=torch.float64),
        lambda theta: lg.Composite(data, lg.L1(theta.exp())),
        lg.ForwardBackward(inertia=0.0),
        lambda x: 0.5 * (fresh @ (x - truth)).square().mean(),
        iterations=200,
        longer=10,
        x0=torch.zeros(100, dtype=torch.float64),
    )


def simplex() -> Case:
    generator = torch.Generator().manual_seed(1)
    A = torch.rand(64, 30, 12, generator=generator, dtype=torch.float64)
    target = torch.softmax(torch.randn(64, 12, generator=generator, dtype=torch.float64), -1)
    b = (A @ target.unsqueeze(-1)).squeeze(-1)
    noise = 0.1 * torch.randn(64, 30, generator=generator, dtype=torch.float64)
    return Case(
        "least squares on 64 simplices of 12, entropic steps, learned data",
        (b + noise).clone(),
        lambda theta: lg.Composite(
            lg.LeastSquares(lg.Dense(A), theta), lg.Simplex() + lg.NegativeEntropy(0.3)
        ),
        lg.ForwardBackward(0.3, geometry=lg.Entropy()),
        lambda x: 0.5 * (x - target).square().sum(),
        iterations=200,
        longer=10,
    )


def total_variation() -> Case:
    generator = torch.Generator().manual_seed(2)
    rows = torch.arange(32)[:, None].expand(32, 32)
    clean = torch.where(rows.T < 16, (rows > 14).double(), (rows % 8 < 4).double())
    noisy = clean + 0.2 * torch.randn(32, 32, generator=generator, dtype=torch.float64)

    def problem(theta: Tensor) -> lg.Saddle:
        weights = theta.exp().repeat_interleave(8, 1).repeat_interleave(8, 2)
        data = lg.SquaredDistance(noisy)
        return lg.Saddle(lg.Differences(weights=weights), lg.L1(), nonsmooth=data)

    return Case(
        "total variation, 32 × 32, one weight a direction and tile",
        torch.full((2, 4, 4), -1.5, dtype=torch.float64),
        problem,
        lg.PrimalDual(precondition=True),
        lambda x: 0.5 * (x - clean).square().sum(),
        iterations=1000,
        longer=10,
        x0=noisy,
        smooth_algorithm=lg.ForwardBackward(),
    )


def contestants(case: Case, theta: Tensor) -> dict[str, tuple[Case, lg.GradientStrategy]]:
    found = {name: (case, strategy) for name, strategy in strategies(case, theta).items()}
    curved = not isinstance(case.algorithm, lg.PrimalDual) and isinstance(
        case.algorithm.geometry, lg.Entropy
    )
    solver, name = (lg.GMRES(), "GMRES") if curved else (lg.CG(), "CG")
    found[f"smoothed(…, {MU}), Implicit({name}())"] = case.smoothed(MU), lg.Implicit(solver)
    return found


def strategies(case: Case, theta: Tensor) -> dict[str, lg.GradientStrategy]:
    found: dict[str, lg.GradientStrategy] = {
        "Unroll()": lg.Unroll(),
        'Unroll(checkpoint="sqrt")': lg.Unroll(checkpoint="sqrt"),
        "Unroll(last=20)": lg.Unroll(last=20),
        "FixedPoint(terms=100)": lg.FixedPoint(terms=100),
        "Implicit(GMRES())": lg.Implicit(lg.GMRES()),
        "OneStep()": lg.OneStep(),
    }
    if isinstance(case.algorithm, lg.PrimalDual):
        found["Piggyback()"] = lg.Piggyback(iterations=case.iterations)
    if theta.numel() * case.iterations <= 20000:  # its price is known: dim θ forward solves
        found["Forward(θ)"] = lg.Forward(theta)
    return found


def reference(case: Case) -> tuple[Tensor, float]:
    """The gradient of the solution, and how far central differences are from it."""
    theta = case.theta.clone().requires_grad_()
    many = case.longer * case.iterations
    gradient, _ = case.gradient(lg.Unroll(checkpoint="sqrt"), theta, many)
    generator = torch.Generator().manual_seed(3)
    worst = 0.0
    for _ in range(2):
        direction = torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        h = 1e-5 * direction
        ahead, behind = (case.value(case.theta + s * h, many) for s in (1, -1))
        slope = float((gradient * h).sum())
        worst = max(worst, abs(float(ahead - behind) / 2 - slope) / (float(gradient.norm()) * 1e-5))
    return gradient.clone(), worst


def measure(case: Case) -> dict[str, Any]:
    truth, disagreement = reference(case)
    theta = case.theta.clone().requires_grad_()
    options = contestants(case, theta)
    tasks: dict[str, Task] = {"": lambda: case.value(theta, case.iterations)}
    for name, (own, strategy) in options.items():
        tasks[name] = lambda c=own, s=strategy: _quietly(c, s, theta)
    times = take_turns(tasks, ROUNDS)
    seconds = {name: statistics.median(t.processor) / 1e3 for name, t in times.items()}
    point = 8 * case.solve(theta.detach(), lg.Unroll(), 1).x.numel()
    rows = []
    for name, (own, strategy) in options.items():
        peak = peak_bytes(tasks[name], CPU)
        gradient, solution, said = _quietly(own, strategy, theta)
        rows.append(
            {
                "gradient": name,
                "seconds": seconds[name],
                "times_forward": seconds[name] / seconds[""],
                "peak_bytes": peak,
                "peak_in_variables": peak / point,
                "error": float((gradient - truth).norm() / truth.norm()),
                "backward_iterations": solution.backward.iterations,
                "spectral_radius": solution.backward.spectral_radius,
                "warnings": said,
            }
        )
        print(
            f"  {name:34s} {rows[-1]['times_forward']:6.2f} × forward   "
            f"{peak / 2**20:8.2f} MiB   error {rows[-1]['error']:.1e}   {', '.join(said)}"
        )
    return {
        "problem": case.name,
        "parameters": theta.numel(),
        "variables": point // 8,
        "iterations": case.iterations,
        "forward_seconds": seconds[""],
        "reference_iterations": case.longer * case.iterations,
        "reference_disagreement": disagreement,
        "rows": rows,
    }


def _quietly(case: Case, strategy: lg.GradientStrategy, theta: Tensor) -> Any:
    """The gradient, the solution, and the names of the warnings that were given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradient, solution = case.gradient(strategy, theta, case.iterations)
    return gradient, solution, sorted({w.category.__name__ for w in caught})


def main() -> None:
    given = arguments(__doc__ or "", "out/gradients.json").parse_args()
    torch.set_num_threads(given.threads)
    problems = []
    for make in (lasso, simplex, total_variation):
        case = make()
        print(case.name)
        problems.append(measure(case))
        disagreement = problems[-1]["reference_disagreement"]
        print(f"  (reference: central differences agree to {disagreement:.0e})")
    record(given.out, {"rounds": ROUNDS, "dtype": "float64", "problems": problems})
    print(f"Written to {given.out}")


if __name__ == "__main__":
    main()
