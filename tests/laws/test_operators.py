"""Laws of linear operators, for every operator in tests/makers.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato._support import tree
from legato.operators.base import Composition, lanczos_norm
from makers import OPERATOR_TYPES, operators, rand, randn

NAMES = list(operators())


def matrix(operator, x):
    """The operator written out, column by column."""
    columns = []
    for i in range(x.numel()):
        e = torch.zeros(x.numel(), dtype=x.dtype)
        e[i] = 1
        columns.append(tree.flatten(operator(e.reshape(x.shape))))
    return torch.stack(columns, dim=1)


def test_every_operator_has_a_maker():
    made = {type(case.operator) for case in operators().values()}
    public = {v for v in vars(lg).values() if isinstance(v, type) and issubclass(v, lg.Operator)}
    assert (public | OPERATOR_TYPES | {Composition}) - {lg.Operator} <= made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_adjoint_identity(name, seed):
    case = operators()[name]
    x = case.point(seed)
    image = case.operator(x)
    y = tree.tree_map(lambda t: randn(*t.shape, seed=seed + 50), image)
    left, right = tree.inner(image, y), tree.inner(x, case.operator.adjoint(y))
    scale = float(tree.norm(image) * tree.norm(y)) or 1.0
    assert abs(float(left - right)) <= 1e-12 * scale


@pytest.mark.parametrize("name", NAMES)
def test_linearity(name):
    case = operators()[name]
    x, z = case.point(0), case.point(1)
    together = tree.flatten(case.operator(2 * x - 3 * z))
    apart = 2 * tree.flatten(case.operator(x)) - 3 * tree.flatten(case.operator(z))
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "Dense, one matrix each"])
def test_norm_bounds_the_true_norm(name):
    case = operators()[name]
    x = case.point(0)
    true = float(torch.linalg.matrix_norm(matrix(case.operator, x), ord=2))
    bound = float(case.operator.norm(x))
    assert bound >= true * (1 - 1e-12)
    assert bound <= case.tight * true * (1 + 1e-9) or case.tight == torch.inf


def test_norm_of_a_batch_of_matrices_is_one_each():
    A = randn(3, 5, 7)
    expected = torch.linalg.matrix_norm(A, ord=2)
    torch.testing.assert_close(lg.Dense(A).norm(), expected, rtol=1e-10, atol=0)


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


def test_dense_norm_follows_changes_of_the_matrix():
    A = torch.eye(3)
    K = lg.Dense(A)
    assert float(K.norm()) == pytest.approx(1.0)
    A.mul_(5)
    assert float(K.norm()) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in ("Dense, large", "Dense, one matrix each")]
)
def test_absolute_bounds_every_entry(name):
    case = operators()[name]
    x = case.point(0)
    entries = matrix(case.operator, x).abs()
    bounds = matrix(case.operator.absolute(), x)
    assert bool((bounds >= entries - 1e-12).all())


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


@pytest.mark.parametrize(
    ("build", "parameter"),
    [
        (lambda p: lg.Dense(p), randn(3, 4)),
        (lambda p: lg.Differences(weights=p), rand(2, 2, 2)),
        (lambda p: lg.Convolution(p), randn(2, 2, 2, 3)),
        (lambda p: lg.Convolution(p, "circular"), randn(2, 2, 2, 2)),
        (lambda p: lg.Convolution(p, "mirror"), randn(2, 2, 2, 2)),
        (lambda p: lg.Diagonal(p), randn(4)),
        (lambda p: p.sum() * lg.Identity(), randn(2)),
    ],
    ids=["Dense", "Differences", "Convolution", "Circular", "Mirror", "Diagonal", "Scaled"],
)
def test_operators_are_differentiable_in_their_parameters(build, parameter):
    shape = {3: (2, 2), 4: (2, 2, 2)}.get(parameter.ndim, (4,))
    x = randn(*shape, seed=1).requires_grad_()
    p = parameter.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, x: build(p)(x), (p, x))
    y = build(parameter)(x).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, y: build(p).adjoint(y), (p, y))


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
