"""The matrix game against linear programming, its logit equations, differences, and bad input."""

from __future__ import annotations

import doctest
import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import legato as lg
from legato import errors
from legato.nn import MatrixGame
from makers import randn

A = randn(4, 3, seed=1)
STRATEGIES = [lg.Unroll(), lg.Implicit(), lg.Piggyback(iterations=3000)]


def linear_program(A: np.ndarray) -> tuple[np.ndarray, float]:
    """min v with Aᵀx ≤ v, x ∈ Δ."""
    m, n = A.shape
    done = linprog(
        np.r_[np.zeros(m), 1],
        A_ub=np.column_stack([A.T, -np.ones(n)]),
        b_ub=np.zeros(n),
        A_eq=np.r_[np.ones(m), 0][None],
        b_eq=[1],
        bounds=[(0, None)] * m + [(None, None)],
    )
    return done.x[:m], done.fun


def test_the_value_is_that_of_the_linear_program() -> None:
    for seed in range(3):
        A = randn(5, 4, seed=seed)
        output = MatrixGame(0.0, average=True, iterations=4000).solve(A)
        strategy, value = linear_program(A.numpy())
        assert float(output.value) == pytest.approx(value, abs=5e-3)
        assert 0 <= float(output.gap) <= 5e-3
        np.testing.assert_allclose(output.x, strategy, atol=5e-2)
        _, other = linear_program(-A.numpy().T)
        assert other == pytest.approx(-value, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 1.0])
def test_with_entropy_it_solves_the_logit_equations(epsilon: float) -> None:
    output = MatrixGame(epsilon, iterations=20000, tol=1e-14).solve(A)
    x, y = output.x, output.y
    torch.testing.assert_close(x, torch.softmax(-A @ y / epsilon, 0), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(y, torch.softmax(A.mT @ x / epsilon, 0), rtol=1e-8, atol=1e-9)
    assert float(output.gap) == pytest.approx(0, abs=1e-8)


def test_rock_paper_scissors_is_uniform_and_worth_nothing() -> None:
    game = torch.tensor([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]])
    output = MatrixGame(0.05).solve(game)
    torch.testing.assert_close(output.x, torch.full((3,), 1 / 3))
    torch.testing.assert_close(output.y, torch.full((3,), 1 / 3))
    assert float(output.value) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("gradient", STRATEGIES, ids=lambda g: type(g).__name__)
def test_gradients_against_differences(gradient: lg.GradientStrategy) -> None:
    game = MatrixGame(0.2, iterations=800, gradient=gradient)
    targets = randn(2, 4, seed=3), randn(2, 3, seed=4)
    payoffs = torch.stack([A, randn(4, 3, seed=2)]).requires_grad_()

    def loss() -> Tensor:
        row, column = game(payoffs)
        return (row * targets[0]).sum() + (column * targets[1]).sum()

    (slope,) = torch.autograd.grad(loss(), payoffs)
    direction, h = randn(2, 4, 3, seed=7), 1e-6
    with torch.no_grad():
        payoffs += h * direction
        above = loss()
        payoffs -= 2 * h * direction
        right = float(above - loss()) / (2 * h)
    assert float((slope * direction).sum()) == pytest.approx(right, rel=1e-6)


def test_the_value_s_derivative_is_the_product_of_strategies() -> None:
    """Of the regularised value, by the envelope theorem: d/dA = x yᵀ."""
    payoffs = A.clone().requires_grad_()
    epsilon = 0.3
    output = MatrixGame(epsilon, iterations=1000).solve(payoffs)
    entropies = [torch.xlogy(s, s).sum() for s in (output.x, output.y)]
    whole = output.value + epsilon * (entropies[0] - entropies[1])
    (slope,) = torch.autograd.grad(whole, payoffs)
    torch.testing.assert_close(slope, torch.outer(output.x, output.y).detach())


def test_a_batch_is_played_game_by_game() -> None:
    games = torch.stack([A, 5 * randn(4, 3, seed=2), torch.zeros(4, 3).double()])
    layer = MatrixGame(0.2, iterations=1000)
    output = layer.solve(games)
    for i in range(3):
        one = layer.solve(games[i])
        torch.testing.assert_close(output.x[i], one.x)
        torch.testing.assert_close(output.value[i], one.value)
    torch.testing.assert_close(output.x[2], torch.full((4,), 0.25).double())


def test_a_start() -> None:
    layer = MatrixGame(0.2, iterations=5000, tol=1e-10)
    cold = layer.solve(A)
    warm = layer.solve(A, cold.solution.state)
    assert warm.solution.iterations < cold.solution.iterations / 2
    torch.testing.assert_close(layer.solve(A, cold.x).x, cold.x)


def test_sizes_of_payoffs() -> None:
    payoffs = A.float()
    right, _ = MatrixGame(0.2)(payoffs)
    for size in (1e-7, 1e7):
        torch.testing.assert_close(MatrixGame(0.2 * size)(size * payoffs)[0], right)
    for size in (1e-12, 1e12):
        with pytest.raises(
            errors.InputError, match=r"payoffs has a largest entry.*Scale the data.*float64"
        ):
            MatrixGame()(size * payoffs)


def test_a_missed_tolerance_is_said() -> None:
    with pytest.warns(errors.NotConvergedWarning, match="MatrixGame stopped after 3 iterations"):
        MatrixGame(0.1, iterations=3, tol=1e-10)(A)


@pytest.mark.parametrize(
    ("payoffs", "words"),
    [
        (torch.zeros(3), r"matrix.*not \(3,\)"),
        (torch.zeros(0, 3), "with entries"),
        ("A", "not str"),
        (torch.zeros(2, 2, dtype=torch.int64), r"\.float\(\)"),
        (torch.full((2, 2), math.nan), "4 NaN"),
    ],
)
def test_bad_payoffs(payoffs: Any, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        MatrixGame()(payoffs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"iterations": 1.5}, "iterations"),
        ({"gradient": "implicit"}, "strategy"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        MatrixGame(**options)


@pytest.mark.parametrize("name", ["matrix_game", "least_squares", "sparse_coding"])
def test_the_docstrings_examples_run(name: str) -> None:
    torch.manual_seed(0)
    module = importlib.import_module(f"legato.nn.{name}")
    done = doctest.testmod(module)
    assert done.attempted >= 4
    assert done.failed == 0
