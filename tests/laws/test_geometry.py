"""Laws of Legendre functions, for every geometry in tests/makers.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato._support import tree
from legato.testing import check_geometry
from makers import geometries, randn

NAMES = list(geometries())


def test_every_geometry_has_a_maker():
    made = {type(case.geometry) for case in geometries().values()}
    public = {v for v in vars(lg).values() if isinstance(v, type) and issubclass(v, lg.Geometry)}
    assert public - {lg.Geometry} <= made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_laws(name, seed):
    case = geometries()[name]
    check_geometry(case.geometry, case.point(seed), seed)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    case = geometries()[name]
    y = case.geometry.mirror(case.point(0))
    leaves = [t.detach().clone().requires_grad_() for t in tree.leaves(y)]

    def unmirror(*ts):
        return tuple(tree.leaves(case.geometry.unmirror(tree.rebuild(y, ts))))

    assert torch.autograd.gradgradcheck(unmirror, leaves)


def test_second_derivatives_in_the_parameters_of_a_polyhedron():
    made = geometries()["Polyhedral"].geometry
    A, b = made.A.clone().requires_grad_(), made.b.clone().requires_grad_()
    y = randn(3, 2, seed=6)
    assert torch.autograd.gradgradcheck(lambda A, b: lg.Polyhedral(A, b).unmirror(y), (A, b))


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


def test_an_entry_at_the_boundary_leaves_the_others_of_a_separable_geometry_alone():
    """ψ″ = 1/x² is 4 at x = 1/2, whatever is lost at x = 10⁻²⁰⁰."""
    y, v = torch.tensor([-2.0, -1e200]).double(), torch.tensor([3.0, 1.0]).double()
    torch.testing.assert_close(lg.Burg().inverse_metric(y, v), torch.tensor([12.0, 0.0]).double())
