"""Least squares on the orthant and the simplex against scipy and cvxpy, and bad input."""

from __future__ import annotations

import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

import legato as lg
from legato import errors
from legato.errors import InputError
from legato.nn import NonNegativeLeastSquares, SimplexLeastSquares
from makers import rand, randn

GEOMETRIES = [lg.Euclidean(), lg.Entropy()]
STRATEGIES = [lg.Unroll(), lg.Implicit()]
A = rand(8, 5, seed=1) + 2 * torch.eye(8, 5).double()
X = (0.5 + rand(4, 5, seed=2)) * (torch.arange(5) != torch.arange(4)[:, None])
X = X / X.sum(-1, keepdim=True)
# Data for which X solves both problems: the slope there is 1 where X is zero, else 0.
B = X @ A.mT - (X == 0).double() @ torch.linalg.pinv(A)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_nonnegative_against_scipy(geometry: lg.Geometry) -> None:
    output = NonNegativeLeastSquares(2000, geometry=geometry).solve(A, B)
    for b, x in zip(B, output.x, strict=True):
        np.testing.assert_allclose(x, nnls(A.numpy(), b.numpy())[0], atol=1e-6)
    torch.testing.assert_close(output.x, X, atol=1e-6, rtol=0)
    assert float(output.violation) <= 1e-5


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_simplex_against_a_convex_solver(geometry: lg.Geometry) -> None:
    output = SimplexLeastSquares(2000, geometry=geometry).solve(A, B)
    variable = cp.Variable(B.shape[:1] + A.shape[1:])
    energy = 0.5 * cp.sum_squares(variable @ A.numpy().T - B.numpy())
    problem = cp.Problem(cp.Minimize(energy), [variable >= 0, cp.sum(variable, axis=1) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    np.testing.assert_allclose(output.x, variable.value, atol=1e-5)
    torch.testing.assert_close(output.x, X, atol=1e-6, rtol=0)
    torch.testing.assert_close(output.x.sum(-1), torch.ones(4).double())
    assert float(output.violation) <= 1e-5


def test_the_violation_sees_that_it_is_not_solved() -> None:
    early = NonNegativeLeastSquares(2).solve(A, B)
    assert float(early.violation) > 1e-2


@pytest.mark.parametrize("gradient", STRATEGIES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("kind", [NonNegativeLeastSquares, SimplexLeastSquares])
@pytest.mark.parametrize("of", ["matrix", "data"])
def test_gradients_against_differences_of_the_solution(
    of: str, kind: Any, geometry: lg.Geometry, gradient: lg.GradientStrategy
) -> None:
    """The solutions lie on the boundary: some entries are zero, and stay so."""
    layer = kind(600, geometry=geometry, gradient=gradient)
    exact = kind(5000, tol=1e-13)
    target = randn(4, 5, seed=3)
    matrix, data = A.clone().requires_grad_(), B.clone().requires_grad_()
    x = matrix if of == "matrix" else data
    loss = (layer(matrix, data) - target).square().sum()
    (slope,) = torch.autograd.grad(loss, x)
    direction, h = randn(*x.shape, seed=7), 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            x += sign * h * direction
            ends.append(float((exact(matrix, data) - target).square().sum()))
            x -= sign * h * direction
    right = (ends[0] - ends[1]) / (2 * h)
    assert abs(right) > 1e-3
    assert float((slope * direction).sum()) == pytest.approx(right, rel=1e-4)


def test_one_matrix_each_and_operators() -> None:
    layer = NonNegativeLeastSquares(1000)
    matrices = A + rand(4, 8, 5, seed=4)
    together = layer(matrices, B)
    for i in range(4):
        torch.testing.assert_close(together[i], layer(matrices[i], B[i]), atol=1e-7, rtol=0)
    kernel = rand(1, 1, 3, seed=5)
    blurred = lg.Convolution(kernel)(rand(2, 1, 12, seed=6))
    again = layer(lg.Convolution(kernel), blurred)
    assert again.shape == (2, 1, 12)
    torch.testing.assert_close(lg.Convolution(kernel)(again), blurred, atol=1e-3, rtol=0)


def test_a_step_found_by_backtracking_survives_convergence() -> None:
    """Once nothing moves but rounding, rounding must not shrink it."""
    layer = NonNegativeLeastSquares(1500, geometry=lg.Entropy())
    early = NonNegativeLeastSquares(20, geometry=lg.Entropy()).solve(A, B).solution.steps["step"]
    late = layer.solve(A, B).solution.steps["step"]
    assert torch.equal(late, early)
    assert bool((early > 1e-3).all())


def test_a_start_and_a_missed_tolerance() -> None:
    layer = NonNegativeLeastSquares(5000, tol=1e-12)
    cold = layer.solve(A, B)
    warm = layer.solve(A, B, cold.x)
    assert bool((warm.solution.iterations < cold.solution.iterations / 2).all())
    with pytest.warns(errors.NotConvergedWarning, match="after 2 iterations"):
        NonNegativeLeastSquares(2, tol=1e-12)(A, B)


# --- bad input ------------------------------------------------------------------------------------


def test_a_zero_column_is_refused_where_it_leaves_x_open() -> None:
    matrix = A.clone()
    matrix[:, 3] = 0
    with pytest.raises(errors.InputError, match="Column 3 of the matrix is zero"):
        NonNegativeLeastSquares()(matrix, B)
    dark = SimplexLeastSquares(1000)(matrix, torch.zeros_like(B))
    torch.testing.assert_close(dark, torch.eye(5).double()[3].expand(4, 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [NonNegativeLeastSquares, SimplexLeastSquares])
def test_a_kernel_larger_than_the_data(kind: Any) -> None:
    with pytest.raises(
        errors.InputError, match=r"kernel \(3, 9\) is larger than the data \(8, 8\)"
    ):
        kind()(lg.Convolution(torch.ones(1, 1, 3, 9)), torch.ones(1, 8, 8))


@pytest.mark.parametrize(
    ("matrix", "data", "words"),
    [
        ("A", B, "not 'A'"),
        (A, [1.0], "a list"),
        (A, torch.zeros(0, 8).double(), "empty"),
        (A, torch.full((8,), math.nan).double(), "8 NaN"),
        (torch.full((8, 5), math.inf).double(), B, "infinite"),
        (A, torch.zeros(3, 7).double(), "each row of A, 8"),
        (A, torch.zeros(3, 8), "dtype"),
    ],
)
def test_bad_data(matrix: Any, data: Any, words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        NonNegativeLeastSquares()(matrix, data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 0}, "iterations"),
        ({"geometry": lg.Entropy}, "geometry"),
        ({"gradient": lg.Unroll}, "strategy"),
        ({"tol": 0.0}, "tol"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        SimplexLeastSquares(**options)


def test_a_start_on_the_boundary_of_an_entropy() -> None:
    with pytest.raises(errors.DomainError, match="x > 0"):
        NonNegativeLeastSquares(geometry=lg.Entropy()).solve(A, B, Tensor([0.0] * 5).double())


# --- sizes far from 1 -----------------------------------------------------------------------------

SIZES = {torch.float32: [1e-8, 1e-3, 1e3, 1e7], torch.float64: [1e-70, 1e-9, 1e9, 1e70]}
ALL_SIZES = [(dtype, size) for dtype, sizes in SIZES.items() for size in sizes]


def _value_and_gradients(
    layer: NonNegativeLeastSquares, size: float, of_data: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    matrix = (size * A).to(dtype).requires_grad_()
    data = (of_data * B).to(dtype).requires_grad_()
    value = layer(matrix, data)
    slopes = torch.cos(torch.arange(value.numel(), dtype=dtype)).reshape(value.shape)
    return value.detach(), *torch.autograd.grad(value, (matrix, data), slopes)


@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy(), lg.Burg()], ids=repr)
@pytest.mark.parametrize(("dtype", "size"), ALL_SIZES)
def test_small_and_large_operators_and_data(
    size: float, geometry: lg.Geometry, dtype: torch.dtype
) -> None:
    """x(sA, sb) = x(A, b), and both derivatives are 1/s times as large."""
    layer = NonNegativeLeastSquares(50, geometry=geometry)
    value, of_matrix, of_data = _value_and_gradients(layer, 1.0, 1.0, dtype)
    found = _value_and_gradients(layer, size, size, dtype)
    close = {"rtol": 2e-3, "atol": 2e-4}
    torch.testing.assert_close(found[0], value, **close)
    torch.testing.assert_close(found[1] * size, of_matrix, **close)
    torch.testing.assert_close(found[2] * size, of_data, **close)


@pytest.mark.parametrize("geometry", [lg.Entropy(), lg.Burg()], ids=repr)
@pytest.mark.parametrize(("dtype", "size"), ALL_SIZES)
def test_small_and_large_operators(size: float, dtype: torch.dtype, geometry: lg.Geometry) -> None:
    """x(sA, b) = x(A, b)/s, dx/db is 1/s times as large and dx/dA 1/s²."""
    layer = NonNegativeLeastSquares(50, geometry=geometry)
    value, of_matrix, of_data = _value_and_gradients(layer, 1.0, 1.0, dtype)
    found = _value_and_gradients(layer, size, 1.0, dtype)
    close = {"rtol": 2e-3, "atol": 2e-4}
    torch.testing.assert_close(found[0] * size, value, **close)
    torch.testing.assert_close(found[1] * size * size, of_matrix, **close)
    torch.testing.assert_close(found[2] * size, of_data, **close)


@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy()], ids=repr)
@pytest.mark.parametrize("size", [1e-8, 1e-3, 1e3, 1e7])
def test_mixtures_of_small_and_large_data(size: float, geometry: lg.Geometry) -> None:
    layer = SimplexLeastSquares(geometry=geometry)
    matrix, data = A.float(), B.float()
    torch.testing.assert_close(layer(size * matrix, size * data), layer(matrix, data))


@pytest.mark.parametrize("geometry", [lg.Euclidean(), lg.Entropy()], ids=repr)
@pytest.mark.parametrize("kind", [NonNegativeLeastSquares, SimplexLeastSquares])
@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_outside_of_the_range_an_error_says_so(
    dtype: torch.dtype, kind: Any, geometry: lg.Geometry
) -> None:
    layer, matrix, data = kind(geometry=geometry), A.to(dtype), B.to(dtype)
    low, high = (1e-12, 1e12) if dtype == torch.float32 else (1e-80, 1e80)
    for size in (low, high):
        with pytest.raises(errors.InputError, match=r"operator's matrix has a largest.*Scale"):
            layer(size * matrix, data)
        with pytest.raises(errors.InputError, match=r"data has a largest.*Scale"):
            layer(matrix, size * data)


def test_other_operators_have_a_range_too() -> None:
    layer = NonNegativeLeastSquares(50, geometry=lg.Entropy())
    kernel = rand(1, 1, 3, seed=5).float()
    data = lg.Convolution(kernel)(rand(2, 1, 12, seed=6).float())
    right = layer(lg.Convolution(kernel), data)
    for scaled in (lg.Convolution(1e-7 * kernel), 1e-7 * lg.Convolution(kernel)):
        torch.testing.assert_close(layer(scaled, 1e-7 * data), right, rtol=2e-3, atol=2e-4)
    for scaled in (lg.Convolution(1e-12 * kernel), 1e-12 * lg.Convolution(kernel)):
        with pytest.raises(errors.InputError, match="float64"):
            layer(scaled, data)


def test_a_start_is_of_the_size_of_the_data() -> None:
    layer = NonNegativeLeastSquares(2000, geometry=lg.Entropy(), tol=1e-9)
    cold = layer.solve(1e-12 * A, B)
    warm = layer.solve(1e-12 * A, B, cold.x.detach())
    assert bool((warm.solution.iterations < cold.solution.iterations / 2).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_in_words(dtype):
    with pytest.raises(InputError, match=r"float32 or float64.*\.float\(\)"):
        NonNegativeLeastSquares()(torch.eye(2, dtype=dtype), torch.ones(2, dtype=dtype))
