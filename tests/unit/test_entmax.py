"""Soft maxima between softmax and sparsemax, against closed forms and a solver of cones."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize(("alpha", "words"), [(0.5, "between 1"), (2.5, "between 1")])
def test_other_alphas_are_refused(alpha, words):
    with pytest.raises(InputError, match=words):
        lg.SoftMaximum(alpha)
    with pytest.raises(InputError, match=words):
        lg.Tsallis(torch.tensor(alpha))
    with pytest.raises(InputError, match="one number"):
        lg.SoftMaximum(torch.ones(2))
    with pytest.raises(InputError, match="needs an axis"):
        lg.SoftMaximum(1.5)(torch.tensor(1.0))
