"""Small problems whose solutions are known to be good-natured, as functions of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato import functions as fn
from legato.algorithms import Algorithm, ForwardBackward, Newton, PrimalDual
from legato.geometry import Entropy, Interval, Polyhedral
from legato.operators import Dense, Differences
from legato.problems import Composite, Problem, Saddle
from legato.running import Stop
from legato.solving import Solution, solve

F64 = torch.float64


@dataclass(frozen=True)
class SmallProblem:
    """θ ↦ problem, with an algorithm, a start, float64 parameters θ and a loss of the solution.

    Steps are fixed numbers: a derived step is a constant for autograd, but would move under
    central differences. ``iterations`` bring the residual to rounding. ``isolated`` says that the
    solution, primal and dual, is unique and attracting, so that fixed-point gradients apply.
    """

    make: Callable[..., Problem]
    algorithm: Algorithm[Any, Any]
    x0: Tensor
    parameters: tuple[Tensor, ...]
    iterations: int
    isolated: bool = True

    def build(self, *parameters: Tensor) -> tuple[Problem, Algorithm[Any, Any], Tensor]:
        """What ``solve`` takes, in the precision of the parameters."""
        return self.make(*parameters), self.algorithm, self.x0.to(parameters[0])

    def leaves(self, dtype: torch.dtype = F64) -> tuple[Tensor, ...]:
        """A fresh copy of θ that records gradients."""
        return tuple(t.detach().to(dtype).clone().requires_grad_() for t in self.parameters)

    def solve(self, *parameters: Tensor, iterations: int, gradient: Any = None) -> Solution:
        return solve(*self.build(*parameters), gradient=gradient, stop=Stop(iterations))

    def loss(self, x: Tensor) -> Tensor:
        """Neither symmetric nor linear, so that it sees every entry differently."""
        slope = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
        return (slope * x + 0.5 * x * x).sum()


def small_problems() -> dict[str, SmallProblem]:
    """Small problems of every kind, x(θ) = argmin E(x, θ), by their names.

    >>> problem = legato.testing.small_problems()["lasso"]
    >>> problem.solve(*problem.parameters, iterations=200).residual < 1e-14
    tensor(True)
    """
    return _regressions() | _saddles()


def _regressions() -> dict[str, SmallProblem]:
    """With a matrix so well conditioned that a few hundred iterations reach rounding."""
    left, _, right = torch.linalg.svd(_normal(0, 7, 5), full_matrices=False)
    A = left @ torch.diag(torch.linspace(1.0, 1.6, 5, dtype=F64)) @ right
    b = A @ _vector(1.2, -0.9, 0.0, 0.7, 0.0) + 0.1 * _normal(1, 7)
    positive = A @ _vector(0.9, 0.6, -0.5, 0.8, -0.4)
    mixture = A @ _vector(0.9, 0.4, -0.4, 0.3, -0.3)
    weights, ridge = _vector(0.1, 0.2, 0.4, 0.15, 0.5), _vector(0.1, 0.4, 0.2, 0.6, 0.3)
    zero, fifth = torch.zeros(5, dtype=F64), torch.full((5,), 0.2, dtype=F64)
    plain = ForwardBackward(step_size=0.35)  # below 1/‖A‖², also for matrices moved a little
    entropic = {step: ForwardBackward(step, Entropy()) for step in (0.4, 0.8)}

    def lasso(A: Tensor, b: Tensor, weight: Tensor) -> Problem:
        return Composite(fn.LeastSquares(Dense(A), b), fn.L1(weight))

    def elastic_net(A: Tensor, b: Tensor, weight: Tensor, ridge: Tensor) -> Problem:
        return Composite(fn.LeastSquares(Dense(A), b), fn.L1(weight) + fn.SquaredNorm(ridge))

    def nnls(A: Tensor, b: Tensor) -> Problem:
        return Composite(fn.LeastSquares(Dense(A), b), fn.NonNegative())

    def simplex(A: Tensor, b: Tensor) -> Problem:
        return Composite(fn.LeastSquares(Dense(A), b), fn.Simplex())

    def polytope(b: Tensor) -> Problem:
        """The constraints are the domain of the geometry."""
        return Composite(fn.LeastSquares(Dense(A[:, :3].to(b)), b))

    def ridged(A: Tensor, b: Tensor, weights: Tensor) -> Problem:
        return Composite(fn.LeastSquares(Dense(A), b), fn.SquaredNorm(weights))

    def logistic(A: Tensor, c: Tensor, weights: Tensor) -> Problem:
        return Composite(
            fn.Logistic(Dense(A), b.sign().to(A)), fn.SquaredNorm(weights) + fn.Linear(c)
        )

    three = torch.eye(3, dtype=F64)
    walls = torch.cat([three, -three, torch.ones(1, 3, dtype=F64)])  # |xᵢ| ≤ 1 and Σx ≤ 1
    inside = ForwardBackward(1.2, Polyhedral(walls, torch.ones(7, dtype=F64)))
    outside = A[:, :3] @ _vector(2.0, 0.8, 0.1)  # the solution is on two faces
    net = (A, b, _vector(0.2)[0], _vector(0.5)[0])
    return {
        "lasso": SmallProblem(lasso, plain, zero, (A, b, _vector(0.3)[0]), 200),
        "weighted lasso": SmallProblem(lasso, plain, zero, (A, b, weights), 200),
        "elastic net": SmallProblem(elastic_net, plain, zero, net, 200),
        "nnls": SmallProblem(nnls, plain, zero, (A, positive), 200),
        "nnls entropic": SmallProblem(nnls, entropic[0.4], zero + 0.5, (A, positive), 300),
        "simplex least squares": SmallProblem(simplex, entropic[0.8], fifth, (A, mixture), 300),
        "polytope": SmallProblem(polytope, inside, zero[:3], (outside,), 70),
        "simplex projected": SmallProblem(simplex, plain, fifth, (A, mixture), 200),
        "lasso by Newton": SmallProblem(lasso, Newton(), zero, (A, b, _vector(0.3)[0]), 30),
        "ridge": SmallProblem(ridged, Newton(), zero, (A, b, ridge), 30),
        "logistic": SmallProblem(logistic, Newton(), zero, (A, 0.1 * _normal(6, 5), ridge), 40),
    }


def _saddles() -> dict[str, SmallProblem]:
    interval, payoff = Interval(-1.0, 1.0), _normal(3, 4, 3)
    size = 1.01 * float(payoff.abs().max())  # central differences move the matrix a little

    def tv(b: Tensor, weight: Tensor) -> Problem:
        return Saddle(Differences(dims=(-1,)), fn.L1(weight), nonsmooth=fn.SquaredDistance(b))

    def potts(c: Tensor, w: Tensor) -> Problem:
        """Labels on the first axis; w are the weights of the edges of a grid."""
        return Saddle(Differences(weights=w), fn.L1(), nonsmooth=fn.Simplex(dim=0) + fn.Linear(c))

    def smooth_potts(c: Tensor, w: Tensor, epsilon: Tensor, dual: Tensor) -> Problem:
        """With entropies: on a grid the dual of a flat region is not unique without one."""
        penalty = (fn.Box() + fn.BregmanTerm(interval, dual)).conjugate()
        term = fn.Simplex(dim=0) + fn.Linear(c) + fn.NegativeEntropy(epsilon)
        return Saddle(Differences(weights=w), penalty, nonsmooth=term)

    def game(M: Tensor) -> Problem:
        """min_x max_y ⟨Mx, y⟩ on two simplices, where ‖M‖ is max|M_ij|."""
        return Saddle(Dense(M), fn.Simplex().conjugate(), nonsmooth=fn.Simplex())

    def smooth_game(M: Tensor, epsilon: Tensor) -> Problem:
        term = fn.Simplex() + fn.NegativeEntropy(epsilon)
        return Saddle(Dense(M), term.conjugate(), nonsmooth=term)

    euclidean = PrimalDual(tau=0.5, sigma=0.5)
    labelling = PrimalDual(0.6, 0.6, Entropy(), interval)
    playing = PrimalDual(1 / size, 1 / size, Entropy(), Entropy(), norm=size)
    signal, weight = _vector(0.1, 0.2, 0.0, 1.1, 0.9, 1.0, 1.3, -0.4), _vector(0.25)[0]
    grid = (_normal(4, 3, 2, 3), 0.1 + 0.3 * _normal(5, 2, 2, 3).sigmoid())
    third, smooth = torch.full((3, 2, 3), 1 / 3, dtype=F64), _vector(0.3, 0.4, 0.4)
    zero, start = torch.zeros_like(signal), third[:, 0, 0]
    return {
        "tv 1d": SmallProblem(tv, euclidean, zero, (signal, weight), 300),
        "potts": SmallProblem(potts, labelling, third, grid, 1000, isolated=False),
        "smooth potts": SmallProblem(smooth_potts, labelling, third, (*grid, *smooth[1:]), 250),
        "game": SmallProblem(game, playing, start, (payoff,), 1000),
        "smooth game": SmallProblem(smooth_game, playing, start, (payoff, smooth[0]), 250),
    }


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)
