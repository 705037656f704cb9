"""What a linear solver certifies is true, also where I − M is singular or nearly so."""

import math
import warnings

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
