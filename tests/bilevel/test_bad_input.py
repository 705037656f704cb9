"""Mistakes that everybody makes once with fit: each ends with an error that says what to do."""

from __future__ import annotations

import pytest
import torch

import legato as lg
from legato import bilevel, optim
from legato.errors import InputError, NoInfluenceError, NonFiniteLossError

MAKERS = [optim.IPiano, optim.ProximalGradient, optim.NonlinearCG]


def parameter(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64, requires_grad=True)


def lg_fit(loss, params, make=optim.IPiano, steps=3, **options):
    return bilevel.fit(loss, params, make, steps, **options)


def test_fit_names_the_parameter_without_influence():
    x, unused = parameter(2), parameter(3)
    with pytest.raises(NoInfluenceError, match=r"smoothness of shape \(3,\)"):
        lg_fit(lambda inner: (x**2).sum(), {"weights": x, "smoothness": unused})
    with pytest.raises(NoInfluenceError, match=r"weights of shape \(2,\)"):
        lg_fit(lambda inner: (x.detach() ** 2).sum(), {"weights": x})


def test_fit_says_where_the_gradient_vanishes_altogether():
    """A penalty above the largest useful one: the solution is 0 whatever it is."""
    theta = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    A = torch.eye(3, dtype=torch.float64)
    b = torch.ones(3, dtype=torch.float64)

    def loss(inner):
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(theta))
        return ((inner.solve(problem, lg.ForwardBackward()).x - b) ** 2).sum()

    for make in (*MAKERS, lambda p: torch.optim.SGD(p, lr=0.1)):
        with pytest.raises(NoInfluenceError, match="exactly zero at the start"):
            lg_fit(loss, theta, make)


@pytest.mark.parametrize("make", [*MAKERS, lambda p: torch.optim.Adam(p, lr=0.1)])
def test_a_loss_that_is_nan_at_the_start(make):
    x = torch.full((2,), -1.0, requires_grad=True)
    with pytest.raises(NonFiniteLossError, match="At the start the loss is nan"):
        lg_fit(lambda inner: torch.log(x).sum(), x, make)
    assert torch.equal(x.detach(), torch.full((2,), -1.0))


def test_a_gradient_that_is_nan_at_the_start():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(NonFiniteLossError, match="gradient of the loss is not finite"):
        lg_fit(lambda inner: torch.sqrt(x).sum(), x)


def test_an_error_of_the_lower_level_at_the_start_is_not_hidden():
    x = torch.full((2,), -1.0, requires_grad=True)

    def loss(inner):
        return inner.solve(
            lg.Composite(lg.LeastSquares(torch.eye(2), torch.ones(2)), lg.L1(x)),
            lg.ForwardBackward(),
        ).x.sum()

    with pytest.raises(InputError, match="must be non-negative"):
        lg_fit(loss, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, f: bilevel.fit(f, x, optim.IPiano, 0),
        lambda x, f: bilevel.fit(f, x, optim.IPiano, True),
        lambda x, f: bilevel.fit(f, [], optim.IPiano, 3),
        lambda x, f: bilevel.fit(f, [x.detach()], optim.IPiano, 3),
        lambda x, f: bilevel.fit(f, [2.0], optim.IPiano, 3),
        lambda x, f: bilevel.fit(f, x, optim.IPiano([parameter(2)]), 3),
        lambda x, f: bilevel.fit(f, x, lambda p: "Adam", 3),
        lambda x, f: bilevel.fit(f, x, optim.IPiano, 3, inexact="HOAG"),
        lambda x, f: bilevel.fit(f, x, torch.optim.SGD, 3, inexact=bilevel.MAID()),
        lambda x, f: bilevel.fit(lambda inner: x**2, x, optim.IPiano, 3),
        lambda x, f: bilevel.fit(lambda inner: 3.0, x, optim.IPiano, 3),
        lambda x, f: bilevel.fit(lambda inner: None, x, optim.IPiano, 3),
        lambda x, f: bilevel.HOAG(first=1e-8, last=1e-2),
        lambda x, f: bilevel.HOAG(decay=1.0),
        lambda x, f: bilevel.MAID(tighten=1.0),
        lambda x, f: bilevel.Until(patience=0),
        lambda x, f: bilevel.Until(gradient=-1.0),
        lambda x, f: bilevel.Checkpoint("x.pt", every=0),
    ],
)
def test_other_mistakes(call):
    x = parameter(2)
    with pytest.raises(InputError):
        call(x, lambda inner: (x**2).sum())
