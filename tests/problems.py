"""The small problems on which every gradient has to tell the truth.

Each comes as a function of its parameters θ, with everything else fixed: the steps too, because a
derived step is a constant for autograd but would move under finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import legato as lg

Theta = tuple[Tensor, ...]


@dataclass(frozen=True)
class Problem:
    """θ ↦ (problem, algorithm, x0), with a default θ in float64 and a smooth loss of the solution.

    ``iterations`` bring the residual to rounding. ``isolated`` says that the solution, primal and
    dual, is unique and attracting, so that the fixed-point family applies to it.
    """

    name: str
    build: Callable[..., tuple[Any, lg.Algorithm, Tensor]]
    theta: Theta
    iterations: int
    isolated: bool = True

    @property
    def is_saddle(self) -> bool:
        return isinstance(self.build(*self.theta)[0], lg.Saddle)

    def leaves(self, dtype: torch.dtype = torch.float64) -> Theta:
        """A fresh copy of θ that records gradients."""
        return tuple(t.detach().to(dtype).clone().requires_grad_() for t in self.theta)

    def solve(self, *theta: Tensor, iterations: int, **options: Any) -> lg.Solution:
        return lg.solve(*self.build(*theta), stop=lg.Stop(iterations), **options)

    def loss(self, x: Tensor) -> Tensor:
        """Neither symmetric nor linear, so that it sees every entry differently."""
        slope = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
        return (slope * x + 0.5 * x * x).sum()


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _matrix(seed: int, rows: int, columns: int) -> Tensor:
    """Well conditioned, so that a few hundred iterations reach rounding."""
    left, _, right = torch.linalg.svd(random(seed, rows, columns), full_matrices=False)
    return left @ torch.diag(torch.linspace(1.0, 1.6, columns, dtype=torch.float64)) @ right


def _zeros(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype)


def _uniform(like: Tensor, *shape: int, total: int) -> Tensor:
    return torch.full(shape, 1 / total, dtype=like.dtype)


# --- forward–backward -----------------------------------------------------------------------------

A = _matrix(0, 7, 5)
TARGET = A @ torch.tensor([1.2, -0.9, 0.0, 0.7, 0.0], dtype=torch.float64) + 0.1 * random(1, 7)
POSITIVE_TARGET = A @ torch.tensor([0.9, 0.6, -0.5, 0.8, -0.4], dtype=torch.float64)
MIXTURE = A @ torch.tensor([0.9, 0.4, -0.4, 0.3, -0.3], dtype=torch.float64)
EUCLIDEAN = lg.ForwardBackward(step_size=0.35)  # below 1/‖A‖², also for the perturbed matrices


def lasso(A: Tensor, b: Tensor, weight: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    return lg.Composite(lg.LeastSquares(A, b), lg.L1(weight)), EUCLIDEAN, _zeros(b, 5)


def elastic_net(
    A: Tensor, b: Tensor, weight: Tensor, ridge: Tensor
) -> tuple[Any, lg.Algorithm, Tensor]:
    term = lg.L1(weight) + lg.SquaredNorm(ridge)
    return lg.Composite(lg.LeastSquares(A, b), term), EUCLIDEAN, _zeros(b, 5)


def nnls(A: Tensor, b: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    return lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), EUCLIDEAN, _zeros(b, 5)


def nnls_entropic(A: Tensor, b: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    algorithm = lg.ForwardBackward(step_size=0.4, geometry=lg.Entropy())
    x0 = _uniform(b, 5, total=2)
    return lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), algorithm, x0


def simplex_least_squares(A: Tensor, b: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    algorithm = lg.ForwardBackward(step_size=0.8, geometry=lg.Entropy())
    x0 = _uniform(b, 5, total=5)
    return lg.Composite(lg.LeastSquares(A, b), lg.Simplex()), algorithm, x0


def simplex_projected(A: Tensor, b: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    x0 = _uniform(b, 5, total=5)
    return lg.Composite(lg.LeastSquares(A, b), lg.Simplex()), EUCLIDEAN, x0


# --- Newton ---------------------------------------------------------------------------------------


def ridge(A: Tensor, b: Tensor, weights: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    return lg.Composite(lg.LeastSquares(A, b), lg.SquaredNorm(weights)), lg.Newton(), _zeros(b, 5)


def logistic(A: Tensor, c: Tensor, weights: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    """With a linear term, and labels that are the signs of the lasso's target."""
    fit = lg.Logistic(A, TARGET.sign().to(A))
    term = lg.SquaredNorm(weights) + lg.Linear(c)
    return lg.Composite(fit, term), lg.Newton(), _zeros(c, 5)


# --- primal–dual ----------------------------------------------------------------------------------

SIGNAL = torch.tensor([0.1, 0.2, 0.0, 1.1, 0.9, 1.0, 1.3, -0.4], dtype=torch.float64)


