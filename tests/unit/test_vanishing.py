"""A start a million times larger than the solution: where the iterate went is found out."""

import warnings

import pytest
import torch

import legato as lg
from legato import errors

Q = torch.tensor([1.0, 0.05]).double()


def differentiated(centre, weight, strategy, tol=1e-8):
    w = torch.tensor(weight).double().requires_grad_()
    c = torch.tensor(centre).double()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(Q), -Q * c), lg.L1(w))
    start = torch.ones(2).double()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        algorithm = lg.ForwardBackward(inertia=0.0)
        stop = lg.Stop(5000, tol=tol)
        found = lg.solve(problem, algorithm, start, gradient=strategy, stop=stop)
        assert bool(torch.as_tensor(found.converged).all())
        (slope,) = torch.autograd.grad(found.x.sum(), w)
    return float(slope), [w for w in said if issubclass(w.category, errors.LegatoWarning)]


STRATEGIES = {
    "GMRES": lg.Implicit(),
    "Direct": lg.Implicit(lg.Direct()),
    "CG": lg.Implicit(lg.CG()),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_beyond_a_kink(strategy):
    """x = (c₁ − w, 0), as 0.05·c₂ < w, but the second entry, on its way there, is still above."""
    slope, said = differentiated([5e-9, 5e-9], 1e-9, STRATEGIES[strategy])
    assert slope == pytest.approx(-21.0, rel=1e-3)  # of the wrong piece: the truth is −1
    assert len(said) == 1
    assert "start was so much larger" in str(said[0].message)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_arrived(strategy):
    slope, said = differentiated([5e-9, 5e-9], 1e-9, STRATEGIES[strategy], tol=1e-13)
    assert slope == pytest.approx(-1.0, rel=1e-6)
    assert said == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_its_way_to_zero(strategy):
    """Without a kink in between a small iterate has the derivative of its limit, dx/dc = 1."""
    c = torch.zeros(2).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(Q), -Q * c))
    start, stop = torch.ones(2).double(), lg.Stop(5000, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algorithm = lg.ForwardBackward(inertia=0.0)
        found = lg.solve(problem, algorithm, start, gradient=STRATEGIES[strategy], stop=stop)
        (slope,) = torch.autograd.grad(found.x.sum(), c)
    assert 0 < float(found.x[1].detach()) < 1e-6
    torch.testing.assert_close(slope, torch.ones(2).double(), rtol=1e-4, atol=0)
