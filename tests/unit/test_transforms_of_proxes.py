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
    "Huber": (lg.Huber(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "Quantile": (lg.Quantile(0.7), torch.tensor([2.0, 0.1, -0.9])),
    "Hinge": (lg.Hinge(torch.tensor([1.0, -1.0]).double()), torch.tensor([2.0, 0.1])),
    "counts": (lg.KullbackLeibler(torch.tensor([1.0, 0.0]).double()), torch.tensor([0.3, -0.1])),
    "norm": (lg.L2Norm(0.4), torch.tensor([2.0, 0.1, -0.9])),
    "largest": (lg.MaxEntry(2.0), torch.tensor([2.0, 0.1, 1.9])),
    "largest size": (lg.LInfNorm(2.0), torch.tensor([2.0, 0.1, -1.9])),
    "ℓ1 ball": (lg.L1Ball(2.0), torch.tensor([2.0, 0.1, -1.9])),
    "singular values": (lg.Nuclear(0.5), torch.tensor([[2.0, 0.1], [0.3, 0.2], [-0.5, 0.1]])),
    "equal singular values": (lg.Nuclear(0.5), torch.eye(3)[:, :2]),
    "spectral ball": (lg.SpectralBall(0.7), torch.tensor([[2.0, 0.1, 0.4], [0.3, 0.9, -0.5]])),
    "sorted": (lg.SortedL1(torch.tensor([1.0, 0.5, 0.0])), torch.tensor([2.0, 1.9, -3.0])),
    "sparse groups": (lg.SparseGroupL1(0.3, 0.4), torch.tensor([2.0, 0.1, -0.9])),
    "second-order cone": (lg.SecondOrderCone(), torch.tensor([0.3, 0.1, -0.9, 3.0])),
    "semidefinite": (lg.PositiveSemidefinite(), torch.tensor([[1.0, 2.0], [0.5, -1.0]])),
    "half-space": (
        lg.Halfspaces(torch.tensor([1.0, -1.0]), 0.3),
        torch.tensor([1.0, -0.9]),
    ),
    "monotone": (lg.Monotone(), torch.tensor([2.0, 0.1, -0.9, 3.0])),
    "total variation": (lg.TotalVariation1D(0.6), torch.tensor([2.0, 0.1, -0.9, 3.0])),
    "MCP": (lg.functions.MCP(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "SCAD": (lg.functions.SCAD(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "log-sum": (lg.functions.LogSum(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "exponential": (lg.functions.ExponentialType(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "Geman": (lg.functions.Geman(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "truncated": (lg.functions.TruncatedQuadratic(0.5, 0.6), torch.tensor([2.0, 0.1, -0.9])),
    "sphere": (lg.functions.L2Sphere(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "ℓ1 sphere": (lg.functions.L1Sphere(0.5), torch.tensor([2.0, 0.1, -0.9])),
    "k-support": (lg.functions.KSupport(2), torch.tensor([2.0, 1.9, -0.9, 0.1])),
    "envelope of a limit": (lg.functions.L0BallEnvelope(2), torch.tensor([2.0, 1.9, -1.8, 0.1])),
    "concave of singular values": (
        lg.functions.OfSingularValues(lg.functions.MCP(0.5)),
        torch.tensor([[2.0, 0.1], [0.3, 0.2], [-0.5, 0.1]]),
    ),
    "weighted singular values": (
        lg.functions.WeightedNuclear(torch.tensor([0.1, 0.5]).double()),
        torch.tensor([[2.0, 0.1], [0.3, 0.9], [-0.5, 0.1]]),
    ),
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
    torch.testing.assert_close(tangent, _along_ones(expected, y))
    with torch.no_grad():
        _, tangent = jvp(prox, (y,), (torch.ones_like(y),))
    torch.testing.assert_close(tangent, _along_ones(expected, y))
    leaf = y.clone().requires_grad_()
    twice = torch.stack([leaf, leaf])
    (both,) = torch.autograd.grad(vmap(prox)(twice).sum(0).flatten()[0], leaf)
    torch.testing.assert_close(both, 2 * expected.reshape(-1, *y.shape)[0])


def _along_ones(jacobian, y):
    return jacobian.sum(tuple(range(-y.ndim, 0)))


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
