"""What entmax's tests ask for: maps onto the simplex, their masks, derivatives and losses."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import legato as lg
from draws import rand, randn

ALPHAS = (0.2, 0.5, 0.75, 1.2, 1.5, 1.75, 2.25)


def entmax(x, alpha=1.5, dim=-1):
    return lg.SoftMaximum(alpha, dim).grad(x)


def sparsemax(x, dim=-1):
    return lg.Simplex(dim).prox(x)


def by_roots(x, alpha):
    """SciPy's root of Σ max((α − 1)x − τ, 0)^{1/(α − 1)} = 1."""
    kappa = alpha - 1

    def p(tau):
        height = kappa * x - tau
        return np.where(height > 0, np.abs(height) ** (1 / kappa), 0.0)

    largest, n = (kappa * x).max() if kappa > 0 else (kappa * x).min(), float(len(x))
    ends = sorted((largest - 1, largest - n**-kappa))
    return p(brentq(lambda t: p(t).sum() - 1, *ends, xtol=1e-15, rtol=1e-14))


def by_sorting(x):
    """The projection onto the simplex."""
    ordered = np.sort(x)[::-1]
    level = (np.cumsum(ordered) - 1) / np.arange(1, len(x) + 1)
    return np.maximum(x - level[(ordered > level).sum() - 1], 0)


