"""Mistakes that everybody makes once: each ends with an error that says what to do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import (
    ClosureError,
    InputError,
    MissingProxError,
    NoInfluenceError,
    NonFiniteLossError,
    ProxError,
)

MAKERS = [optim.IPiano, optim.ProximalGradient, optim.NonlinearCG]


def parameter(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, requires_grad=True)


# --- closures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_that_forgets_backward(make):
    x = parameter(2)
    with pytest.raises(ClosureError, match=r"must call loss\.backward"):
        make([x]).step(lambda: (x**2).sum())


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_that_forgets_backward_once_is_not_saved_by_an_old_gradient(make):
    x = parameter(2)
    (x**2).sum().backward()
    with pytest.raises(ClosureError, match=r"must call loss\.backward"):
        make([x]).step(lambda: (x**2).sum())


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_that_returns_a_float_and_forgets_backward(make):
    x = parameter(2)
    with pytest.raises(ClosureError, match=r"call loss\.backward"):
        make([x]).step(lambda: (x**2).sum().item())


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_that_forgets_to_return(make):
    x = parameter(2)

    def closure():
        (x**2).sum().backward()

    with pytest.raises(ClosureError, match="return loss"):
        make([x]).step(closure)


@pytest.mark.parametrize("make", MAKERS)
def test_a_closure_that_returns_a_vector(make):
    x = parameter(2)

    def closure():
        (x**2).sum().backward()
        return x**2

    with pytest.raises(ClosureError, match=r"shape \(2,\)"):
        make([x]).step(closure)


@pytest.mark.parametrize("make", MAKERS)
def test_no_closure_at_all(make):
    with pytest.raises(ClosureError, match="needs a closure"):
        make([parameter(2)]).step()


def test_heavy_ball_without_a_gradient():
    with pytest.raises(ClosureError, match="No parameter has a gradient"):
        optim.HeavyBall([parameter(2)], alpha=0.1).step()


def test_a_closure_may_return_a_float_once_it_calls_backward():
    x = parameter(2)

    def closure():
        loss = (x**2).sum()
        loss.backward()
        return loss.item()

    optim.IPiano([x]).step(closure)
    assert float(x.detach().norm()) < 1.4


# --- parameters that do not influence the loss ----------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_a_parameter_that_is_not_used(make):
    x, unused = parameter(2), parameter(3)

    def closure():
        loss = (x**2).sum()
        loss.backward()
        return loss

    with pytest.raises(NoInfluenceError, match=r"parameter 1 of shape \(3,\)"):
        make([x, unused]).step(closure)


def test_its_name_is_told_where_it_has_one():
    x, unused = parameter(2), parameter(3)

    def closure():
        loss = (x**2).sum()
        loss.backward()
        return loss

    with pytest.raises(NoInfluenceError, match="smoothness of shape"):
        optim.IPiano([("weights", x), ("smoothness", unused)]).step(closure)


@pytest.mark.parametrize("make", MAKERS)
def test_a_loss_that_is_detached(make):
    x, other = parameter(2), parameter(1)

    def closure():
        loss = (x.detach() ** 2).sum() * other.sum()
        loss.backward()
        return loss

    with pytest.raises(NoInfluenceError, match="detached"):
        make([x]).step(closure)


def test_fit_names_the_parameter_without_influence():
    x, unused = parameter(2), parameter(3)
    with pytest.raises(NoInfluenceError, match=r"smoothness of shape \(3,\)"):
        lg_fit(lambda level: (x**2).sum(), {"weights": x, "smoothness": unused})
    with pytest.raises(NoInfluenceError, match=r"weights of shape \(2,\)"):
        lg_fit(lambda level: (x.detach() ** 2).sum(), {"weights": x})


def test_fit_says_where_the_gradient_vanishes_altogether():
    """A penalty above the largest useful one: the solution is 0 whatever it is."""
    theta = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    A = torch.eye(3, dtype=torch.float64)
    b = torch.ones(3, dtype=torch.float64)

    def loss(level):
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(theta))
        return ((level.solve(problem, lg.ForwardBackward()).x - b) ** 2).sum()

    for make in (*MAKERS, lambda p: torch.optim.SGD(p, lr=0.1)):
        with pytest.raises(NoInfluenceError, match="exactly zero at the start"):
            lg_fit(loss, theta, make)


# --- proxes ---------------------------------------------------------------------------------------


def test_a_prox_that_leaves_the_dtype():
    g = lg.L1(torch.tensor([0.1, 0.2], dtype=torch.float64))
    with pytest.raises(ProxError, match=r"dtype .* from torch.float32 to torch.float64"):
        optim.IPiano([parameter(2, dtype=torch.float32)], prox=g)


def test_a_prox_that_leaves_the_shape():
    with pytest.raises(ProxError, match=r"shape .* from \(2,\) to \(3, 2\)"):
        optim.IPiano([parameter(2)], prox=lg.Box(torch.zeros(3, 1), torch.ones(3, 1)))


@dataclass(frozen=True, eq=False)
class Wanderer(lg.Function):
    """A function whose prox ends up on another device, or is no tensor."""

    where: str | None

    def value(self, x):
        return x.new_zeros(())


@lg.register_prox(Wanderer, lg.Euclidean)
def _(g, geometry, y, alpha):
    if g.where == "elsewhere":
        raise RuntimeError("Expected all tensors to be on the same device")
    return y.to(g.where) if g.where else None


def test_a_prox_that_leaves_the_device():
    with pytest.raises(ProxError, match=r"device .* from cpu to meta"):
        optim.IPiano([parameter(2)], prox=Wanderer("meta"))


def test_a_prox_whose_data_live_elsewhere():
    """What torch says of a weight on another device is put into context."""
    with pytest.raises(ProxError, match=r"on cpu: Expected all tensors .* convert them with"):
        optim.IPiano([parameter(2)], prox=Wanderer("elsewhere"))


def test_a_prox_that_returns_no_tensor():
    with pytest.raises(ProxError, match="NoneType"):
        optim.IPiano([parameter(2)], prox=Wanderer(None))


def test_a_prox_that_does_not_exist():
    with pytest.raises(MissingProxError, match="LeastSquares"):
        optim.IPiano([parameter(2)], prox=lg.LeastSquares(torch.eye(2), torch.ones(2)))


def test_a_bad_group_is_not_kept():
    optimizer = optim.IPiano([parameter(2)])
    with pytest.raises(ProxError):
        optimizer.add_param_group({"params": [parameter(1)], "prox": optim.L0()})
    assert len(optimizer.param_groups) == 1


# --- fit ------------------------------------------------------------------------------------------


def lg_fit(loss, params, make=optim.IPiano, steps=3, **options):
    return optim.fit(loss, params, make, steps, **options)


@pytest.mark.parametrize("make", [*MAKERS, lambda p: torch.optim.Adam(p, lr=0.1)])
def test_a_loss_that_is_nan_at_the_start(make):
    x = torch.full((2,), -1.0, requires_grad=True)
    with pytest.raises(NonFiniteLossError, match="At the start the loss is nan"):
        lg_fit(lambda level: torch.log(x).sum(), x, make)
    assert torch.equal(x.detach(), torch.full((2,), -1.0))


def test_a_gradient_that_is_nan_at_the_start():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(NonFiniteLossError, match="gradient of the loss is not finite"):
        lg_fit(lambda level: torch.sqrt(x).sum(), x)


def test_an_error_of_the_lower_level_at_the_start_is_not_hidden():
    x = torch.full((2,), -1.0, requires_grad=True)

    def loss(level):
        return level.solve(
            lg.Composite(lg.LeastSquares(torch.eye(2), torch.ones(2)), lg.L1(x)),
            lg.ForwardBackward(),
        ).x.sum()

    with pytest.raises(InputError, match="must be non-negative"):
        lg_fit(loss, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, f: optim.fit(f, x, optim.IPiano, 0),
        lambda x, f: optim.fit(f, x, optim.IPiano, True),
        lambda x, f: optim.fit(f, [], optim.IPiano, 3),
        lambda x, f: optim.fit(f, [x.detach()], optim.IPiano, 3),
        lambda x, f: optim.fit(f, [2.0], optim.IPiano, 3),
        lambda x, f: optim.fit(f, x, optim.IPiano([parameter(2)]), 3),
        lambda x, f: optim.fit(f, x, lambda p: "Adam", 3),
        lambda x, f: optim.fit(f, x, optim.IPiano, 3, inexact="HOAG"),
        lambda x, f: optim.fit(f, x, torch.optim.SGD, 3, inexact=optim.MAID()),
        lambda x, f: optim.fit(lambda level: x**2, x, optim.IPiano, 3),
        lambda x, f: optim.fit(lambda level: 3.0, x, optim.IPiano, 3),
        lambda x, f: optim.fit(lambda level: None, x, optim.IPiano, 3),
        lambda x, f: optim.HOAG(first=1e-8, last=1e-2),
        lambda x, f: optim.HOAG(decay=1.0),
        lambda x, f: optim.MAID(tighten=1.0),
        lambda x, f: optim.Until(patience=0),
        lambda x, f: optim.Until(gradient=-1.0),
        lambda x, f: optim.Checkpoint("x.pt", every=0),
    ],
)
def test_other_mistakes(call):
    x = parameter(2)
    with pytest.raises(InputError):
        call(x, lambda level: (x**2).sum())
