"""Terms that are changed after they were made: they are what they are now, or it is refused."""

import pytest
import torch

import legato as lg
from legato.errors import GradientError, InputError
from makers import randn


class OwnNorm(lg.Function):
    """w‖x‖₁, with an attribute that can be set."""

    def __init__(self, weight):
        self.weight = weight

    def value(self, x):
        return self.weight * x.abs().sum()

    def make_conjugate(self):
        return lg.LInfBall(self.weight)


def test_an_attribute_that_is_set_makes_another_conjugate():
    """x = (3 − w, 0)."""
    term = OwnNorm(torch.tensor(1.0))
    data = lg.SquaredDistance(torch.tensor([3.0, 0.5]))
    problem = lg.Saddle(lg.Dense(torch.eye(2)), term, nonsmooth=data)
    for weight in (1.0, 2.0):
        term.weight = torch.tensor(weight)
        found = lg.solve(problem, stop=lg.Stop(500)).x
        torch.testing.assert_close(found, torch.tensor([3 - weight, 0.0]), rtol=0, atol=1e-5)
    conjugate = term.conjugate()
    assert term.conjugate() is conjugate
    assert conjugate.conjugate() is term


def test_labels_that_become_others():
    labels = torch.tensor([1.0, -1.0, 1.0]).double()
    term = lg.Logistic(randn(3, 2, seed=0), labels) + lg.SquaredNorm(0.1)
    lg.solve(term)
    labels.neg_()
    lg.solve(term)
    labels.copy_(torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(InputError, match="2 \\* b - 1"):
        lg.solve(term)


STRATEGIES = {"GMRES": lg.Implicit(), "series": lg.FixedPoint(), "one": lg.OneStep(tol=None)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_change_that_one_step_does_not_show(strategy):
    """½f(x − c)² + ½(x − d)² with c = d: x = c for any f, but dx/dc = f/(f + 1)."""
    c = torch.tensor([1.0, 2.0]).double().requires_grad_()
    factor = torch.ones(2).double()
    terms = lg.SquaredDistance(c, weight=factor) + lg.SquaredDistance(c.detach().clone())
    gradient, stop = STRATEGIES[strategy], lg.Stop(2000, tol=1e-13)
    found = lg.solve(lg.Composite(terms), lg.ForwardBackward(0.1), gradient=gradient, stop=stop)
    factor.mul_(3)
    with pytest.raises(GradientError, match="changed in place"):
        found.x.sum().backward()


def test_a_batch_of_matrices_that_fits_no_vector():
    with pytest.raises(InputError, match="do not broadcast"):
        lg.solve(lg.LeastSquares(randn(2, 4, 5, seed=0), randn(3, 4, seed=1)) + lg.L1(0.1))
    with pytest.raises(InputError, match="do not broadcast"):
        lg.Dense(randn(2, 4, 5, seed=0))(randn(3, 5, seed=1))


def test_a_shift_of_another_shape_behind_differences():
    edges = lg.Differences(dims=(-1,))
    term = (lg.L1(0.1) @ edges).shifted(torch.zeros(3)) @ edges
    with pytest.raises(InputError, match="directions"):
        lg.solve(lg.SquaredDistance(torch.zeros(5)) + term)


def test_a_line_search_for_a_linear_term_ends_at_a_corner():
    """min x₁ − x₂/2 on the square: nothing holds steps back."""
    sides = torch.cat([torch.eye(2), -torch.eye(2)]).double()
    square = lg.Polyhedral(sides, torch.ones(4).double())
    term = lg.Linear(torch.tensor([1.0, -0.5]).double())
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0), square)
    found = lg.solve(lg.Composite(term), algorithm, stop=lg.Stop(200)).x
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0]).double(), rtol=0, atol=1e-6)