def tv_1d(b: Tensor, weight: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    problem = lg.Saddle(
        lg.Differences(dims=(-1,)),
        penalty=lg.L1(weight),
        nonsmooth=lg.SquaredDistance(b),
    )
    return problem, lg.PrimalDual(tau=0.5, sigma=0.5), _zeros(b, 8)


def potts(c: Tensor, w: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    """Labels on the first axis; w are the weights of the edges of a grid."""
    problem = lg.Saddle(
        lg.Differences(weights=w), penalty=lg.L1(), nonsmooth=lg.Simplex(dim=0) + lg.Linear(c)
    )
    return problem, _potts_algorithm(), _uniform(c, *c.shape, total=len(c))


def smooth_potts(
    c: Tensor, w: Tensor, epsilon: Tensor, epsilon_dual: Tensor
) -> tuple[Any, lg.Algorithm, Tensor]:
    """With ε-entropies: on a grid the dual of a flat region is not unique without one."""
    algorithm = _potts_algorithm()
    problem = lg.Saddle(
        lg.Differences(weights=w),
        penalty=(lg.Box() + lg.BregmanTerm(algorithm.dual_geometry, epsilon_dual)).conjugate(),
        nonsmooth=lg.Simplex(dim=0) + lg.Linear(c) + lg.NegativeEntropy(epsilon),
    )
    return problem, algorithm, _uniform(c, *c.shape, total=len(c))


def _potts_algorithm() -> lg.PrimalDual:
    return lg.PrimalDual(
        tau=0.6, sigma=0.6, geometry=lg.Entropy(), dual_geometry=lg.Interval(-1.0, 1.0)
    )


PAYOFF = random(3, 4, 3)


def game(M: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    """min_x max_y ⟨Mx, y⟩ on two simplices, where ‖M‖ is max|M_ij|."""
    problem = lg.Saddle(M, penalty=lg.Simplex().conjugate(), nonsmooth=lg.Simplex())
    return problem, _game_algorithm(), _uniform(M, M.shape[1], total=M.shape[1])


def smooth_game(M: Tensor, epsilon: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    term = lg.Simplex() + lg.NegativeEntropy(epsilon)
    problem = lg.Saddle(M, penalty=term.conjugate(), nonsmooth=term)
    return problem, _game_algorithm(), _uniform(M, M.shape[1], total=M.shape[1])


def _game_algorithm() -> lg.PrimalDual:
    size = 1.01 * float(PAYOFF.abs().max())  # the finite differences move M a little
    return lg.PrimalDual(
        tau=1 / size, sigma=1 / size, norm=size, geometry=lg.Entropy(), dual_geometry=lg.Entropy()
    )


# --- all of them ----------------------------------------------------------------------------------


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


_COSTS = random(4, 3, 2, 3)
_RIDGE = torch.tensor([0.1, 0.4, 0.2, 0.6, 0.3], dtype=torch.float64)
_EDGES = 0.1 + 0.3 * random(5, 2, 2, 3).sigmoid()

PROBLEMS = [
    Problem("lasso", lasso, (A, TARGET, _number(0.3)), 200),
    Problem(
        "weighted lasso",
        lasso,
        (A, TARGET, torch.tensor([0.1, 0.2, 0.4, 0.15, 0.5], dtype=torch.float64)),
        200,
    ),
    Problem("elastic net", elastic_net, (A, TARGET, _number(0.2), _number(0.5)), 200),
    Problem("nnls", nnls, (A, POSITIVE_TARGET), 200),
    Problem("nnls entropic", nnls_entropic, (A, POSITIVE_TARGET), 300),
    Problem("simplex least squares", simplex_least_squares, (A, MIXTURE), 300),
    Problem("simplex projected", simplex_projected, (A, MIXTURE), 200),
    Problem("ridge", ridge, (A, TARGET, _RIDGE), 30),
    Problem("logistic", logistic, (A, 0.1 * random(6, 5), _RIDGE), 40),
    Problem("tv 1d", tv_1d, (SIGNAL, _number(0.25)), 300),
    Problem("potts", potts, (_COSTS, _EDGES), 1000, isolated=False),
    Problem("smooth potts", smooth_potts, (_COSTS, _EDGES, _number(0.4), _number(0.4)), 250),
    Problem("game", game, (PAYOFF,), 1000),
    Problem("smooth game", smooth_game, (PAYOFF, _number(0.3)), 250),
]

ISOLATED = [p for p in PROBLEMS if p.isolated]
SADDLES = [p for p in ISOLATED if p.is_saddle]
SPLITTINGS = [p for p in PROBLEMS if not isinstance(p.build(*p.theta)[1], lg.Newton)]
"""Those solved by the paper's algorithms, whose state is a point."""


def by_name(name: str) -> Problem:
    return next(p for p in PROBLEMS if p.name == name)


def relative_error(found: Tensor, truth: Tensor) -> float:
    """‖found − truth‖/‖truth‖ in double precision."""
    found, truth = found.detach().double(), truth.detach().double()
    return float((found - truth).norm() / truth.norm())
