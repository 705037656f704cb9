"""Differences stay inside the domains of weights and ends, and so do not confirm what is wrong."""

import pytest
import torch

import legato as lg
from legato.diagnostics.differences import disagreement
from legato.diagnostics.reference import follow
from legato.diagnostics.setting import Setting
from makers import randn

B = torch.tensor([2.0, -1.5, 0.7, -3.0]).double()
C = torch.tensor([1.0, -2.0, 0.5, 1.5]).double()


def at(*values):
    return torch.tensor(values).double().requires_grad_()


def measured(term, theta, gradient):
    """The disagreement for ½‖x − b‖² + term, with the loss ⟨c, x⟩."""
    problem = lg.Composite(lg.LeastSquares(torch.eye(4).double(), B), term)
    setting = Setting(problem, lg.ForwardBackward(0.5), lambda x: (C * x).sum(), None, [theta])
    path = follow(setting, lg.Stop(80), 80)
    return disagreement(setting, path, gradient.reshape(-1), 3)


ZERO, ONE = (0.0, 0.0, 0.1, 0.0), (1.0, 1.0, 1.0, 1.0)
# x = soft(b, w), min(max(b, lo), hi), …: derivatives of ⟨c, x⟩ by hand
CASES = {
    "L1 of weights 0": (lambda t: lg.L1(t), ZERO, -C * B.sign()),
    "a ball of radius 0": (lambda t: lg.LInfBall(t), (0.0,) * 4, C * B.sign()),
    "a box of one point": (lambda t: lg.Box(t, t), ONE, C),
    "a box whose lower end is the upper one": (
        lambda t: lg.Box(t, torch.ones(4).double()),
        ONE,
        C * (B < 1),
    ),
    "a ridge of weight 0": (lambda t: lg.SquaredNorm(t), (0.0,) * 4, -C * B),
    "0 times a norm": (lambda t: t * lg.L1(), 0.0, -(C * B.sign()).sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_right_derivatives_are_confirmed_and_wrong_ones_are_not(name):
    make, values, right = CASES[name]
    theta = torch.tensor(values).double().requires_grad_()
    assert measured(make(theta), theta, right) < 1e-6
    for wrong in (torch.zeros_like(right), 0.5 * right, -right):
        assert measured(make(theta), theta, wrong) > 0.1


def test_a_missing_derivative_in_one_weight_is_seen():
    """As of torch.clamp, which gives a negative coefficient of weight 0 no derivative."""
    wrong, theta = -C * B.sign() * (B > 0), at(*ZERO)
    assert measured(lg.L1(theta), theta, wrong) > 0.1


def test_a_diagnosis_says_so_by_itself():
    theta = at(*ZERO)
    problem = lg.Composite(lg.LeastSquares(torch.eye(4).double(), B), lg.L1(theta))
    algorithm = lg.ForwardBackward(0.5)
    found = lg.diagnose(problem, algorithm, lambda x: (C * x).sum(), stop=lg.Stop(80))
    torch.testing.assert_close(found.reference.gradient, -C * B.sign())
    assert found.reference.disagreement < 1e-6


def test_where_no_step_is_allowed_nothing_is_claimed():
    """One weight is θ, another −θ, both 0: whatever the direction, one would become negative."""
    theta = torch.zeros(1).double().requires_grad_()
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    assert measured(lg.L1(signs * theta), theta, torch.ones(1).double()) is None


def test_computed_weights_are_moved_inside_too():
    theta = torch.zeros(4).double().requires_grad_()
    assert measured(lg.L1(-theta), theta, C * B.sign()) < 1e-6


def test_away_from_the_ends_differences_are_central():
    A, b = randn(6, 4, seed=1), randn(6, seed=2)
    w = (0.1 * torch.ones(4)).double().requires_grad_()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(w))
    found = lg.diagnose(problem, lg.ForwardBackward(), lambda x: (C * x).sum())
    assert found.reference.disagreement < 1e-6
