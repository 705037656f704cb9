"""Small problems whose solutions are known to be good-natured, as functions of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato.algorithms import Algorithm, ForwardBackward, Newton, PrimalDual
from legato.functions import (
    L1,
    Box,
    BregmanTerm,
    LeastSquares,
    Linear,
    Logistic,
    NegativeEntropy,
    NonNegative,
    Simplex,
    SquaredDistance,
    SquaredNorm,
)
from legato.geometry import Entropy, Interval
from legato.operators import Differences
from legato.problems import Composite, Problem, Saddle
from legato.running import Stop
from legato.solving import Solution, solve


@dataclass(frozen=True)
class SmallProblem:
    """θ ↦ problem, with an algorithm, a start, float64 parameters θ and a loss of the solution.

    Steps are fixed numbers: a derived step is a constant for autograd, but would move under
    central differences. ``iterations`` bring the residual to rounding. ``isolated`` says that the
    solution, primal and dual, is unique and attracting, so that fixed-point gradients apply.
    """

    name: str
    make: Callable[..., Problem]
    algorithm: Algorithm[Any, Any]
    x0: Tensor
    parameters: tuple[Tensor, ...]
    iterations: int
    isolated: bool = True

    def build(self, *parameters: Tensor) -> tuple[Problem, Algorithm[Any, Any], Tensor]:
        """What ``solve`` takes, in the precision of the parameters."""
        return self.make(*parameters), self.algorithm, self.x0.to(parameters[0])

    def leaves(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
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
    return {problem.name: problem for problem in (*_composites(), *_smooth(), *_saddles())}


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _uniform(*shape: int, total: int) -> Tensor:
    return torch.full(shape, 1 / total, dtype=torch.float64)


def _regression() -> tuple[Tensor, Tensor]:
    """A matrix so well conditioned that a few hundred iterations reach rounding, and data."""
    left, _, right = torch.linalg.svd(_normal(0, 7, 5), full_matrices=False)
    A = left @ torch.diag(torch.linspace(1.0, 1.6, 5, dtype=torch.float64)) @ right
    return A, A @ _vector(1.2, -0.9, 0.0, 0.7, 0.0) + 0.1 * _normal(1, 7)


def _composites() -> list[SmallProblem]:
    A, b = _regression()
    positive = A @ _vector(0.9, 0.6, -0.5, 0.8, -0.4)
    mixture = A @ _vector(0.9, 0.4, -0.4, 0.3, -0.3)
    zero, fifth = torch.zeros(5, dtype=torch.float64), _uniform(5, total=5)
    projected = ForwardBackward(step_size=0.35)  # below 1/‖A‖², also for matrices moved a little

    def lasso(A: Tensor, b: Tensor, weight: Tensor) -> Problem:
        return Composite(LeastSquares(A, b), L1(weight))

    def elastic_net(A: Tensor, b: Tensor, weight: Tensor, ridge: Tensor) -> Problem:
        return Composite(LeastSquares(A, b), L1(weight) + SquaredNorm(ridge))

    def nnls(A: Tensor, b: Tensor) -> Problem:
        return Composite(LeastSquares(A, b), NonNegative())

    def simplex(A: Tensor, b: Tensor) -> Problem:
        return Composite(LeastSquares(A, b), Simplex())

    def entropic(step: float) -> ForwardBackward:
        return ForwardBackward(step_size=step, geometry=Entropy())

    weights, half = _vector(0.1, 0.2, 0.4, 0.15, 0.5), _uniform(5, total=2)
    net = (A, b, _number(0.2), _number(0.5))
    return [
        SmallProblem("lasso", lasso, projected, zero, (A, b, _number(0.3)), 200),
        SmallProblem("weighted lasso", lasso, projected, zero, (A, b, weights), 200),
        SmallProblem("elastic net", elastic_net, projected, zero, net, 200),
        SmallProblem("nnls", nnls, projected, zero, (A, positive), 200),
        SmallProblem("nnls entropic", nnls, entropic(0.4), half, (A, positive), 300),
        SmallProblem("simplex least squares", simplex, entropic(0.8), fifth, (A, mixture), 300),
        SmallProblem("simplex projected", simplex, projected, fifth, (A, mixture), 200),
    ]


def _smooth() -> list[SmallProblem]:
    """For Newton's method."""
    A, b = _regression()
    weights, zero = _vector(0.1, 0.4, 0.2, 0.6, 0.3), torch.zeros(5, dtype=torch.float64)

    def ridge(A: Tensor, b: Tensor, weights: Tensor) -> Problem:
        return Composite(LeastSquares(A, b), SquaredNorm(weights))

    def logistic(A: Tensor, c: Tensor, weights: Tensor) -> Problem:
        return Composite(Logistic(A, b.sign().to(A)), SquaredNorm(weights) + Linear(c))

    fit = (A, 0.1 * _normal(6, 5), weights)
    return [
        SmallProblem("ridge", ridge, Newton(), zero, (A, b, weights), 30),
        SmallProblem("logistic", logistic, Newton(), zero, fit, 40),
    ]


