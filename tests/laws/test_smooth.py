"""Laws of smooth functions: gradient, Lipschitz constant, convexity, extreme values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import legato as lg
from legato.functions import LogBarrier, SmoothAbsolute
from legato.testing import check_function
from makers import rand, randn


def functions(dtype=torch.float64):
    """Smooth functions of vectors of length 5; the barriers live on (−2, 2)."""
    A, b = randn(7, 5, seed=1, dtype=dtype), randn(7, seed=2, dtype=dtype)
    labels = torch.sign(b)
    weights = rand(7, seed=3, dtype=dtype)
    return {
        "LeastSquares": lg.LeastSquares(A, b),
        "LeastSquares, weighted": lg.LeastSquares(A, b, weights),
        "LeastSquares of an operator": lg.LeastSquares(lg.Diagonal(A[0]), b[:5]),
        "LeastSquares, scaled": lg.LeastSquares(A, b, 0.6),
        "Quadratic": lg.Quadratic(A.T @ A, b[:5]),
        "Quadratic of an operator": lg.Quadratic(lg.Diagonal(rand(5, seed=6, dtype=dtype)), b[:5]),
        "Logistic": lg.Logistic(A, labels),
        "Logistic of an operator": lg.Logistic(lg.Diagonal(A[0]), labels[:5]),
        "Smooth": lg.Smooth(lambda x: torch.logsumexp(A @ x, 0), constant=float(A.norm() ** 2)),
        "Linear": lg.Linear(b[:5]),
        "SquaredNorm": lg.SquaredNorm(0.7),
        "SquaredNorm, one weight": lg.SquaredNorm(rand(1, seed=5, dtype=dtype)),
        "SquaredNorm, weighted": lg.SquaredNorm(rand(5, seed=5, dtype=dtype)),
        "Zero": lg.Zero(),
        "Sum": lg.LeastSquares(A, b) + lg.SquaredNorm(0.3) + lg.Linear(b[:5]),
        "LogBarrier": LogBarrier(0.1, -2.0, 2.0),
        "SoftMaximum": lg.SoftMaximum(1.0),
        "SoftMaximum, between": lg.SoftMaximum(1.3),
        "NormMaximum": lg.NormMaximum(1.8),
        "Huber": lg.Huber(rand(5, seed=7, dtype=dtype), 0.8),
        "SmoothAbsolute": SmoothAbsolute(0.5, 0.1),
        "L1 of two slopes, smoothed": lg.AsymmetricL1(-0.5, 2.0).smoothed(0.1),
        "GroupL1, smoothed": lg.GroupL1(0.5).smoothed(0.1),
    }


NAMES = list(functions())


def points(seed):
    return 2 * rand(5, seed=seed) - 1, 2 * rand(5, seed=seed + 100) - 1


@pytest.mark.parametrize("name", NAMES)
def test_laws(name):
    report = check_function(functions()[name], points(0)[0])
    assert report["gradient"] is not None
    assert (report["batch = elements"] is None) == (name == "Smooth")


@pytest.mark.parametrize("name", NAMES)
def test_hessian_is_the_derivative_of_grad(name):
    f = functions()[name]
    for x in (torch.zeros(5).double(), points(1)[0]):
        assert not f.hessian(x).requires_grad
        expected = torch.autograd.functional.jacobian(f.grad, x)
        torch.testing.assert_close(f.hessian(x), expected, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(f.hessian(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "Smooth"])
def test_hessians_of_a_batch_are_those_of_its_elements(name):
    f = functions()[name]
    x = 2 * rand(2, 3, 5, seed=4) - 1
    each = torch.stack([torch.stack([f.hessian(row) for row in rows]) for rows in x])
    torch.testing.assert_close(f.hessian(x).expand(2, 3, 5, 5), each, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_hessian_can_be_differentiated(name):
    f = functions()[name]
    x = points(2)[0].requires_grad_()
    H = f.hessian(x)
    if H.requires_grad:
        (found,) = torch.autograd.grad(H.sum(), x)
        ahead, behind = x.detach() + 1e-5, x.detach() - 1e-5
        slope = (f.hessian(ahead).sum() - f.hessian(behind).sum()) / 2e-5
        assert float(found.sum()) == pytest.approx(float(slope), rel=1e-6, abs=1e-8)
    else:  # a quadratic
        torch.testing.assert_close(H, f.hessian(x.detach() + 1))


@pytest.mark.parametrize("name", NAMES)
def test_hessian_inside_functional_transforms(name):
    f = functions()[name]
    x = points(3)[0]
    weights = randn(5, 5, seed=7)
    outside = x.clone().requires_grad_()
    H = f.hessian(outside)
    expected = torch.zeros(5).double()
    if H.requires_grad:
        (expected,) = torch.autograd.grad((weights * H).sum(), outside)
    found = torch.func.grad(lambda z: (weights * f.hessian(z)).sum() + 0 * z.sum())(x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_lipschitz_constants_are_tight_where_they_are_exact():
    for name in ("LeastSquares", "Quadratic", "SquaredNorm"):
        f = functions()[name]
        H = torch.autograd.functional.jacobian(f.grad, torch.zeros(5).double())
        largest = float(torch.linalg.eigvalsh((H + H.T) / 2)[-1])
        assert float(f.lipschitz()) == pytest.approx(largest, rel=1e-9)


def test_where_no_lipschitz_constant_is_known():
    """Of barriers, of callables, and where it grows with the number of entries."""
    unknown = {name for name, f in functions().items() if f.lipschitz() is None}
    assert unknown == {"LogBarrier", "NormMaximum"}
    assert lg.Smooth(torch.sin).lipschitz() is None
    assert (lg.Smooth(torch.sin) + lg.SquaredNorm()).lipschitz() is None


@given(
    name=st.sampled_from([n for n in NAMES if n != "LogBarrier"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    scale=st.sampled_from([1e-30, 1e-10, 1.0, 1e8, 1e15]),
    batch=st.lists(st.integers(1, 3), max_size=2),
)
def test_extreme_values_and_batches(name, dtype, scale, batch):
    f = functions(dtype)[name]
    if name == "Smooth":
        batch = []  # the callable decides what it accepts
    x = scale * randn(*batch, 5, seed=4, dtype=dtype)
    value, grad = f.value(x), f.grad(x)
    assert value.dtype == grad.dtype == dtype
    assert grad.shape == x.shape
    assert bool(torch.isfinite(grad).all())
    if scale <= 1e8:
        assert bool(torch.isfinite(value))


def test_the_constant_of_a_sum_is_the_largest_curvature():
    A = randn(7, 4, seed=1)
    total = lg.LeastSquares(A, randn(7, seed=2)) + lg.SquaredNorm(0.3)
    curvature = torch.linalg.eigvalsh(A.T @ A + 0.3 * torch.eye(4).double())
    assert float(total.lipschitz()) == pytest.approx(float(curvature[-1]), rel=1e-6)
