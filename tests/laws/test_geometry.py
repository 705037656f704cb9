"""Laws of Legendre functions, for every geometry in tests/makers.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato._support import tree
from makers import geometries, randn

NAMES = list(geometries())


def close(a, b, tol):
    a, b = tree.flatten(a).detach(), tree.flatten(b).detach()
    return float((a - b).norm()) <= tol * max(1.0, float(b.norm()))


def test_every_geometry_has_a_maker():
    made = {type(case.geometry) for case in geometries().values()}
    public = {v for v in vars(lg).values() if isinstance(v, type) and issubclass(v, lg.Geometry)}
    assert public - {lg.Geometry} <= made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_unmirror_inverts_mirror(name, seed):
    case = geometries()[name]
    x = case.point(seed)
    assert close(case.geometry.unmirror(case.geometry.mirror(x)), x, 1e-10)
    y = case.geometry.mirror(x)
    assert close(case.geometry.mirror(case.geometry.unmirror(y)), y, 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_mirror_is_the_gradient_of_the_value(name):
    case = geometries()[name]
    x = tree.tree_map(lambda t: t.clone().requires_grad_(), case.point(0))
    grads = torch.autograd.grad(case.geometry.value(x), tree.leaves(x))
    assert close(tuple(grads), tuple(tree.leaves(case.geometry.mirror(x))), 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_distance_is_nonnegative_and_zero_only_on_the_diagonal(name):
    case = geometries()[name]
    for seed in range(10):
        x, z = case.point(seed), case.point(seed + 100)
        assert float(case.geometry.distance(x, z)) > 1e-3
        assert abs(float(case.geometry.distance(x, x))) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_distance_is_the_bregman_distance(name):
    case = geometries()[name]
    g, x, z = case.geometry, case.point(0), case.point(1)
    linear = tree.inner(g.mirror(z), tree.tree_map(torch.sub, x, z))
    assert float(g.distance(x, z)) == pytest.approx(
        float(g.value(x) - g.value(z) - linear), rel=1e-10
    )


@pytest.mark.parametrize("name", NAMES)
def test_three_point_identity(name):
    case = geometries()[name]
    g = case.geometry
    x, y, z = (case.point(s) for s in range(3))
    left = g.distance(x, z) - g.distance(x, y) - g.distance(y, z)
    turn = tree.tree_map(torch.sub, g.mirror(y), g.mirror(z))
    right = tree.inner(turn, tree.tree_map(torch.sub, x, y))
    assert float(left) == pytest.approx(float(right), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_and_second_derivatives(name):
    case = geometries()[name]
    g = case.geometry
    shape = case.point(0)
    x = [t.clone().requires_grad_() for t in tree.leaves(case.point(0))]
    y = [t.detach().clone().requires_grad_() for t in tree.leaves(g.mirror(case.point(0)))]

    def mirror(*ts):
        return tuple(tree.leaves(g.mirror(tree.rebuild(shape, ts))))

    def unmirror(*ts):
        return tuple(tree.leaves(g.unmirror(tree.rebuild(shape, ts))))

    assert torch.autograd.gradcheck(mirror, x)
    assert torch.autograd.gradcheck(unmirror, y)
    assert torch.autograd.gradgradcheck(unmirror, y)


def test_interval_and_polyhedral_are_differentiable_in_their_parameters():
    y = randn(3, 4, seed=5)
    lo = (-1 - torch.arange(4).double() / 4).requires_grad_()
    hi = (1 + torch.arange(4).double() / 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: lg.Interval(a, b).unmirror(y), (lo, hi))
    made = geometries()["Polyhedral"].geometry
    A, b = made.A.clone().requires_grad_(), made.b.clone().requires_grad_()
    y2 = randn(3, 2, seed=6)
    assert torch.autograd.gradcheck(lambda A, b: lg.Polyhedral(A, b).unmirror(y2), (A, b))
    assert torch.autograd.gradgradcheck(lambda A, b: lg.Polyhedral(A, b).unmirror(y2), (A, b))


@pytest.mark.parametrize("name", NAMES)
def test_metric_inverse_metric_and_transport_agree(name):
    case = geometries()[name]
    g = case.geometry
    y1, y2 = g.mirror(case.point(0)), g.mirror(case.point(1))
    v = tree.tree_map(lambda t: randn(*t.shape, seed=9), y1)
    assert close(g.inverse_metric(y1, g.metric(y1, v)), v, 1e-9)
    assert close(g.transport(y1, y2, v), g.metric(y2, g.inverse_metric(y1, v)), 1e-9)
    h = 1e-6
    shifted = [tree.tree_map(lambda t, d, s=s: t + s * h * d, y1, v) for s in (1, -1)]
    plus, minus = (g.unmirror(t) for t in shifted)
    slope = tree.tree_map(lambda p, m: (p - m) / (2 * h), plus, minus)
    assert close(g.metric(y1, v), slope, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_centre_is_interior(name, dtype):
    case = geometries(dtype)[name]
    centre = case.geometry.unmirror(case.geometry.centre(case.point(0)))
    assert bool(case.geometry.interior(centre).all())


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_no_nan_or_inf_for_any_finite_mirror_variable(name, data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    case = geometries(dtype)[name]
    lo, hi = case.mirror_range
    numbers = st.floats(lo, hi, width=32 if dtype == torch.float32 else 64)

    def draw(like):
        size = like.shape[-1]
        entries = data.draw(st.lists(numbers, min_size=size, max_size=size))
        return torch.tensor(entries, dtype=dtype).expand(like.shape).clone().requires_grad_()

    y = tree.tree_map(draw, case.point(0))
    x = tree.flatten(case.geometry.unmirror(y))
    grads = torch.autograd.grad(x.sum(), tree.leaves(y))
    assert bool(torch.isfinite(x).all())
    assert all(bool(torch.isfinite(g).all()) for g in grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transport_survives_underflow(dtype):
    before = torch.full((3,), -1e4, dtype=dtype)
    after = before - torch.tensor([0.5, 0.0, -0.25], dtype=dtype)
    v = torch.ones(3, dtype=dtype)
    assert float(lg.Entropy().unmirror(before).max()) == 0.0
    torch.testing.assert_close(lg.Entropy().transport(before, after, v), torch.exp(after - before))
    moved = lg.Interval(-1.0, 1.0).transport(before, after, v)
    torch.testing.assert_close(moved, torch.exp(2 * (after - before)))


def test_burg_reports_mirror_variables_that_belong_to_no_point():
    y = torch.tensor([-1.0, 0.0, 2.0])
    assert lg.Burg().mirror_interior(y).tolist() == [True, False, False]
    assert bool(torch.isfinite(lg.Burg().unmirror(y)).all())