def _saddles() -> list[SmallProblem]:
    interval = Interval(-1.0, 1.0)
    payoff = _normal(3, 4, 3)
    size = 1.01 * float(payoff.abs().max())  # central differences move the matrix a little

    def tv(b: Tensor, weight: Tensor) -> Problem:
        return Saddle(Differences(dims=(-1,)), L1(weight), nonsmooth=SquaredDistance(b))

    def potts(c: Tensor, w: Tensor) -> Problem:
        """Labels on the first axis; w are the weights of the edges of a grid."""
        return Saddle(Differences(weights=w), L1(), nonsmooth=Simplex(dim=0) + Linear(c))

    def smooth_potts(c: Tensor, w: Tensor, epsilon: Tensor, dual: Tensor) -> Problem:
        """With entropies: on a grid the dual of a flat region is not unique without one."""
        penalty = (Box() + BregmanTerm(interval, dual)).conjugate()
        term = Simplex(dim=0) + Linear(c) + NegativeEntropy(epsilon)
        return Saddle(Differences(weights=w), penalty, nonsmooth=term)

    def game(M: Tensor) -> Problem:
        """min_x max_y ⟨Mx, y⟩ on two simplices, where ‖M‖ is max|M_ij|."""
        return Saddle(M, Simplex().conjugate(), nonsmooth=Simplex())

    def smooth_game(M: Tensor, epsilon: Tensor) -> Problem:
        term = Simplex() + NegativeEntropy(epsilon)
        return Saddle(M, term.conjugate(), nonsmooth=term)

    euclidean = PrimalDual(tau=0.5, sigma=0.5)
    labelling = PrimalDual(tau=0.6, sigma=0.6, geometry=Entropy(), dual_geometry=interval)
    playing = PrimalDual(1 / size, 1 / size, Entropy(), Entropy(), norm=size)
    signal = _vector(0.1, 0.2, 0.0, 1.1, 0.9, 1.0, 1.3, -0.4)
    grid = (_normal(4, 3, 2, 3), 0.1 + 0.3 * _normal(5, 2, 2, 3).sigmoid())
    smooth_grid = (*grid, _number(0.4), _number(0.4))
    thirds, third = _uniform(3, 2, 3, total=3), _uniform(3, total=3)
    zero = torch.zeros_like(signal)
    return [
        SmallProblem("tv 1d", tv, euclidean, zero, (signal, _number(0.25)), 300),
        SmallProblem("potts", potts, labelling, thirds, grid, 1000, isolated=False),
        SmallProblem("smooth potts", smooth_potts, labelling, thirds, smooth_grid, 250),
        SmallProblem("game", game, playing, third, (payoff,), 1000),
        SmallProblem("smooth game", smooth_game, playing, third, (payoff, _number(0.3)), 250),
    ]
