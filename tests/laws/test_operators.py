"""Laws of linear operators, for every operator in tests/makers.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato._support import tree
from legato.operators.base import Composition, lanczos_norm
from legato.testing import check_operator
from makers import OPERATOR_TYPES, complex_operators, operators, randn

NAMES = list(operators())


def test_every_operator_has_a_maker():
    both = (*operators().values(), *complex_operators().values())
    made = {type(case.operator) for case in both}
    public = {v for v in vars(lg).values() if isinstance(v, type) and issubclass(v, lg.Operator)}
    assert (public | OPERATOR_TYPES | {Composition}) - {lg.Operator} <= made


@pytest.mark.parametrize("name", NAMES)
def test_laws(name):
    case = operators()[name]
    report = check_operator(case.operator, case.point(0))
    assert report["norm over true norm"] <= case.tight * (1 + 1e-9)


def test_lanczos_bounds_an_operator_that_does_not_know_its_norm():
    class Mystery(lg.Operator):
        def __init__(self, A):
            self.A = A

        def __call__(self, x):
            return x @ self.A.T

        def adjoint(self, y):
            return y @ self.A

    for seed in range(5):
        A = randn(60, 90, seed=seed) * torch.logspace(-3, 0, 90).double()
        true = float(torch.linalg.matrix_norm(A, ord=2))
        estimate = float(Mystery(A).norm(like=torch.zeros(90).double()))
        assert true <= estimate <= 1.0101 * true
    with pytest.raises(lg.errors.InputError, match="example input"):
        Mystery(A).norm()


def test_gradient_is_the_papers():
    u = randn(4, 5)
    d = lg.Differences()(u)
    assert d.shape == (2, 4, 5)
    torch.testing.assert_close(d[0, :-1], u[1:] - u[:-1])
    torch.testing.assert_close(d[1, :, :-1], u[:, 1:] - u[:, :-1])
    assert float(d[0, -1].abs().max()) == 0.0
    assert float(d[1, :, -1].abs().max()) == 0.0


def test_differences_look_where_their_offsets_point():
    u = randn(4, 5)
    d = lg.Differences(offsets=((1, 1), (1, -1)))(u)
    torch.testing.assert_close(d[0, :-1, :-1], u[1:, 1:] - u[:-1, :-1])
    torch.testing.assert_close(d[1, :-1, 1:], u[1:, :-1] - u[:-1, 1:])
    assert float(d[0, -1].abs().max()) == float(d[0, :, -1].abs().max()) == 0.0
    assert float(d[1, -1].abs().max()) == float(d[1, :, 0].abs().max()) == 0.0


@given(
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    batch=st.lists(st.integers(1, 3), max_size=2),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gradient_and_convolution_of_any_shape_and_scale(height, width, batch, scale, dtype):
    x = randn(*batch, 1, height, width, dtype=dtype) * scale
    for K in (lg.Differences(), lg.Convolution(randn(2, 1, 3, 2, dtype=dtype))):
        image = K(x)
        y = randn(*image.shape, seed=1, dtype=dtype)
        left, right = (
            (image.double() * y.double()).sum(),
            (x.double() * K.adjoint(y).double()).sum(),
        )
        tolerance = 100 * torch.finfo(dtype).eps * scale * image.numel()
        assert image.dtype == dtype
        assert abs(float(left - right)) <= tolerance


@given(
    name=st.sampled_from(NAMES),
    scale=st.sampled_from([1e-30, 1e-8, 1.0, 1e8, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_extreme_scales_through_every_operator(name, scale, dtype):
    case = operators(dtype)[name]
    image = tree.flatten(case.operator(scale * case.point(0)))
    unit = tree.flatten(case.operator(case.point(0)))
    assert image.dtype == dtype
    torch.testing.assert_close(
        image / scale, unit, rtol=1e-4, atol=1e-4 * float(unit.abs().max()) + 1e-30
    )


@pytest.mark.parametrize("size", [1e-15, 1e-8, 1e8, 1e15])
def test_norms_scale_in_the_whole_range_of_float32(size):
    A = randn(9, 4, seed=1).float()
    true = size * float(torch.linalg.matrix_norm(A, ord=2))
    like = torch.zeros(4)
    assert float(lanczos_norm(lg.Dense(size * A), like)) == pytest.approx(true, rel=0.02, abs=0)
    stack = lg.Stack(lg.Dense(size * A), lg.Dense(size * A))
    assert float(stack.norm(like)) == pytest.approx(2**0.5 * true, rel=1e-4, abs=0)
