"""Soft maxima with a norm, against a solver of cones and a law that normmax has alone."""

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from draws import randn
from legato.errors import InputError
from legato.testing import check_function


@pytest.mark.filterwarnings("ignore:Power atom")
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("size", [0.1, 1.0])
def test_the_value_and_its_maximiser_are_cvxpys(alpha, size):
    x = size * randn(6, seed=2)
    p = cp.Variable(6)
    objective = cp.Maximize(x.numpy() @ p - cp.pnorm(p, alpha))
    problem = cp.Problem(objective, [p >= 0, cp.sum(p) == 1])
    problem.solve(solver=cp.CLARABEL)
    f = lg.NormMaximum(alpha)
    assert float(f(x)) == pytest.approx(problem.value, abs=1e-6)
    np.testing.assert_allclose(f.grad(x).numpy(), p.value, atol=2e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.7, 2.0, 4.0])
def test_no_other_point_of_the_simplex_is_better(alpha):
    """⟨p, x⟩ − ‖p‖_α of 20 000 random points, near and far, is smaller."""
    x = torch.tensor([0.3, 0.1, -0.4, 0.25]).double()
    f = lg.NormMaximum(alpha)
    best = f.grad(x)
    near = best + 0.02 * randn(10000, 4, seed=3)
    near = near.clamp(min=0) / near.clamp(min=0).sum(-1, keepdim=True)
    points = torch.cat((torch.softmax(4 * randn(10000, 4, seed=4), -1), near))
    values = points @ x - (points**alpha).sum(-1) ** (1 / alpha)
    assert float(values.max()) <= float(f(x)) + 1e-12
    torch.testing.assert_close(f(x), best @ x - (best**alpha).sum() ** (1 / alpha))


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 2.6])
def test_slopes_in_the_point_and_in_alpha(alpha):
    x = randn(2, 5, seed=3).requires_grad_()
    learned = torch.tensor([[alpha], [1.3]], dtype=torch.float64).requires_grad_()
    for use in (lambda t, a: lg.NormMaximum(a).grad(t), lambda t, a: lg.NormMaximum(a)(t)):
        assert torch.autograd.gradcheck(use, (x, learned))
        assert torch.autograd.gradgradcheck(use, (x, learned))
    (slope,) = torch.autograd.grad(lg.NormMaximum(alpha)(x), x)
    torch.testing.assert_close(slope, lg.NormMaximum(alpha).grad(x).detach())


@pytest.mark.parametrize("alpha", [1.4, 2.0, 3.0])
def test_laws(alpha):
    report = check_function(lg.NormMaximum(alpha), randn(3, 4, seed=4))
    assert report["gradient"] is not None
    assert report["Fenchel–Young"] is not None
    p = lg.NormMaximum(alpha).grad(randn(3, 4, seed=5))
    check_function(lg.SimplexNorm(alpha), p)
    assert lg.SimplexNorm(alpha)(p + 0.1) == torch.inf
    assert lg.SimplexNorm(alpha).conjugate().conjugate().__class__ is lg.SimplexNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1.04, 1.5, 2.0, 5.0, 32.0])
def test_equal_entries_share_and_corners_are_corners(alpha, dtype):
    """n entries that are equal, and lead by 1 or more, get 1/n; others 0, at the tie too."""
    f = lg.NormMaximum(alpha)
    for n in (1, 2, 3, 7, 1000):
        x = torch.full((n + 2,), 2.0, dtype=dtype)
        x[n:] = torch.tensor([2.0 - n ** (1 / alpha - 1), -3.0], dtype=dtype)
        expected = torch.full_like(x, 1 / n)
        expected[n:] = 0
        x[n] -= 4 * torch.finfo(dtype).eps * (n > 1)
        torch.testing.assert_close(f.grad(x), expected)
        torch.testing.assert_close(f(x), (2 - (x[0] * 0 + n) ** (1 / alpha - 1)))


def test_inside_transforms_in_single_precision_and_along_another_axis():
    x = randn(4, 3, seed=6)
    f = lg.NormMaximum(1.5, dim=0)
    torch.testing.assert_close(f.grad(x).sum(0), torch.ones(3).double())
    torch.testing.assert_close(lg.NormMaximum(1.5).grad(x.mT), f.grad(x).mT)
    expected = lg.NormMaximum(1.5).grad(x)
    torch.testing.assert_close(torch.func.vmap(lg.NormMaximum(1.5).grad)(x), expected)
    forward = torch.func.jacfwd(lg.NormMaximum(1.5).grad)(x[0])
    torch.testing.assert_close(forward, torch.func.jacrev(lg.NormMaximum(1.5).grad)(x[0]))
    single = lg.NormMaximum(1.5).grad(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(lg.NormMaximum(1.5).grad(1e4 + x), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("alpha", [1.25, 2.0, 2.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_of_minus_infinity_are_left_out(alpha, dtype):
    x = torch.cat((randn(2, 3, seed=10), torch.full((2, 2), -torch.inf)), -1).to(dtype)
    x.requires_grad_()
    f = lg.NormMaximum(alpha)
    torch.testing.assert_close(f(x), f(x[:, :3]))
    assert not f.grad(x)[:, 3:].any()
    (slope,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(slope, f.grad(x).detach())


@pytest.mark.parametrize("alpha", [1.2, 1.6, 2.0])
def test_the_constant_that_its_docstring_names(alpha):
    """No Jacobian of 500 random points is larger than n/(α − 1)."""
    x = torch.linspace(-3, 0, 500).exp().double()[:, None] * randn(500, 4, seed=12)
    J = torch.func.vmap(torch.func.jacrev(lg.NormMaximum(alpha).grad))(x)
    largest = float(torch.linalg.matrix_norm(J, 2).max())
    assert 0.1 * 4 / (alpha - 1) < largest <= 4 / (alpha - 1) + 1e-9


def test_nan_stays_in_its_row():
    x = torch.tensor([[torch.nan, 1.0, 2.0], [0.0, 1.0, 2.0]]).double()
    assert lg.NormMaximum(1.5).grad(x).isnan().all(-1).tolist() == [True, False]
    assert lg.NormMaximum(1.5).values(x, 1).isnan().tolist() == [True, False]


def test_a_regression_with_a_sparse_loss_is_solved():
    """min Σ f(Ax) − ⟨q, Ax⟩ + ridge, whose gradient vanishes at the solution."""
    A, q = randn(3, 2, seed=7), torch.tensor([0.7, 0.3, 0.0]).double()
    energy = lg.NormMaximum(1.5) @ A + lg.Linear(-A.T @ q) + lg.SquaredNorm(0.1)
    x = lg.solve(energy, stop=lg.Stop(5000, tol=1e-13)).x
    rest = A.T @ (lg.NormMaximum(1.5).grad(A @ x) - q) + 0.1 * x
    assert float(rest.abs().max()) < 1e-8


@pytest.mark.parametrize("alpha", [1.0, 0.5, 33.0, torch.inf, torch.nan])
def test_other_alphas_are_refused(alpha):
    for make in (lg.NormMaximum, lambda a: lg.SimplexNorm(torch.tensor(a))):
        with pytest.raises(InputError, match="larger than 1"):
            make(alpha)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="alpha has shape"):
        lg.NormMaximum(torch.full((2,), 1.5)).grad(torch.zeros(3, 4))
    with pytest.raises(InputError, match="needs an axis"):
        lg.NormMaximum(1.5)(torch.tensor(1.0))
    with pytest.raises(InputError, match="complex"):
        lg.NormMaximum(1.5)(torch.zeros(3, dtype=torch.complex128))
