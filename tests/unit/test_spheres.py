"""Projections onto spheres against all directions, ties, and what they are good for."""

import pytest
import torch

import legato as lg
from draws import crandn, rand, randn
from legato.functions import L1Sphere, L2Sphere

POINTS = torch.cat((randn(6, 3, seed=1), 0.1 * randn(6, 3, seed=2), torch.eye(3).double()))


@pytest.mark.parametrize("make", [L1Sphere, L2Sphere])
@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_no_point_of_the_sphere_is_nearer(make, radius):
    """Of 40 000 directions, scaled to the sphere, for points inside and outside."""
    g = make(radius)
    order = 1 if make is L1Sphere else 2
    rays = randn(40000, 3, seed=3)
    rays[::2] *= (rand(20000, 3, seed=4) < 0.5).double()  # edges of the polytope, too
    rays = rays[rays.abs().sum(-1) > 0]
    rays = radius * rays / torch.linalg.vector_norm(rays, ord=order, dim=-1, keepdim=True)
    x = g.prox(POINTS)
    torch.testing.assert_close(
        torch.linalg.vector_norm(x, ord=order, dim=-1), torch.full((15,), radius).double()
    )
    assert float(g(x)) == 0
    assert float(g(x + 0.01)) == torch.inf
    for y, near in zip(POINTS, x, strict=True):
        assert float((near - y).norm()) <= float((rays - y).norm(dim=-1).min()) + 1e-9
        torch.testing.assert_close(g.prox(y), near)


@pytest.mark.parametrize("make", [L1Sphere, L2Sphere])
def test_zero_nan_and_a_radius_for_each_row(make):
    assert make(2.0).norms(make(2.0).prox(torch.zeros(4))).tolist() == [2.0]
    y = torch.tensor([[torch.nan, 1.0], [3.0, 4.0]])
    found = make(torch.tensor([[1.0], [5.0]])).prox(y)
    assert found[0].isnan().any()
    assert float(make(1.0).norms(found / 5)[1]) == pytest.approx(1.0)
    turned = make(torch.tensor([[1.0, 5.0]]), dim=0).prox(y.mT)
    torch.testing.assert_close(turned.mT, found, equal_nan=True)


def test_slopes_in_the_point_and_in_the_radius():
    y, radius = randn(4, 3, seed=5).requires_grad_(), (0.5 + rand(4, 1, seed=6)).requires_grad_()
    for make in (L1Sphere, L2Sphere):
        assert torch.autograd.gradcheck(lambda t, r, make=make: make(r).prox(t), (y, radius))
    z = crandn(4, 3, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(L2Sphere(0.7).prox, (z,))


def test_a_leading_eigenvector_and_its_derivative():
    """min −½⟨x, Qx⟩ on the sphere: the top eigenvector, held against torch's and differences."""
    Q = randn(5, 5, seed=8)
    Q = Q @ Q.T
    shift = 1.1 * float(torch.linalg.matrix_norm(Q, 2))
    start, stop = torch.ones(5).double(), lg.Stop(20000, tol=1e-14)

    top = torch.linalg.eigh(Q + 0.2 * torch.diag(torch.diag(Q))).eigenvectors[:, -1]
    scale = torch.tensor(0.2).double()

    def matrix(s):
        return lg.Quadratic(
            shift * torch.eye(5).double() - Q - s * torch.diag(torch.diag(Q)), 0 * start
        )

    def solved(s, gradient=None):
        problem, rule = lg.Composite(matrix(s), L2Sphere()), lg.ForwardBackward(0.5 / shift)
        return lg.solve(problem, rule, start, gradient=gradient, stop=stop).x

    x = solved(scale)
    torch.testing.assert_close(x * torch.sign(x @ top), top, atol=1e-6, rtol=0)
    h = 1e-5
    expected = float((solved(scale + h)[0] - solved(scale - h)[0]) / (2 * h))
    for gradient in (lg.Implicit(), lg.Implicit(lg.CG()), lg.Unroll()):
        learned = scale.clone().requires_grad_()
        (slope,) = torch.autograd.grad(solved(learned, gradient)[0], learned)
        assert float(slope) == pytest.approx(expected, rel=1e-4)
