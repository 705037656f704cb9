"""The derivative of a few iterations, whose steps follow from the problem, against differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import legato as lg
from makers import rand, randn

A, B = randn(8, 5, seed=1), randn(8, seed=2)
TWO, PICTURE = randn(2, 8, 5, seed=3), randn(5, 6, seed=4)
KERNEL = randn(2, 1, 3, 3, seed=5)
DATA = lg.SquaredDistance(PICTURE)
D = lg.Differences()


class Case(NamedTuple):
    """An energy of θ, and where it is differentiated; ``constant`` where its norm is Lanczos'.

    ``recorded`` is whether an engine can record a step.
    """

    energy: Callable[[Tensor], lg.Function]
    at: Tensor
    algorithm: Callable[[], Any] = lambda: None
    constant: bool = False
    recorded: bool = True


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def seen_through(K: lg.Operator) -> lg.Function:
    return lg.SquaredDistance(PICTURE[None]) + lg.L1(0.3) @ K


CASES = {
    "scale of A": Case(lambda t: lg.LeastSquares(t * A, B) + lg.L1(0.3), number(0.7)),
    "scaled A": Case(lambda t: lg.LeastSquares(t * lg.Dense(A), B) + lg.L1(0.3), number(0.7)),
    "scaled energy": Case(lambda t: t * lg.LeastSquares(A, B) + lg.L1(0.3), number(1.3)),
    "A": Case(lambda t: lg.LeastSquares(t, B) + lg.L1(0.3), A),
    "a batch of A": Case(lambda t: lg.LeastSquares(t, B) + lg.L1(0.3), TWO),
    "a multiple eigenvalue": Case(
        lambda t: lg.LeastSquares(t * torch.eye(5, dtype=t.dtype), B[:5]) + lg.L1(0.3), number(0.7)
    ),
    "Quadratic": Case(lambda t: lg.Quadratic(t.mT @ t, A[0]) + lg.L1(0.1), A),
    "Logistic": Case(lambda t: lg.Logistic(t, B.sign()) + lg.L1(0.1), A),
    "weights": Case(lambda t: lg.LeastSquares(A, B, t) + lg.L1(0.1), 0.3 + rand(8)),
    "smoothed": Case(lambda t: lg.LeastSquares(A, B) + lg.L1(t).smoothed(0.1), 0.2 + rand(5)),
    "entropy": Case(
        lambda t: lg.Quadratic(A.mT @ A, A[0]) + lg.Box(0.0, t),
        number(1.7),
        lambda: lg.ForwardBackward(geometry=lg.Entropy()),
    ),
    "differences": Case(
        lambda t: DATA + lg.L1(1.0) @ lg.Differences(weights=t), 0.1 + rand(2, 5, 6)
    ),
    "one weight": Case(lambda t: DATA + lg.L1(1.0) @ lg.Differences(weights=t), number(0.4)),
    "diagonal after differences": Case(
        lambda t: DATA + lg.L1(0.5) @ (lg.Diagonal(t) @ D), 0.5 + rand(6)
    ),
    "a stack": Case(
        lambda t: DATA + lg.L1(0.5) @ lg.Diagonal(t) + lg.L1(0.2) @ D, 0.5 + rand(6)
    ),
    "circular": Case(lambda t: seen_through(lg.Convolution(t, "circular")), KERNEL, recorded=False),
    "zero": Case(lambda t: seen_through(lg.Convolution(t, "zero")), KERNEL),
    "mirror": Case(lambda t: seen_through(lg.Convolution(t, "mirror")), KERNEL, constant=True),
    "preconditioned": Case(
        lambda t: DATA + lg.L1(1.0) @ lg.Differences(weights=t),
        0.1 + rand(2, 5, 6),
        lambda: lg.PrimalDual(precondition=True),
    ),
    "sigma from tau": Case(
        lambda t: DATA + lg.L1(1.0) @ lg.Differences(weights=t),
        number(0.4),
        lambda: lg.PrimalDual(tau=0.3),
    ),
    "ADMM": Case(lambda t: lg.LeastSquares(t, B) + lg.L1(0.3), A, lg.ADMM),
    "DouglasRachford": Case(lambda t: lg.LeastSquares(t, B) + lg.L1(0.3), A, lg.DouglasRachford),
}  # fmt: skip


def solved(case: Case, theta: Tensor, gradient: lg.GradientStrategy, **how: Any) -> lg.Solution:
    energy, algorithm = case.energy(theta), case.algorithm()
    return lg.solve(energy, algorithm, gradient=gradient, stop=lg.Stop(4), **how)


def loss(x: Tensor) -> Tensor:
    slopes = torch.arange(1, x.numel() + 1, dtype=x.dtype).sin()
    return (x.flatten() * slopes).sum()


def difference(case: Case, direction: Tensor, h: float = 1e-6) -> float:
    ends = [loss(solved(case, case.at + s * h * direction, lg.Unroll()).x) for s in (1, -1)]
    return float(ends[0] - ends[1]) / (2 * h)


STRATEGIES: dict[str, Callable[[Tensor], tuple[lg.GradientStrategy, dict[str, Any]]]] = {
    "Unroll": lambda t: (lg.Unroll(), {}),
    "Unroll(checkpoint)": lambda t: (lg.Unroll(checkpoint=2), {}),
    "Forward": lambda t: (lg.Forward(t), {}),
    "Replayed": lambda t: (lg.Unroll(), {"engine": lg.Replayed()}),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_differentiated(name: str) -> None:
    case = CASES[name]
    direction = randn(*case.at.shape, seed=9) if case.at.ndim else torch.ones_like(case.at)
    slope = difference(case, direction)
    for name, strategy in STRATEGIES.items():
        if name == "Replayed" and not case.recorded:
            continue
        theta = case.at.clone().requires_grad_()
        gradient, how = strategy(theta)
        solution = solved(case, theta, gradient, **how)
        (found,) = torch.autograd.grad(loss(solution.x), theta)
        exact = float((found * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7)
        assert exact != case.constant
        assert solution.constant_steps == case.constant


def test_second_derivatives_where_eigenvalues_are_alike() -> None:
    """Those of AᵀA that are not the largest are all 0 here, but for one."""
    U = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    b = B[:3]

    def slope(t: Tensor) -> Tensor:
        x = lg.solve(lg.LeastSquares(t, b) + lg.L1(0.3), stop=lg.Stop(3)).x
        (found,) = torch.autograd.grad(loss(x), t, create_graph=True)
        return (found * randn(3, 3, seed=6)).sum()

    theta = U.clone().requires_grad_()
    direction, h = randn(3, 3, seed=7), 1e-5
    (second,) = torch.autograd.grad(slope(theta), theta)
    ends = [float(slope((U + s * h * direction).requires_grad_()).detach()) for s in (1, -1)]
    right = (ends[0] - ends[1]) / (2 * h)
    assert float((second * direction).sum()) == pytest.approx(right, rel=1e-6)


def test_a_norm_is_the_same_number_with_and_without_a_graph() -> None:
    for K in (lg.Dense(A), lg.Dense(TWO), lg.Convolution(KERNEL, "circular")):
        like = PICTURE[None] if isinstance(K, lg.Convolution) else None
        detached = K.norm(like)
        leaf = (K.kernel if isinstance(K, lg.Convolution) else K.matrix).clone().requires_grad_()
        again = type(K)(leaf, "circular") if isinstance(K, lg.Convolution) else lg.Dense(leaf)
        attached = again.norm(like)
        assert attached.requires_grad
        assert torch.equal(attached.detach(), detached)


def test_only_detached_norms_are_remembered() -> None:
    """A second backward pass through the same operator would find the graph of the first freed."""
    leaf = A.clone().requires_grad_()
    K = lg.Dense(leaf)
    slopes = [torch.autograd.grad(K.norm(), leaf)[0] for _ in range(2)]
    assert torch.equal(*slopes)
    with torch.no_grad():
        assert not K.norm().requires_grad
    with torch.no_grad():
        leaf *= 2
    assert float(K.norm().detach()) == pytest.approx(2 * float(lg.Dense(A).norm()), rel=1e-12)


def test_no_derivative_of_steps_is_taken_at_a_solution() -> None:
    """The fixed-point family starts without a graph: a solution knows nothing of the way there."""
    theta = A.clone().requires_grad_()
    solution = lg.solve(lg.LeastSquares(theta, B) + lg.L1(0.3), gradient=lg.Implicit())
    assert not solution.steps["step"].requires_grad
    assert not solution.constant_steps


@pytest.mark.parametrize("norm", [0.0, float("nan")])
def test_norms_of_nothing_and_of_no_numbers(norm: float) -> None:
    """A zero operator couples nothing, and its norm has the derivative 0, not NaN."""
    for K, leaf in (
        (lg.Dense, torch.full((3, 2), norm)),
        (lg.Diagonal, torch.full((3,), norm)),
        (lambda t: lg.Convolution(t, "circular"), torch.full((1, 1, 3, 3), norm)),
    ):
        leaf.requires_grad_()
        found = K(leaf).norm(torch.zeros(1, 4, 4))  # type: ignore[operator]
        (slope,) = torch.autograd.grad(found, leaf)
        assert (float(found.detach()) == 0 and not bool(slope.isnan().any())) or norm != 0


def test_layers_differentiate_the_steps_that_they_derive() -> None:
    torch.manual_seed(0)
    payoffs, signals = randn(3, 4, seed=5), randn(3, 5, seed=6)
    coder = lg.nn.SparseCoding(6, 5, iterations=6).double()
    game, fit = lg.nn.MatrixGame(0.5, iterations=5), lg.nn.NonNegativeLeastSquares(5)
    mixture = lg.nn.SimplexLeastSquares(5, geometry=lg.Entropy())
    for layer, theta in (
        (lambda: coder(signals), coder.directions),
        (lambda: game(payoffs)[0], payoffs),
        (lambda: fit(TWO[0], B), TWO),
        (lambda: mixture(TWO[0], B), TWO),
    ):
        theta.requires_grad_()
        (found,) = torch.autograd.grad(loss(layer()), theta)
        direction, h = randn(*theta.shape, seed=8), 1e-6
        with torch.no_grad():
            start = theta.clone()
            ends = []
            for s in (1, -1):
                theta.copy_(start + s * h * direction)
                ends.append(float(loss(layer())))
            theta.copy_(start)
        right = (ends[0] - ends[1]) / (2 * h)
        assert float((found * direction).sum()) == pytest.approx(right, rel=1e-5, abs=1e-8)
        theta.requires_grad_(isinstance(theta, torch.nn.Parameter))


def test_a_denoiser_says_that_its_steps_are_constants() -> None:
    image = randn(1, 1, 6, 6).float()
    denoiser = lg.nn.AnalysisDenoiser(size=3, iterations=3)
    assert denoiser.solve(image).solution.constant_steps
    with torch.no_grad():
        assert not denoiser.solve(image).solution.constant_steps
