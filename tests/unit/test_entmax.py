"""Soft maxima between softmax and sparsemax, against closed forms and a solver of cones."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import legato as lg
from draws import randn
from legato.errors import InputError
from legato.functions.entmax import entmax
from legato.testing import check_function


def test_the_ends_are_softmax_and_sparsemax():
    x = 2 * randn(5, 7, seed=1)
    torch.testing.assert_close(lg.SoftMaximum(1.0).grad(x), torch.softmax(x, -1))
    torch.testing.assert_close(lg.SoftMaximum(2.0).grad(x), lg.Simplex().prox(x))
    near = lg.SoftMaximum(1.001).grad(x)
    torch.testing.assert_close(near, torch.softmax(x, -1), atol=3e-3, rtol=0)


def exact(x):
    """1.5-entmax by sorting: τ from a quadratic equation in each possible support."""
    ordered = np.sort(x)[::-1] / 2
    for k in range(len(x), 0, -1):
        mean, spread = ordered[:k].mean(), ((ordered[:k] - ordered[:k].mean()) ** 2).sum()
        if spread > 1:
            continue
        tau = mean - np.sqrt((1 - spread) / k)
        if tau <= ordered[k - 1]:
            return np.maximum(x / 2 - tau, 0) ** 2
    raise AssertionError("no support fits")


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0, 50.0])
def test_halfway_is_the_closed_form(size):
    for seed in range(5):
        x = size * randn(9, seed=seed)
        np.testing.assert_allclose(lg.SoftMaximum(1.5).grad(x).numpy(), exact(x.numpy()), atol=1e-9)


@pytest.mark.filterwarnings("ignore:Power atom")
@pytest.mark.parametrize("alpha", [1.2, 1.7])
def test_between_is_cvxpys(alpha):
    x = 2 * randn(6, seed=2)
    p = cp.Variable(6)
    entropy = (cp.sum(cp.power(p, alpha)) - cp.sum(p)) / (alpha * (alpha - 1))
    problem = cp.Problem(cp.Maximize(x.numpy() @ p - entropy), [p >= 0, cp.sum(p) == 1])
    problem.solve(solver=cp.CLARABEL)
    f = lg.SoftMaximum(alpha)
    assert float(f(x)) == pytest.approx(problem.value, abs=1e-6)
    np.testing.assert_allclose(f.grad(x).numpy(), p.value, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9])
def test_slopes_in_the_point_and_in_alpha(alpha):
    x = randn(2, 5, seed=3).requires_grad_()
    learned = torch.tensor(alpha, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t, a: entmax(t, a, -1), (x, learned))
    assert torch.autograd.gradgradcheck(lambda t, a: entmax(t, a, -1), (x, learned))


@pytest.mark.parametrize("alpha", [1.0, 1.4, 2.0])
def test_laws(alpha):
    report = check_function(lg.SoftMaximum(alpha), randn(3, 4, seed=4))
    assert report["gradient"] is not None
    assert report["Fenchel–Young"] is not None
    p = lg.SoftMaximum(alpha).grad(randn(3, 4, seed=5))
    check_function(lg.Tsallis(alpha), p)
    assert lg.Tsallis(alpha)(p + 0.1) == torch.inf


def test_inside_transforms_in_single_precision_and_along_another_axis():
    x = randn(4, 3, seed=6)
    f = lg.SoftMaximum(1.5, dim=0)
    torch.testing.assert_close(f.grad(x).sum(0), torch.ones(3).double())
    torch.testing.assert_close(lg.SoftMaximum(1.5).grad(x.mT), f.grad(x).mT)
    expected = lg.SoftMaximum(1.5).grad(x)
    torch.testing.assert_close(torch.func.vmap(lg.SoftMaximum(1.5).grad)(x), expected)
    forward = torch.func.jacfwd(lg.SoftMaximum(1.5).grad)(x[0])
    torch.testing.assert_close(forward, torch.func.jacrev(lg.SoftMaximum(1.5).grad)(x[0]))
    single = lg.SoftMaximum(1.5).grad(x.float())
    torch.testing.assert_close(single.double(), expected, atol=1e-5, rtol=1e-4)
    far = lg.SoftMaximum(1.5).grad(1e4 + x)
    torch.testing.assert_close(far, expected, atol=1e-8, rtol=0)


def test_nan_stays():
    x = torch.tensor([torch.nan, 1.0, 2.0]).double()
    assert bool(lg.SoftMaximum(1.5).grad(x)[0].isnan())
    assert bool(lg.SoftMaximum(1.5)(x).isnan())


def test_a_regression_with_a_sparse_loss_is_solved():
    """min Σ f(Ax) − ⟨q, Ax⟩ + ridge, whose gradient vanishes at the solution."""
    A, q = randn(3, 2, seed=7), torch.tensor([0.7, 0.3, 0.0]).double()
    energy = lg.SoftMaximum(1.5) @ A + lg.Linear(-A.T @ q) + lg.SquaredNorm(0.1)
    x = lg.solve(energy, stop=lg.Stop(5000, tol=1e-13)).x
    rest = A.T @ (torch.from_numpy(exact((A @ x).numpy())) - q) + 0.1 * x
    assert float(rest.abs().max()) < 1e-8


def bisected(x, alpha):
    """α-entmax for numbers by SciPy's root finder: p = max((α − 1)x − τ, 0)^{1/(α − 1)}."""
    kappa = alpha - 1

    def p(tau):
        height = kappa * x - tau
        return np.where(height > 0, np.abs(height) ** (1 / kappa), 0.0 if kappa > 0 else np.inf)

    largest, n = (kappa * x).max() if kappa > 0 else (kappa * x).min(), len(x)
    ends = sorted((largest - 1, largest - float(n) ** -kappa))
    tau = brentq(lambda t: p(t).sum() - 1, ends[0], ends[1], xtol=1e-15, rtol=1e-14)
    return p(tau)


