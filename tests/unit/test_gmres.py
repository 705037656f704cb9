"""GMRES: its running residual, its update and what it reports."""

import pytest
import torch

import legato as lg
from legato.gradients.linear import gmres
from makers import randn

M = 0.9 * torch.linalg.qr(randn(40, 40, seed=1)).Q @ torch.diag(torch.linspace(0, 1, 40).double())
XI = randn(40, seed=2)


def test_the_running_residual_is_that_of_the_least_squares_fit():
    H = torch.triu(randn(2, 13, 12, seed=3), diagonal=-1)
    beta = torch.tensor([2.5, 1e-7]).double()
    fit = gmres._HessenbergFit(beta)
    rhs = torch.zeros(2, 13, 1).double()
    rhs[:, 0, 0] = beta
    for k in range(1, 13):
        part = H[:, : k + 1, :k]
        error = fit.add(H[:, : k + 1, k - 1])
        y = torch.linalg.lstsq(part, rhs[:, : k + 1]).solution
        expected = torch.linalg.vector_norm(part @ y - rhs[:, : k + 1], dim=(1, 2))
        torch.testing.assert_close(error, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("restart", [5, 50])
@pytest.mark.parametrize("tol", [1e-4, 1e-10])
def test_the_report_is_the_residual(restart, tol):
    found = lg.GMRES(tol, restart).solve(lambda w: M @ w, XI)
    residual = float(torch.linalg.vector_norm(XI - found.solution + M @ found.solution))
    assert found.converged
    assert found.residual == pytest.approx(residual / float(XI.norm()), rel=1e-6)
    assert found.residual <= tol
    expected = torch.linalg.solve(torch.eye(40).double() - M, XI)
    assert float((found.solution - expected).norm() / expected.norm()) < 50 * tol


def test_the_small_system_is_solved_once_a_cycle(monkeypatch):
    calls = []
    solve = torch.linalg.lstsq

    def counted(*args, **options):
        calls.append(args[0].shape)
        return solve(*args, **options)

    monkeypatch.setattr(torch.linalg, "lstsq", counted)
    found = lg.GMRES(1e-8, restart=10).solve(lambda w: M @ w, XI)
    assert found.converged
    assert found.iterations > 10
    assert len(calls) == -(-found.iterations // 10)


def test_a_singular_but_solvable_system():
    P = torch.diag(torch.tensor([1.0, 0.5, 0.25]).double())  # I − P does not see the first entry
    found = lg.GMRES(1e-12).solve(lambda w: P @ w, torch.tensor([0.0, 1.0, 1.0]).double())
    assert found.converged
    torch.testing.assert_close(found.solution, torch.tensor([0, 2, 4 / 3]).double())


def test_a_system_without_solution_says_so():
    P = torch.diag(torch.tensor([1.0, 0.5, 0.25]).double())
    found = lg.GMRES(1e-12).solve(lambda w: P @ w, torch.ones(3).double())
    assert not found.converged
    assert found.residual == pytest.approx(3**-0.5, rel=1e-6)


@pytest.mark.parametrize("solver", [lg.GMRES(), lg.Direct()], ids=repr)
def test_products_that_are_no_numbers_are_refused(solver):
    """LAPACK would end in an internal error, or not at all."""
    with pytest.raises(lg.errors.GradientError, match="float64"):
        solver.solve(lambda w: w / 0, torch.ones(3).double())


def test_a_tolerance_below_what_rounding_can_certify():
    """r is exactly 0, yet no residual below u(‖w‖ + ‖Mw‖) can be vouched for: no second cycle."""
    xi = torch.ones(1, dtype=torch.float64)
    for rate in (0.99, 0.99999):
        found = lg.GMRES(tol=1e-15).solve(lambda v, rate=rate: rate * v, xi)
        torch.testing.assert_close(found.solution, xi / (1 - rate), rtol=1e-10, atol=0)
        assert found.residual >= 1e-16 / (1 - rate)
