"""Mistakes that everybody makes once: each ends with an error that says what to do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import (
    ClosureError,
    MissingProxError,
    NoInfluenceError,
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
        optim.HeavyBall([parameter(2)], lr=0.1).step()


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
    with pytest.raises(MissingProxError, match="Logistic"):
        optim.IPiano([parameter(2)], prox=lg.Logistic(torch.eye(2), torch.ones(2)))


def test_a_bad_group_is_not_kept():
    optimizer = optim.IPiano([parameter(2)])
    with pytest.raises(ProxError):
        optimizer.add_param_group({"params": [parameter(1)], "prox": lg.functions.L0()})
    assert len(optimizer.param_groups) == 1
