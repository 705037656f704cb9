"""A line search knows the directions it moved along; the derivative at the solution sees all."""

import warnings

import pytest
import torch

import legato as lg

STRATEGIES = {
    "GMRES": lg.Implicit(),
    "CG": lg.Implicit(lg.CG()),
    "Direct": lg.Implicit(lg.Direct()),
    "series": lg.FixedPoint(2000),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_direction_solved_from_the_start(strategy):
    """½Σ q_i (x_i − c_i)², whose steep entry starts at its solution: steps grow to 1/0.01."""
    q = torch.tensor([1.0, 0.01]).double()
    c = torch.tensor([2.0, 3.0]).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    start, stop = torch.tensor([2.0, 0.0]).double(), lg.Stop(500, tol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient = STRATEGIES[strategy]
        found = lg.solve(problem, algorithm, start, gradient=gradient, stop=stop)
        assert float(found.steps["step"]) > 10
        (slope,) = torch.autograd.grad(found.x @ torch.tensor([1.0, 2.0]).double(), c)
    torch.testing.assert_close(slope, torch.tensor([1.0, 2.0]).double(), rtol=1e-4, atol=0)
    assert found.backward.spectral_radius < 1
