"""What a linear solver certifies is true, also where I − M is singular or nearly so."""

import math
import warnings

import numpy as np
import pytest
import torch

import legato as lg
from legato.errors import InexactGradientWarning, LegatoWarning, NonContractiveWarning
from legato.gradients.linear.base import residual_of
from makers import randn

SOLVERS = [lg.CG(), lg.GMRES(), lg.BiCGStab(), lg.Neumann(iterations=200), lg.Direct()]
UNTIL = lg.Stop(5000, tol=1e-12)


def solve_lasso(A, b, solver):
    w = torch.tensor(0.3, dtype=A.dtype, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    fast = lg.ForwardBackward(inertia=lg.Nesterov(restart=True))
    return lg.solve(problem, fast, gradient=lg.Implicit(solver), stop=UNTIL)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_two_equal_columns_are_never_passed_over(solver):
    """The solution is not unique, and ξ has a part along which nothing contracts."""
    for seed in range(40):
        A, b = randn(12, 6, seed=2 * seed), 3 * randn(12, seed=2 * seed + 1)
        A[:, 3] = A[:, 0]
        s = solve_lasso(A, b, solver)
        x = s.x.detach()
        if float(x[0].abs()) < 1e-6:  # both are switched off: nothing is ambiguous
            continue
        with pytest.warns(LegatoWarning) as said:
            (s.x[0] - 2 * s.x[3]).backward()
        kinds = {warning.category for warning in said}
        assert kinds & {NonContractiveWarning, InexactGradientWarning}
        assert not (s.backward.converged and s.backward.bound < 1)


def test_a_huge_solution_certifies_nothing():
    """ξ − w + Mw is exactly 0 in floating point, and says nothing about ξ."""
    xi = torch.ones(3).double()
    r, residual = residual_of(lambda w: w, 1e33 * xi, xi)
    assert not r.any()
    assert residual > 1e16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-6])