@pytest.mark.parametrize("scale", [1e-5, 0.5, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparsemax(dtype, scale):
    for row in (scale * randn(4, 6, seed=1)).to(dtype):
        expected = torch.from_numpy(by_sorting(row.double().numpy()))
        for found in (sparsemax(row), entmax(row, 2.0)):
            torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax(alpha, dtype):
    for row in (0.5 * randn(4, 6, seed=2)).to(dtype):
        expected = torch.from_numpy(by_roots(row.double().numpy(), alpha))
        torch.testing.assert_close(entmax(row, alpha).double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "function", [sparsemax, entmax, lambda x: entmax(x, 2.0)], ids=["sparsemax", "1.5", "2"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks(function, dtype):
    x = randn(2, 6, seed=3).to(dtype)
    x[:, 3:] = -torch.inf
    found = function(x)
    torch.testing.assert_close(found[:, :3], function(x[:, :3]))
    assert not found[:, 3:].any()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75, 2.25])
def test_masks_of_other_alphas(alpha):
    test_masks(lambda x: entmax(x, alpha), torch.float32)


def test_the_derivative_of_sparsemax():
    x = randn(4, 6, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(sparsemax, (x,))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("function", [sparsemax, lambda x, dim: entmax(x, 1.5, dim)])
def test_derivatives_along_an_axis(function, dim):
    x = randn(3, 4, 5, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: function(t, dim=dim), (x,))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_derivatives_in_alpha(alpha):
    learned = torch.tensor(alpha).double().requires_grad_()
    x = randn(4, 6, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(entmax, (x, learned))


def test_an_alpha_for_each_row():
    x = randn(4, 6, seed=7).requires_grad_()
    alphas = (0.05 + 2.5 * rand(4, 1, seed=8)).requires_grad_()
    found = entmax(x, alphas).detach()
    for row, alpha, p in zip(x.detach(), alphas.detach(), found, strict=True):
        np.testing.assert_allclose(p.numpy(), by_roots(row.numpy(), float(alpha)), atol=1e-9)
    assert torch.autograd.gradcheck(entmax, (x, alphas))


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_an_alpha_for_each_slice_along_any_axis(dim):
    shape = [3, 4, 2, 5]
    x = randn(*shape, seed=9).requires_grad_()
    shape[dim] = 1
    alphas = (0.05 + 2.5 * rand(*shape, seed=10)).requires_grad_()
    found = entmax(x, alphas, dim).detach()
    for index in itertools.product(*(range(k) for k in shape)):
        line = [*index[:dim], slice(None), *index[dim + 1 :]]
        expected = by_roots(x.detach()[tuple(line)].numpy(), float(alphas.detach()[index]))
        np.testing.assert_allclose(found[tuple(line)].numpy(), expected, atol=1e-9)
    assert torch.autograd.gradcheck(lambda t, a: entmax(t, a, dim), (x, alphas), fast_mode=True)


# --- budgets --------------------------------------------------------------------------------------


def test_budgets():
    x = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    for y, total in ((x, 2.0), (2 * x, 3.0)):

        def missing(t, y=y, total=total):
            return np.clip(y.numpy() - t, 0, 1).sum() - total

        expected = torch.clamp(y - brentq(missing, -2, 2), 0, 1)
        torch.testing.assert_close(lg.BoxSection(total).prox(y), expected)
    for scale in (1.0, 2.0, 3.0, 4.0, 5.0):
        torch.testing.assert_close(lg.BoxSection(1.0).prox(scale * x), sparsemax(scale * x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e8])
def test_budgets_are_kept_at_any_size_and_with_ties(scale, dtype):
    """At 1e8 a float32 cannot tell y from y − 1: the share of a tie is a jump."""
    for seed in range(5):
        y = (scale * (3 * randn(5, 9, seed=seed)).round()).to(dtype)
        totals = (10 * rand(5, 1, seed=seed + 9)).floor().to(dtype)
        found = lg.BoxSection(totals).prox(y)
        torch.testing.assert_close(found.sum(-1, keepdim=True), totals, atol=1e-4, rtol=0)
        assert bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("total", range(7))
def test_derivatives_of_budgets(total):
    x = randn(4, 6, seed=11).requires_grad_()
    assert torch.autograd.gradcheck(lg.BoxSection(float(total)).prox, (x,))


def test_a_budget_for_each_row():
    x = randn(4, 6, seed=12).requires_grad_()
    totals = (6 * rand(4, 1, seed=13)).requires_grad_()
    assert torch.autograd.gradcheck(lambda t, c: lg.BoxSection(c).prox(t), (x, totals))


# --- normmax --------------------------------------------------------------------------------------

NORM_ALPHAS = (1.2, 1.5, 1.75, 2.25, 4.0)


def normmax(x, alpha=2.0, dim=-1):
    return lg.NormMaximum(alpha, dim).grad(x)


def normmax_by_roots(x, alpha):
    """SciPy's root of Σ max(x − τ, 0)^{α/(α − 1)} = 1, whose powers are normalised."""
    power = 1 / (alpha - 1)
    tau = brentq(
        lambda t: (np.maximum(x - t, 0) ** (power + 1)).sum() - 1, x.max() - 1, x.max(),
        xtol=1e-15, rtol=1e-14,
    )  # fmt: skip
    above = np.maximum(x - tau, 0) ** power
    return above / above.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normmax(dtype):
    """Where ‖p‖₂ is maximised away, p is the positive part of x − τ, normalised."""
    for row in (0.5 * randn(4, 300, seed=14)).to(dtype):
        expected = torch.from_numpy(normmax_by_roots(row.double().numpy(), 2.0))
        torch.testing.assert_close(normmax(row).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", NORM_ALPHAS)
def test_derivatives_of_normmax(alpha):
    learned = torch.tensor(alpha).double().requires_grad_()
    x = randn(4, 6, seed=15).requires_grad_()
    assert torch.autograd.gradcheck(normmax, (x, learned))


def test_normmax_of_an_alpha_for_each_row():
    x = randn(4, 6, seed=16).requires_grad_()
    alphas = (1.05 + 2.5 * rand(4, 1, seed=17)).requires_grad_()
    found = normmax(x, alphas).detach()
    for row, alpha, p in zip(x.detach(), alphas.detach(), found, strict=True):
        np.testing.assert_allclose(
            p.numpy(), normmax_by_roots(row.numpy(), float(alpha)), atol=1e-9
        )
    assert torch.autograd.gradcheck(normmax, (x, alphas))


# --- losses ---------------------------------------------------------------------------------------


def loss(f, x, target, ignored=None):
    """The Fenchel–Young loss of a label for each row: f(x) − x_label + Ω(label)."""
    corner = torch.nn.functional.one_hot(target, x.shape[-1]).to(x.dtype)
    values = f.values(x, 1) - (x * corner).sum(-1) + f.conjugate().values(corner, 1)
    return values if ignored is None else torch.where(target == ignored, 0.0, values)


def entropy(p, alpha):
    return ((p**alpha - p) / (alpha * (alpha - 1))).sum()


def norm(p, alpha):
    """One at a corner, which is where the loss begins."""
    return (p**alpha).sum() ** (1 / alpha) - 1


LOSSES = {
    **{f"entmax {a}": (lg.SoftMaximum(a), a, by_roots, entropy) for a in (1.5, 2.0, 1.2, 1.9)},
    **{f"normmax {a}": (lg.NormMaximum(a), a, normmax_by_roots, norm) for a in (2.0, 1.4)},
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    f, alpha, solved, regulariser = LOSSES[name]
    for seed in range(2):
        x = randn(3, 6, seed=seed).requires_grad_()
        target = randn(3, 6, seed=seed + 50).argmax(-1)
        values = loss(f, x, target)
        assert bool((values >= 0).all())
        p = solved(x.detach()[0].numpy(), alpha)
        expected = p @ x.detach()[0].numpy() - regulariser(p, alpha)
        expected -= float(x.detach()[0, target[0]])
        assert float(values.detach()[0]) == pytest.approx(expected, abs=1e-9)
        for ignored in (None, target[0]):
            for reduced in (torch.sum, torch.mean):
                assert torch.autograd.gradcheck(
                    lambda t, r=reduced, i=ignored, y=target: r(loss(f, t, y, i)), (x,)
                )
        assert loss(f, x, target, target[0]).sum() < values.sum()
