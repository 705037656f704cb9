"""A prox has one derivative, whichever mode asks for it: reverse, forward, inside vmap."""

from __future__ import annotations

import pytest
import torch
from torch.func import jacfwd, jacrev, jvp, vmap

import legato as lg

PROXES = {
    "simplex, few": (lg.Simplex(), torch.tensor([0.3, 0.2, 0.1])),
    "simplex, many": (lg.Simplex(), torch.tensor([0.9, 0.2, 0.1, -0.3, 0.5, 0.7])),
    "simplex, on its face": (lg.Simplex(), torch.tensor([2.0, 0.2, 1.9, -3.0])),
    "ball": (lg.L2Ball(1.0), torch.tensor([2.0, 1.0])),
    "box": (lg.Box(-1.0, 1.0), torch.tensor([2.0, 0.5])),
    "ℓ1": (lg.L1(0.4), torch.tensor([2.0, 0.1, -0.9])),
    "groups": (lg.GroupL1(0.4), torch.tensor([2.0, 0.1, -0.9])),
    "non-negative": (lg.NonNegative(), torch.tensor([2.0, -0.1])),
}


@pytest.mark.parametrize("name", PROXES)
def test_all_modes_agree(name):
    g, y = PROXES[name]
    y = y.double()

    def prox(t):
        return lg.prox(g, lg.Euclidean(), t, 0.7)

    expected = torch.autograd.functional.jacobian(prox, y)
    torch.testing.assert_close(jacrev(prox)(y), expected)
    torch.testing.assert_close(jacfwd(prox)(y), expected)
    _, tangent = jvp(prox, (y,), (torch.ones_like(y),))
    torch.testing.assert_close(tangent, expected.sum(1))
    with torch.no_grad():
        _, tangent = jvp(prox, (y,), (torch.ones_like(y),))
    torch.testing.assert_close(tangent, expected.sum(1))
    leaf = y.clone().requires_grad_()
    (both,) = torch.autograd.grad(vmap(prox)(leaf.repeat(2, 1)).sum(0)[0], leaf)
    torch.testing.assert_close(both, 2 * expected[0])


@pytest.mark.parametrize("name", PROXES)
def test_recorded_or_not_the_value_is_the_same(name):
    g, y = PROXES[name]
    recorded = lg.prox(g, lg.Euclidean(), y.clone().requires_grad_(), 0.7)
    torch.testing.assert_close(lg.prox(g, lg.Euclidean(), y, 0.7), recorded.detach())


@pytest.mark.parametrize("size", [1e-15, 1e-8, 1e8, 1e15])
@pytest.mark.parametrize("make", [lg.GroupL1, lg.L2Ball])
def test_groups_in_the_whole_range_of_float32(make, size):
    y = torch.tensor([3.0, 4.0])
    expected = lg.prox(make(2.0), lg.Euclidean(), y, 1.0)
    found = lg.prox(make(2.0 * size), lg.Euclidean(), size * y, 1.0)
    torch.testing.assert_close(found, size * expected, rtol=1e-5, atol=0)