def test_the_certificate_is_at_least_the_exact_residual(dtype, gap):
    """M and w as stored, the residual of M and w in twice the precision."""
    M = torch.diag(1 - torch.logspace(0, math.log10(gap), 8).double())
    Q = torch.linalg.qr(randn(8, 8, seed=1)).Q
    M, xi = (Q @ M @ Q.mT).to(dtype), randn(8, seed=2).to(dtype)
    for solver in SOLVERS:
        if isinstance(solver, lg.Neumann):
            continue  # of a map that contracts this slowly it sums a part
        found = solver.solve(lambda v: M @ v, xi)
        w = found.solution.double()
        exact = float((xi.double() - w + M.double() @ w).norm() / xi.double().norm())
        assert found.residual >= 0.5 * exact
        if found.converged:
            assert exact <= 2 * found.tol


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_well_posed_problems_are_not_disturbed(solver):
    """In float32 as well, whose rounding is the larger floor."""
    for dtype in (torch.float32, torch.float64):
        A, b = randn(12, 6, seed=1).to(dtype), randn(12, seed=2).to(dtype)
        w = torch.tensor(0.3, dtype=dtype, requires_grad=True)
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
        s = lg.solve(
            problem, lg.ForwardBackward(), gradient=lg.Implicit(solver), stop=lg.Stop(3000, 1e-6)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s.x.square().sum().backward()
        assert s.backward.converged


# --- solves that have not arrived -----------------------------------------------------------------

ALL = [*SOLVERS[:3], lg.Neumann(iterations=20000), lg.Direct()]


def ill_conditioned_lasso(seed):
    """A, b, λ, and a cotangent of x; the condition of AᵀA is between 1e3 and 1e6."""
    g = np.random.default_rng(seed)
    n = int(g.integers(5, 25))
    m = n + int(g.integers(0, 10))
    condition = 10 ** g.uniform(3, 6)
    U = np.linalg.qr(g.standard_normal((m, n)))[0]
    V = np.linalg.qr(g.standard_normal((n, n)))[0]
    A = U * np.logspace(0, -math.log10(condition) / 2, n) @ V.T
    x = g.standard_normal(n) * (g.random(n) < 0.6)
    b = A @ x + 10 ** g.uniform(-4, -1) * g.standard_normal(m)
    weight = np.abs(A.T @ b).max() * 10 ** g.uniform(-4, -0.5)
    return A, b, weight, g.standard_normal(n)


def closed_form(A, b, weight, cotangent):
    """The derivative of ⟨cotangent, x⟩ in b and λ on the active set, which meets the optimality
    conditions with room to spare.
    """
    A_, b_ = torch.tensor(A), torch.tensor(b)
    fast = lg.ForwardBackward(inertia=lg.Nesterov(restart=True))
    energy = lg.LeastSquares(A_, b_) + lg.L1(torch.tensor(weight))
    x = lg.solve(energy, fast, stop=lg.Stop(200_000, tol=1e-15)).x.numpy()
    active = np.abs(x) > 1e-6 * np.abs(x).max()
    part, signs = A[:, active], np.sign(x[active])
    H = part.T @ part
    exact = np.linalg.solve(H, part.T @ b - weight * signs)
    slack = np.abs(A[:, ~active].T @ (b - part @ exact)) / weight
    assert np.array_equal(np.sign(exact), signs)
    assert slack.max(initial=0.0) < 1 - 1e-5
    adjoint = np.linalg.solve(H, cotangent[active])
    return np.append(part @ adjoint, -adjoint @ signs)


@pytest.mark.parametrize("solver", ALL, ids=repr)
@pytest.mark.parametrize(("seed", "iterations"), [(22, 3000), (80, 3000), (80, 1000)])
def test_a_solve_that_has_not_arrived_is_told_by_every_solver(seed, iterations, solver):
    """A kink lies between the iterate and the solution: the gradient is off by any amount."""
    A, b, weight, cotangent = ill_conditioned_lasso(seed)
    expected = closed_form(A, b, weight, cotangent)
    b_ = torch.tensor(b, requires_grad=True)
    weight_ = torch.tensor(weight, requires_grad=True)
    energy = lg.LeastSquares(torch.tensor(A), b_) + lg.L1(weight_)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        s = lg.solve(
            energy,
            lg.ForwardBackward(inertia=0.0),
            gradient=lg.Implicit(solver),
            stop=lg.Stop(iterations),
        )
        (s.x * torch.tensor(cotangent)).sum().backward()
    found = np.append(b_.grad.numpy(), weight_.grad.item())
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error > 0.05  # as the seeds were chosen
    assert any(isinstance(one.message, LegatoWarning) for one in said)


@pytest.mark.parametrize("solver", ALL, ids=repr)
def test_an_element_that_the_loss_does_not_see_is_not_warned_about(solver):
    """One element of the batch has not arrived; the loss is of the other."""
    slow = torch.diag(torch.logspace(0, -3, 6).double())
    A = torch.stack([torch.eye(6).double(), slow])
    weight = torch.tensor([[0.1], [1e-8]]).double().requires_grad_()
    energy = lg.LeastSquares(A, torch.ones(2, 6).double()) + lg.L1(weight)
    s = lg.solve(energy, gradient=lg.Implicit(solver), stop=lg.Stop(2000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (grad,) = torch.autograd.grad(s.x[0].sum(), weight, retain_graph=True)
    torch.testing.assert_close(grad, torch.tensor([[-6.0], [0.0]]).double())
    with pytest.warns(LegatoWarning):
        s.x.sum().backward()


@pytest.mark.parametrize("solver", [one for one in ALL if not isinstance(one, lg.CG)], ids=repr)
def test_duals_that_are_not_unique_do_no_harm(solver):
    """Every row of K twice: u and its derivative are unique, the dual is not."""
    for seed in range(6):
        y = randn(7, seed=seed).requires_grad_()
        K = torch.eye(7).double()[:-1] - torch.eye(7).double()[1:]
        twice = torch.cat([0.3 * K, 0.7 * K])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s = lg.solve(
                lg.SquaredDistance(y) + lg.L1(0.4) @ twice,
                gradient=lg.Implicit(solver),
                stop=lg.Stop(20000, tol=1e-10),
            )
            (s.x * torch.arange(7.0)).sum().backward()
        # u is the mean of y, up to a constant, on each of its flat pieces
        u, expected, start = s.x.detach(), torch.zeros(7).double(), 0
        for end in range(1, 8):
            if end == 7 or float((u[end] - u[end - 1]).abs()) > 1e-6:
                expected[start:end] = torch.arange(start, end).double().mean()
                start = end
        torch.testing.assert_close(y.grad, expected, rtol=1e-4, atol=1e-5)
