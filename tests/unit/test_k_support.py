"""Envelopes of sparsity against their definitions, ties, and what they are good for."""

import itertools

import pytest
import torch

import legato as lg
from draws import rand, randn
from legato.errors import InputError
from legato.functions import KSupport, L0Ball, L0BallEnvelope, OfSingularValues, WeightedNuclear
from legato.testing import check_function


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_it_is_the_gauge_of_sparse_vectors(count):
    """f is half the square of the norm whose dual takes the k largest entries, for random pairs."""
    f, x, y = KSupport(count), randn(50, 5, seed=1), randn(2000, 5, seed=2)
    norms = (2 * f.values(x, 1)).sqrt()
    dual = y.abs().sort(-1, descending=True).values[:, :count].norm(dim=-1)
    assert bool((x @ y.T <= norms[:, None] * dual + 1e-12).all())
    # and it is attained: at gradients of the dual's square, which are sparse sums
    z = f.conjugate()
    for row, norm in zip(x, norms, strict=True):
        slope = row.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(slope), slope)
        top = g.abs().sort(descending=True).values[:count].norm()
        assert float(g @ row) == pytest.approx(float(norm * top), rel=1e-9)
        assert float(f(row) + z(g)) == pytest.approx(float(g @ row), rel=1e-9)
    few = randn(5, seed=3)
    few[count:] = 0
    assert float(f(few)) == pytest.approx(0.5 * float(few.square().sum()))


def test_laws():
    report = check_function(KSupport(2, 0.7), randn(3, 4, seed=4))
    assert report["Fenchel–Young"] is not None


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0, 3.0])
def test_the_prox_of_the_envelope_is_a_minimiser(alpha):
    """Of 200 000 points around, for steps below and beyond that where it is a hard threshold."""
    g, y = L0BallEnvelope(1, 1.0), torch.tensor([1.3, -1.1, 0.4]).double()
    x = g.prox(y, alpha)
    z = torch.cat((x + 0.3 * randn(50000, 3, seed=5), 2 * randn(50000, 3, seed=6)))
    z = torch.cat((z, z * (rand(100000, 3, seed=7) < 0.5)))
    values = alpha * g.values(z, 1) + 0.5 * (z - y).square().sum(-1)
    assert float(alpha * g(x) + 0.5 * (x - y).square().sum()) <= float(values.min()) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_ties_zeros_and_sizes(dtype, size):
    rows = [[1.0, 1, 1, 1], [2.0, 1, 1, 0], [0.0, 0, 0, 0], [3.0, 0, 0, 0], [1.0, 1e-9, 0, 0]]
    for count, row in itertools.product((1, 2, 4, 9), rows):
        y = size * torch.tensor(row, dtype=dtype)
        x = KSupport(count).prox(y)
        shares = torch.cat((rand(20000, 4, seed=9), (3 * rand(20000, 4, seed=10)).floor() / 2))
        shares = shares / (shares.sum(-1, keepdim=True) / count).clamp(min=1)
        # the least for given shares, over x
        truth = 0.5 * float((y.double() ** 2 / (1 + shares.clamp(max=1))).sum(-1).min())
        energy = KSupport(count)(x).double() + 0.5 * (x - y).double().square().sum()
        assert float(energy) <= truth * (1 + 1e-5)


def test_entries_of_very_different_size():
    """One has a share of its own; two ones divide the other, whatever the first is."""
    for large in (10.0, 1e8, 1e30):
        y = torch.tensor([large, -1.0, 1.0]).double()
        torch.testing.assert_close(KSupport(2).prox(y)[1:], torch.tensor([-1.0, 1.0]).double() / 3)
        assert float(L0BallEnvelope(2)(y)) == pytest.approx(1.0)
        torch.testing.assert_close(L0BallEnvelope(2).prox(y, 0.5)[1:], y[1:] * 2 / 3)
    assert float(L0BallEnvelope(1)(torch.tensor([torch.inf, 0.0]))) == 0


def test_a_batch_is_its_elements_and_nan_stays_in_its_row():
    y = randn(4, 6, seed=8)
    y[2, 1] = torch.nan
    for g in (KSupport(2, 0.6), L0BallEnvelope(2, 0.6), L0BallEnvelope(2, 3.0)):
        found = g.prox(y)
        for row, x in zip(y, found, strict=True):
            torch.testing.assert_close(g.prox(row), x, equal_nan=True)
        assert found.isnan().any(-1).tolist() == [False, False, True, False]
        torch.testing.assert_close(g.values(y, 1), torch.stack([g(r) for r in y]), equal_nan=True)


