"""A tolerance met at once from an earlier solution: derivatives of so few iterations are told."""

import warnings

import pytest
import torch

import legato as lg
from legato.errors import InexactGradientWarning
from makers import randn

A = randn(8, 4, seed=1).double()
B = randn(8, seed=2).double()
STOP = lg.Stop(20000, tol=1e-9)


def problem(b):
    return lg.Composite(lg.LeastSquares(A, b), lg.SquaredNorm(0.1))


def exact():
    """d(Σx)/db of x = (AᵀA + 0.1)⁻¹Aᵀb."""
    return A @ torch.linalg.solve(A.T @ A + 0.1 * torch.eye(4).double(), torch.ones(4).double())


def differentiated(x0, gradient, stop=STOP, algorithm=None):
    b = B.clone().requires_grad_()
    algorithm = lg.ForwardBackward(inertia=0.0) if algorithm is None else algorithm
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = lg.solve(problem(b), algorithm, x0, gradient=gradient, stop=stop)
        (slope,) = torch.autograd.grad(found.x.sum(), b)
    return slope, [w for w in said if issubclass(w.category, InexactGradientWarning)]


WAYS = {
    "plain": lg.Unroll(),
    "tol": lg.Unroll(tol=1e-12),
    "checkpoint": lg.Unroll(checkpoint=5),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moved", [0.0, 1e-9, 1e-7])
def test_a_start_at_the_solution_is_told(way, moved):
    warm = lg.solve(problem(B), lg.ForwardBackward(), stop=lg.Stop(20000, tol=1e-14)).x + moved
    slope, said = differentiated(warm, WAYS[way])
    assert (slope - exact()).norm() > 0.05 * exact().norm()
    assert len(said) == 1
    assert "Implicit()" in str(said[0].message)


@pytest.mark.parametrize("way", WAYS)
def test_a_start_far_away_is_not(way):
    slope, said = differentiated(None, WAYS[way])
    torch.testing.assert_close(slope, exact(), rtol=1e-5, atol=1e-8)
    assert said == []


def test_what_is_advised_helps():
    warm = lg.solve(problem(B), lg.ForwardBackward(), stop=lg.Stop(20000, tol=1e-14)).x
    for gradient, stop in ((lg.Implicit(), STOP), (lg.Unroll(), lg.Stop(2000))):
        slope, said = differentiated(warm, gradient, stop)
        torch.testing.assert_close(slope, exact(), rtol=1e-4, atol=1e-7)
        assert said == []


def test_a_map_that_forgets_its_start_needs_one_iteration():
    """The prox of ½‖x − y‖² + w‖x‖₁ in one step: dx/dw = −1, whatever the start."""
    w = torch.tensor(1.0).double().requires_grad_()
    y = torch.tensor([3.0]).double()
    quadratic = lg.Composite(lg.SquaredDistance(y), lg.L1(w))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lg.solve(
            quadratic, lg.ForwardBackward(inertia=0.0), torch.tensor([2.0]).double(), stop=STOP
        )
        (slope,) = torch.autograd.grad(found.x.sum(), w)
    assert found.iterations == 1
    assert float(slope) == pytest.approx(-1.0)


def test_entries_at_their_bound_do_not_hide_what_is_missing():
    """x = (w, 0, …, 0), and one step from x takes 86 % of dx/dw = 1 along."""
    w = torch.tensor(1.0).double().requires_grad_()
    towards = torch.tensor([1.0] + 30 * [-1.0]).double()
    weight = torch.full((31,), 0.86).double()
    bounded = lg.Composite(lg.SquaredDistance(w * towards, weight=weight), lg.NonNegative())
    start, plain = towards.clamp(min=0) * (1 - 1e-9), lg.ForwardBackward(1.0, inertia=0.0)
    with pytest.warns(InexactGradientWarning, match="about 14%"):
        found = lg.solve(bounded, plain, start, gradient=lg.Unroll(), stop=lg.Stop(100, tol=1e-6))
    (slope,) = torch.autograd.grad(found.x[0], w)
    assert float(slope) == pytest.approx(0.86)