@pytest.mark.parametrize("size", [0.3, 3.0, 30.0])
def test_any_positive_alpha(size):
    """Full supports below 1, infinite slopes beyond 2; one α for each row."""
    x = size * randn(6, 7, seed=8)
    alphas = torch.tensor([0.3, 0.8, 0.97, 1.3, 2.25, 3.0]).double()[:, None]
    found = lg.SoftMaximum(alphas).grad(x)
    for row, alpha, p in zip(x, alphas, found, strict=True):
        np.testing.assert_allclose(p.numpy(), bisected(row.numpy(), float(alpha)), atol=1e-9)
        torch.testing.assert_close(lg.SoftMaximum(float(alpha)).grad(row), p)
    single = lg.SoftMaximum(alphas[:5].float()).grad(x[:5].float())
    torch.testing.assert_close(single.double(), found[:5], atol=2e-5, rtol=0)


@pytest.mark.parametrize("alpha", [0.4, 0.999, 1.0, 1.001, 2.25])
def test_slopes_in_any_alpha(alpha):
    """Also at α = 1, where the formula is 0/0, and below it; first and second."""
    x = 0.5 * randn(2, 4, seed=9).requires_grad_()
    learned = torch.tensor([[alpha], [1.3]]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda t, a: lg.SoftMaximum(a).grad(t), (x, learned))
    assert torch.autograd.gradcheck(lambda t, a: lg.SoftMaximum(a)(t), (x, learned))
    assert torch.autograd.gradgradcheck(lambda t, a: lg.SoftMaximum(a).grad(t), (x, learned))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.25, 2.0, 2.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_of_minus_infinity_are_left_out(alpha, dtype):
    x = torch.cat((randn(2, 3, seed=10), torch.full((2, 2), -torch.inf)), -1).to(dtype)
    x.requires_grad_()
    f = lg.SoftMaximum(alpha)
    torch.testing.assert_close(f(x), f(x[:, :3]))
    assert not f.grad(x)[:, 3:].any()
    (slope,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(slope, f.grad(x).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [3.0, 5.0, 8.0, 20.0, 32.0])
def test_beyond_sparsemax_probabilities_have_the_sum_1(alpha, dtype):
    """Where p vanishes, it is the (α − 1)-th root of what rounding leaves of x − t."""
    x = randn(200, 4, seed=11) * torch.logspace(-2, 2, 200).double()[:, None]
    for rows in (x, x.round(), x.mT.contiguous().mT):
        p = lg.SoftMaximum(alpha).grad(rows.to(dtype))
        assert p.dtype == dtype
        assert not (p < 0).any()
        assert float((p.double().sum(-1) - 1).abs().max()) <= 64 * torch.finfo(dtype).eps
        learned = torch.tensor(alpha, dtype=dtype)
        torch.testing.assert_close(lg.SoftMaximum(learned).grad(rows.to(dtype)), p)
        each = torch.func.vmap(lg.SoftMaximum(learned).grad)(rows.to(dtype))
        torch.testing.assert_close(each, p)
    two = torch.tensor([0.0, -0.999 / (alpha - 1)]).double()  # (1 − t, 0.001 − t) to the root
    p = lg.SoftMaximum(alpha).grad(two)
    kappa = alpha - 1
    torch.testing.assert_close(p[0] ** kappa - p[1] ** kappa, -kappa * two[1])


def test_beyond_sparsemax_there_is_no_lipschitz_constant():
    assert lg.SoftMaximum(2.0).lipschitz() == 1.0
    assert lg.SoftMaximum(2.1).lipschitz() is None
    assert lg.SoftMaximum(torch.tensor([1.5, 3.0])).lipschitz() is None


@pytest.mark.parametrize("alpha", [0.0, -1.0, 33.0, torch.inf, torch.nan])
def test_other_alphas_are_refused(alpha):
    for make in (lg.SoftMaximum, lambda a: lg.Tsallis(torch.tensor(a))):
        with pytest.raises(InputError, match="larger than 0"):
            make(alpha)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="alpha has shape"):
        lg.SoftMaximum(torch.full((2,), 1.5)).grad(torch.zeros(3, 4))
    with pytest.raises(InputError, match="needs an axis"):
        lg.SoftMaximum(1.5)(torch.tensor(1.0))