def test_the_nearest_matrix_of_a_rank_and_the_derivative_of_a_penalty():
    """Eckart and Young's; and the slope in a learned weight, against differences."""
    y = randn(5, 4, seed=9)
    U, S, Vh = torch.linalg.svd(y, full_matrices=False)
    x = lg.solve(lg.SquaredDistance(y) + OfSingularValues(L0Ball(2)), stop=lg.Stop(50)).x
    torch.testing.assert_close(x, (U[:, :2] * S[:2]) @ Vh[:2])
    data = lg.LeastSquares(lg.Diagonal(0.5 + rand(4, seed=10)), y)

    def loss(w, gradient=None):
        energy = data + OfSingularValues(lg.functions.MCP(w, 5.0))
        stop = lg.Stop(500, tol=1e-12)
        return lg.solve(energy, gradient=gradient, stop=stop).x.square().sum()

    weight = torch.tensor(0.3).double().requires_grad_()
    (slope,) = torch.autograd.grad(loss(weight, lg.Implicit()), weight)
    w, h = weight.detach(), 1e-5
    assert float(slope) == pytest.approx(float(loss(w + h) - loss(w - h)) / (2 * h), rel=1e-4)


def test_equal_singular_values_move_alike_with_a_derivative():
    y = torch.eye(4)[:, :3].double()
    for g in (OfSingularValues(KSupport(1)), OfSingularValues(lg.functions.MCP(0.3, 5.0))):
        torch.testing.assert_close(g.prox(y), float(g.prox(y)[0, 0]) * y)
        assert torch.autograd.gradcheck(g.prox, (y.clone().requires_grad_(),))
    x = randn(2, 3, 4, seed=12).requires_grad_()
    weight = torch.tensor(0.4).double().requires_grad_()
    for f in (lg.functions.MCP, lg.L1, lambda w: KSupport(2, w), lambda w: L0BallEnvelope(1, w)):
        assert torch.autograd.gradcheck(
            lambda t, w, f=f: OfSingularValues(f(w)).prox(t), (x, weight)
        )
        assert torch.autograd.gradgradcheck(
            lambda t, w, f=f: OfSingularValues(f(w)).prox(t), (x, weight), atol=1e-4
        )


def test_a_step_for_each_matrix():
    y, steps = randn(2, 3, 4, seed=13), torch.tensor([0.2, 0.9]).double().reshape(2, 1, 1)
    for g in (OfSingularValues(KSupport(2)), OfSingularValues(lg.functions.MCP(0.5)),
              WeightedNuclear(torch.tensor([0.1, 0.2, 0.9]).double())):  # fmt: skip
        both = g.prox(y, steps)
        for k in range(2):
            torch.testing.assert_close(g.prox(y[k], float(steps[k])), both[k])


REFUSED = {
    "no entries at all": (lambda: KSupport(0), "count of KSupport"),
    "half an entry": (lambda: L0BallEnvelope(1.5), "whole number"),
    "one number": (lambda: KSupport(1).prox(torch.tensor(1.0)), "needs an axis"),
    "a negative weight": (lambda: KSupport(1, -1.0), "weight of KSupport"),
    "a vector": (lambda: OfSingularValues(L0Ball(1)).prox(torch.ones(3)), "takes matrices"),
    "signs": (lambda: OfSingularValues(lg.NonNegative()), "must not depend on signs"),
    "groups": (lambda: OfSingularValues(lg.LInfNorm()), "knows terms of single entries"),
    "another axis": (lambda: OfSingularValues(KSupport(1, dim=0)), "dim is −1"),
    "a weight for each": (lambda: OfSingularValues(lg.L1(torch.ones(3))), "WeightedNuclear"),
    "weights that fall": (lambda: WeightedNuclear(torch.tensor([1.0, 0.5])), "must not decrease"),
    "too few weights": (
        lambda: WeightedNuclear(torch.ones(2)).prox(torch.ones(3, 3)),
        "3 singular",
    ),
    "one weight": (lambda: WeightedNuclear(torch.tensor(1.0)), "Nuclear takes one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_words(name):
    make, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        make()
