"""The problems of pyproximal's tests of solvers, each held against other solvers."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from draws import rand, randn

SIZES = {
    "10×10, float64": (10, 10, torch.float64),
    "8×10, float64": (8, 10, torch.float64),
    "8×10, float32": (8, 10, torch.float32),
}
ALL = pytest.mark.parametrize("size", SIZES)


def numbers(*tensors):
    return [t.double().numpy() for t in tensors]


def matrix(size, seed=0):
    n, m, dtype = SIZES[size]
    return randn(n, m, seed=seed).to(dtype)


def sparse(size):
    x = torch.zeros(SIZES[size][1], dtype=SIZES[size][2])
    x[2], x[4] = 1.0, 0.5
    return x


def minimiser(m, make):
    x = cp.Variable(m)
    problem = cp.Problem(cp.Minimize(make(x)))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return x.value


def agrees(found, expected, dtype):
    atol = 2e-3 if dtype == torch.float32 else 1e-5
    np.testing.assert_allclose(found.double().numpy(), expected, atol=atol)


def stop(dtype):
    return lg.Stop(5000, tol=1e-6 if dtype == torch.float32 else 1e-9)


LASSO = {
    "steps": lg.ForwardBackward(inertia=0.0),
    "momentum": lg.ForwardBackward(inertia=lg.Nesterov()),
    "momentum that restarts": lg.ForwardBackward(),
    "searched": lg.ForwardBackward(lg.Backtracking(), inertia=0.0),
    "searched, relaxed": lg.ForwardBackward(lg.Backtracking(), inertia=0.0, relaxation=0.8),
    "searched with momentum": lg.ForwardBackward(lg.Backtracking(), inertia=lg.Nesterov()),
    "searched with momentum, relaxed": lg.ForwardBackward(
        lg.Backtracking(), inertia=lg.Nesterov(), relaxation=0.8
    ),
    "Anderson": lg.Anderson(lg.ForwardBackward(inertia=0.0)),
    "ADMM": lg.ADMM(),
    "ADMM, relaxed": lg.ADMM(relaxation=1.5),
    "Douglas–Rachford": lg.DouglasRachford(),
    "Douglas–Rachford, relaxed": lg.DouglasRachford(relaxation=1.5),
}


@ALL
@pytest.mark.parametrize("name", LASSO)
def test_lasso(name, size):
    _, m, dtype = SIZES[size]
    R, x = matrix(size), sparse(size)
    A, b = numbers(R, R @ x)
    expected = minimiser(m, lambda v: 0.5 * cp.sum_squares(A @ v - b) + 0.5 * cp.norm1(v))
    energy = lg.LeastSquares(R, R @ x) + lg.L1(0.5)
    found = lg.solve(energy, LASSO[name], x0=torch.zeros_like(x), stop=stop(dtype)).x
    agrees(found, expected, dtype)


RIDGE = {
    "half-quadratic": (lg.HalfQuadratic(1.0, decay=0.97, least=1e-3), 2e-2),
    "ADMM": (lg.ADMM(), 2e-3),
    "ADMM of a given weight": (lg.ADMM(rho=0.3), 2e-3),
    "Douglas–Rachford": (lg.DouglasRachford(), 2e-3),
}


@ALL
@pytest.mark.parametrize("name", RIDGE)
@pytest.mark.parametrize("first", ["data", "penalty"])
def test_ridge(name, first, size):
    _, m, dtype = SIZES[size]
    R, truth = matrix(size), randn(m, seed=1).to(dtype)
    A, b = numbers(R, R @ truth)
    terms = [lg.LeastSquares(R, R @ truth), lg.SquaredNorm(0.1)]
    energy = sum(terms if first == "data" else terms[::-1])
    algorithm, atol = RIDGE[name]
    limit = lg.Stop(400) if name == "half-quadratic" else stop(dtype)
    found = lg.solve(energy, algorithm, x0=torch.zeros_like(truth), stop=limit).x
    expected = np.linalg.solve(A.T @ A + 0.1 * np.eye(m), A.T @ b)
    np.testing.assert_allclose(found.double().numpy(), expected, atol=atol)


@ALL
def test_ridge_with_a_dual_variable(size):
    """Linearised ADMM: the same iteration as the primal–dual one."""
    _, m, dtype = SIZES[size]
    R, truth = matrix(size), randn(m, seed=1).to(dtype)
    A, b = numbers(R, R @ truth)
    problem = lg.Saddle(lg.Identity(), lg.SquaredNorm(0.1), smooth=lg.LeastSquares(R, R @ truth))
    found = lg.solve(problem, lg.PrimalDual(), x0=torch.zeros_like(truth), stop=stop(dtype)).x
    agrees(found, np.linalg.solve(A.T @ A + 0.1 * np.eye(m), A.T @ b), dtype)


@ALL
def test_the_proximal_point_method(size):
    _, m, dtype = SIZES[size]
    R = randn(m, m, seed=2).to(dtype)
    Q, x = R.mT @ R, torch.linspace(-5, 5, m, dtype=dtype)
    problem = lg.Composite(lg.Zero(), lg.Quadratic(Q, -Q @ x))
    steps = lg.ForwardBackward(10.0, inertia=0.0)
    found = lg.solve(problem, steps, x0=torch.zeros_like(x), stop=lg.Stop(2000)).x
    torch.testing.assert_close(found, x, atol=2e-2, rtol=0)


SEVERAL = {
    "ADMM": lg.ADMM(),
    "primal–dual": lg.PrimalDual(),
    "primal–dual of a given balance": lg.PrimalDual(balance=0.3),
}


@ALL
@pytest.mark.parametrize("name", SEVERAL)
def test_several_data_terms_and_several_norms(name, size):
    """Two pairs of data and two norms around different centres: neither sum has one prox."""
    _, m, dtype = SIZES[size]
    R1, R2, x = matrix(size), matrix(size, seed=1), sparse(size)
    g = torch.zeros_like(x)
    g[1], g[2] = 1.0, 0.5
    A1, b1, A2, b2, c = numbers(R1, R1 @ x, R2, R2 @ x, g)
    expected = minimiser(
        m,
        lambda v: (
            0.5 * cp.sum_squares(A1 @ v - b1)
            + 0.5 * cp.sum_squares(A2 @ v - b2)
            + 0.5 * cp.norm1(v)
            + 0.25 * cp.norm1(v - c)
        ),
    )
    data = lg.LeastSquares(R1, R1 @ x) + lg.LeastSquares(R2, R2 @ x)
    energy = data + lg.L1(0.5) + lg.L1(0.25).shifted(g)
    found = lg.solve(energy, SEVERAL[name], x0=torch.zeros_like(x), stop=stop(dtype)).x
    agrees(found, expected, dtype)


@ALL
@pytest.mark.parametrize("name", ["ADMM", "momentum that restarts"])
def test_three_data_terms_are_one_of_their_stack(name, size):
    m, dtype = SIZES[size][1:]
    truth = randn(m, seed=9).to(dtype) * (rand(m, seed=8) > 0.5).to(dtype)
    parts = [randn(k, m, seed=k).to(dtype) for k in (3, 5, 7)]
    A, b = numbers(torch.cat(parts), torch.cat(parts) @ truth)
    expected = minimiser(m, lambda v: 0.5 * cp.sum_squares(A @ v - b) + 0.01 * cp.norm1(v))
    energy = sum((lg.LeastSquares(R, R @ truth) for R in parts), lg.L1(0.01))
    found = lg.solve(energy, LASSO[name], x0=torch.zeros_like(truth), stop=stop(dtype)).x
    agrees(found, expected, dtype)


DIFFERENCES = {
    "ADMM": lg.ADMM(),
    "primal–dual": lg.PrimalDual(),
    "primal–dual, adaptive": lg.PrimalDual(balance=lg.AdaptiveBalance()),
}


@ALL
@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("first", ["data", "penalty"])
def test_differences_that_are_sparse(name, first, size):
    _, m, dtype = SIZES[size]
    R = matrix(size)
    x = (torch.arange(m) >= m // 2).to(dtype)
    A, b = numbers(R, R @ x)
    expected = minimiser(m, lambda v: 0.5 * cp.sum_squares(A @ v - b) + 0.1 * cp.norm1(cp.diff(v)))
    terms = [lg.LeastSquares(R, R @ x), lg.L1(0.1) @ lg.Differences((-1,))]
    energy = sum(terms if first == "data" else terms[::-1])
    found = lg.solve(energy, DIFFERENCES[name], x0=torch.zeros_like(x), stop=stop(dtype)).x
    agrees(found, expected, dtype)
