"""deepinv's physics as operators and legato's regularisers as its priors, by imitations."""

from __future__ import annotations

import pytest
import torch

import legato as lg
from draws import rand, randn
from legato import errors
from legato.nn import TV, ConvexRidges, DeepinvPrior
from legato.operators import from_deepinv
from legato.testing import check_operator


class Physics(torch.nn.Module):
    """A sum over channels and every second column; ``wrong`` is what its adjoint is off by."""

    def __init__(self, wrong: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("gain", torch.tensor(3.0, dtype=torch.float64))
        self.wrong, self.offset = wrong, offset

    def A(self, x):
        return self.gain * x.sum(1)[..., ::2] + self.offset

    def A_adjoint(self, y):
        back = y.new_zeros(*y.shape[:-1], 2 * y.shape[-1])
        back[..., ::2] = y
        return self.wrong * self.gain * back[:, None].expand(-1, 2, -1, -1)


SHAPE = (2, 3, 4)


def test_a_physics_is_an_operator_with_batches_before():
    K = from_deepinv(Physics(), SHAPE, torch.float64)
    assert K.coupled == (3, 2)
    check_operator(K, randn(*SHAPE))
    x = randn(5, 2, *SHAPE)
    assert K(x).shape == (5, 2, 3, 2)
    torch.testing.assert_close(K(x)[3, 1], K(x[3, 1]))
    truth = randn(*SHAPE)
    energy = lg.LeastSquares(K, K(truth)) + lg.SquaredNorm(1e-9)
    found = lg.solve(energy, stop=lg.Stop(500, tol=1e-12)).x
    torch.testing.assert_close(K(found), K(truth), atol=1e-6, rtol=0)
    t = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(K(t).sum(), t)
    torch.testing.assert_close(slope, K.adjoint(torch.ones_like(K(x))))


@pytest.mark.parametrize(
    ("physics", "words"),
    [
        (Physics(wrong=0.9), "adjoint of the operator is wrong"),
        (Physics(offset=0.1), "not linear"),
        (torch.nn.Identity(), "A, A_adjoint"),
    ],
)
def test_what_is_no_linear_physics_is_refused(physics, words):
    with pytest.raises(errors.InputError, match=words):
        from_deepinv(physics, SHAPE, torch.float64)
    with pytest.raises(errors.InputError, match="of shape"):
        from_deepinv(Physics(), SHAPE, torch.float64)(randn(3, 3, 4))


class Maps:
    """A physics of two functions."""

    def __init__(self, A, A_adjoint=None):
        self.A, self.A_adjoint = A, A_adjoint or A


def flipped(x):
    return x.flip(0)


@pytest.mark.parametrize(
    ("physics", "words"),
    [
        (Maps(torch.no_grad()(lambda x: 2 * x)), "A of the physics has no derivative"),
        (Maps(lambda x: 2 * x, lambda y: 2 * y.detach()), "A_adjoint of the physics has no deriv"),
        (Maps(lambda x: 3 * x - (2 * x).detach() + x), "has no derivative, or a wrong one"),
        (Maps(flipped), "A of the physics mixes"),
        (Maps(lambda x: x - x.mean(0, keepdim=True)), "A of the physics mixes"),
        (Maps(lambda x: x.mul_(2)), "A overwrites"),
        (Maps(lambda x: 2 * x, lambda y: y.mul_(2)), "adjoint of the operator overwrites"),
    ],
)
def test_what_would_be_wrong_later_is_refused_when_it_is_made(physics, words):
    """Constants to autograd, batches whose elements meet, arguments that are overwritten."""
    with pytest.raises(errors.InputError, match=words):
        from_deepinv(physics, SHAPE, torch.float64)


def test_functions_without_a_derivative_or_in_place_are_refused():
    with pytest.raises(errors.InputError, match="The function has no derivative"):
        lg.operators.from_function(torch.no_grad()(lambda x: 2 * x), (3,))
    with pytest.raises(errors.InputError, match="The function overwrites"):
        lg.operators.from_function(lambda x: x.mul_(2), (3,))


def test_a_regulariser_is_a_prior():
    """Its prox and derivative against long solves, and Moreau's identity."""
    x = rand(2, 1, 8, 8, seed=1)
    regulariser = TV(0.1).double()
    prior = DeepinvPrior(regulariser, iterations=300)
    assert prior.explicit_prior
    assert prior.fn(x, None).shape == (2,)
    torch.testing.assert_close(prior(x).sum(), lg.IsotropicTV(0.1)(x))
    found = prior.prox(x, None, gamma=0.7)
    energy = lg.SquaredDistance(x) + lg.IsotropicTV(0.07)
    truth = lg.solve(energy, stop=lg.Stop(4000, tol=1e-12)).x
    torch.testing.assert_close(found.detach(), truth, atol=1e-5, rtol=0)
    (slope,) = torch.autograd.grad(found.square().sum(), regulariser.weight.log)
    h = 1e-5
    ends = []
    for log in (-h, h):
        near = lg.SquaredDistance(x) + lg.IsotropicTV(0.07 * float(torch.tensor(log).exp()))
        ends.append(lg.solve(near, stop=lg.Stop(4000, tol=1e-12)).x.square().sum())
    assert float(slope) == pytest.approx(float(ends[1] - ends[0]) / 2 / h, rel=1e-2)
    y = rand(2, 1, 8, 8, seed=2)
    conjugate = prior.prox_conjugate(y, None, gamma=0.5, lamb=2.0)
    torch.testing.assert_close(conjugate, y - 0.5 * prior.prox(2 * y, gamma=4.0))


def test_a_smooth_regulariser_has_a_gradient_and_others_say_that_they_have_none():
    x = rand(1, 1, 8, 8, seed=1)
    ridges = ConvexRidges(4, 3, intervals=10).double()
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(ridges(x)(leaf), leaf)
    torch.testing.assert_close(DeepinvPrior(ridges).grad(x, None), slope)
    with pytest.raises(errors.InputError, match="not smooth"):
        DeepinvPrior(TV(0.1).double()).grad(x)
    with pytest.raises(errors.InputError, match="gamma must be at least 0"):
        DeepinvPrior(TV(0.1).double()).prox(x, gamma=-1.0)
