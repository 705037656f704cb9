"""Losses, norms, sets and sequences against other libraries, closed forms and brute force."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import QuantileRegressor

import legato as lg
from draws import rand, randn
from legato.errors import InputError
from legato.functions import MCP, SCAD, ExponentialType, Geman, LogSum, TruncatedQuadratic

SOLVER = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


def slope_by_differences(loss, t, direction, h=1e-6):
    return float(loss(t + h * direction) - loss(t - h * direction)) / (2 * h)


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 50, 400])
def test_isotonic_regression_is_scikit_learns(n):
    for seed in range(3):
        y = randn(n, seed=seed) + torch.linspace(0, 2, n).double()
        expected = isotonic_regression(y.numpy())
        np.testing.assert_allclose(lg.Monotone().prox(y).numpy(), expected, atol=1e-12)


def test_isotonic_regression_of_a_batch_and_along_an_axis():
    y = randn(3, 7, 4, seed=1)
    found = lg.Monotone(dim=-2).prox(y)
    for i in range(3):
        for j in range(4):
            expected = isotonic_regression(y[i, :, j].numpy())
            np.testing.assert_allclose(found[i, :, j].numpy(), expected, atol=1e-12)


def test_isotonic_regression_of_a_falling_sequence_is_its_mean():
    y = torch.arange(1000.0, 0.0, -1.0, dtype=torch.float64).requires_grad_()
    x = lg.Monotone().prox(y)
    torch.testing.assert_close(x.detach(), torch.full((1000,), 500.5, dtype=torch.float64))
    (slope,) = torch.autograd.grad(x[3], y)
    torch.testing.assert_close(slope, torch.full((1000,), 1e-3, dtype=torch.float64))


def test_kinks_of_monotone_are_where_the_blocks_change():
    y = randn(6, seed=2)
    away = lg.Monotone().kinks(y, 1.0)
    jacobian = torch.autograd.functional.jacobian(lg.Monotone().prox, y)
    for seed in range(20):
        direction = randn(6, seed=seed + 10)
        moved = y + 0.4 * float(away.min()) * direction / direction.abs().max()
        other = torch.autograd.functional.jacobian(lg.Monotone().prox, moved)
        torch.testing.assert_close(other, jacobian)


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0, 100.0])
def test_total_variation_of_sequences_is_cvxpys(weight):
    y = randn(3, 40, seed=5).cumsum(-1)
    x = lg.TotalVariation1D(weight).prox(y)
    for row in range(3):
        z = cp.Variable(40)
        energy = 0.5 * cp.sum_squares(z - y[row].numpy()) + weight * cp.tv(z)
        cp.Problem(cp.Minimize(energy)).solve(**SOLVER)
        np.testing.assert_allclose(x[row].numpy(), z.value, atol=2e-5)


def test_total_variation_of_sequences_meets_its_optimality_condition():
    """y − x = w Dᵀu with |u| ≤ 1 and u the sign of every jump: exact, whatever the length."""
    y, weight = randn(500, seed=6).cumsum(-1), 3.0
    x = lg.TotalVariation1D(weight).prox(y)
    dual = (y - x).cumsum(-1)[:-1] / weight
    jumps = x.diff()
    assert float(dual.abs().max()) <= 1 + 1e-10
    assert abs(float((y - x).sum())) < 1e-10
    moved = jumps.abs() > 1e-9
    torch.testing.assert_close(dual[moved], -torch.sign(jumps[moved]), atol=1e-9, rtol=0)


def test_total_variation_of_sequences_with_equal_entries_meets_its_optimality_condition():
    """Whole numbers, whose blocks meet several at once."""
    for seed in range(200):
        y = (1.5 * randn(2, 2 + seed % 37, seed=seed)).round()
        weight = (0.25, 0.4, 0.5, 0.7, 1.0, 1.5)[seed % 6]
        x = lg.TotalVariation1D(weight).prox(y)
        dual, jumps = (y - x).cumsum(-1) / weight, x.diff()
        assert float(dual.abs().max()) <= 1 + 1e-10
        assert float(dual[:, -1].abs().max()) < 1e-10
        moved = jumps.abs() > 1e-9
        torch.testing.assert_close(
            dual[:, :-1][moved], -torch.sign(jumps[moved]), atol=1e-9, rtol=0
        )


def test_total_variation_of_sequences_has_the_slopes_of_differences():
    y, c = randn(2, 30, seed=7).cumsum(-1), randn(2, 30, seed=8)
    weight = torch.tensor([[0.7], [1.9]], dtype=torch.float64)

    def loss(w, z):
        return (c * lg.TotalVariation1D(w).prox(z)).sum()

    w, z = weight.clone().requires_grad_(), y.clone().requires_grad_()
    slopes = torch.autograd.grad(loss(w, z), (w, z))
    along = rand(2, 1, seed=9), randn(2, 30, seed=10)
    found = float((slopes[0] * along[0]).sum())
    assert found == pytest.approx(slope_by_differences(lambda t: loss(t, y), weight, along[0]))
    found = float((slopes[1] * along[1]).sum())
    assert found == pytest.approx(slope_by_differences(lambda t: loss(weight, t), y, along[1]))


# --- matrices -------------------------------------------------------------------------------------


def test_singular_values_that_are_equal_or_zero_have_slopes():
    """Where torch's own derivative of singular vectors is NaN."""
    c = randn(4, 3, seed=1)
    left = torch.linalg.qr(randn(4, 4, seed=2))[0][:, :3]
    right = torch.linalg.qr(randn(3, 3, seed=3))[0]
    for values in ([2.0, 2.0, 0.3], [2.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.3, 0.3, 0.2]):
        y = left * torch.tensor(values, dtype=torch.float64) @ right.mT

        def loss(t):
            return (c * lg.Nuclear(0.5).prox(t)).sum()

        leaf = y.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(leaf), leaf)
        for seed in range(4):
            along = randn(4, 3, seed=seed + 4)
            found = float((slope * along).sum())
            assert found == pytest.approx(slope_by_differences(loss, y, along), abs=1e-6)


def test_second_derivatives_of_singular_values_are_right():
    y = randn(3, 4, seed=5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: lg.Nuclear(0.5).prox(t), (y,), atol=1e-4)


def test_matrix_completion_is_cvxpys():
    truth = randn(6, 2, seed=1) @ randn(2, 5, seed=2)
    seen = (rand(6, 5, seed=3) < 0.7).double()
    energy = lg.SquaredDistance(truth, seen) + lg.Nuclear(0.3)
    found = lg.solve(energy, stop=lg.Stop(5000, tol=1e-10)).x
    z = cp.Variable((6, 5))
    error = cp.sum_squares(cp.multiply(seen.numpy(), z - truth.numpy()))
    cp.Problem(cp.Minimize(0.5 * error + 0.3 * cp.normNuc(z))).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found.numpy(), z.value, atol=1e-4)


# --- losses in problems ---------------------------------------------------------------------------


def test_quantile_regression_is_scikit_learns():
    A, y = randn(40, 3, seed=1), randn(40, seed=2)
    theirs = QuantileRegressor(quantile=0.8, alpha=0.02, fit_intercept=False).fit(A, y)
    energy = (1 / 40) * (lg.Quantile(0.8).shifted(y) @ A) + lg.L1(0.02)
    found = lg.solve(energy, x0=torch.zeros(3).double(), stop=lg.Stop(20000, tol=1e-10)).x
    np.testing.assert_allclose(found.numpy(), theirs.coef_, atol=1e-5)


def test_a_support_vector_machine_is_cvxpys():
    A, b = randn(30, 3, seed=3), torch.sign(randn(30, seed=4))
    energy = lg.Hinge(b) @ A + lg.SquaredNorm(1.0)
    found = lg.solve(energy, stop=lg.Stop(20000, tol=1e-11)).x
    z = cp.Variable(3)
    hinge = cp.sum(cp.pos(1 - cp.multiply(b.numpy(), A.numpy() @ z)))
    cp.Problem(cp.Minimize(hinge + 0.5 * cp.sum_squares(z))).solve(**SOLVER)
    np.testing.assert_allclose(found.numpy(), z.value, atol=1e-5)


def test_photons_through_an_operator_are_cvxpys():
    A = rand(12, 5, seed=5)
    y = torch.poisson(20 * A @ rand(5, seed=6), generator=torch.Generator().manual_seed(0))
    energy = lg.KullbackLeibler(y, 0.5) @ A + lg.NonNegative() + lg.SquaredNorm(0.05)
    found = lg.solve(energy, stop=lg.Stop(50000, tol=1e-11)).x
    z = cp.Variable(5)
    mean = A.numpy() @ z + 0.5
    likelihood = cp.sum(mean) - y.numpy() @ cp.log(mean)
    problem = cp.Problem(cp.Minimize(likelihood + 0.025 * cp.sum_squares(z)), [z >= 0])
    problem.solve(**SOLVER)
    np.testing.assert_allclose(found.numpy(), z.value, atol=1e-4)


def test_one_of_two_terms_behind_operators_tells_the_shape():
    energy = lg.KullbackLeibler(torch.ones(4).double()) + lg.NonNegative()
    energy = energy + lg.L1(0.3) @ lg.Differences((-1,))
    assert lg.split(energy).start().shape == (4,)
    torch.testing.assert_close(
        lg.solve(energy, stop=lg.Stop(5000, tol=1e-12)).x, torch.ones(4).double()
    )


def test_a_ball_around_data_is_a_shifted_ball():
    """min ‖Dx‖₁ with ‖x − y‖ ≤ δ: the centre is a shift, and has a derivative."""
    y, delta = randn(8, seed=7), 0.9
    energy = lg.L1(1.0) @ lg.Differences((-1,)) + lg.L2Ball(delta).shifted(y)
    found = lg.solve(energy, stop=lg.Stop(20000, tol=1e-11)).x
    z = cp.Variable(8)
    problem = cp.Problem(cp.Minimize(cp.tv(z)), [cp.norm(z - y.numpy(), 2) <= delta])
    problem.solve(**SOLVER)
    np.testing.assert_allclose(found.numpy(), z.value, atol=1e-4)
    centre = y.clone().requires_grad_()
    x = lg.L2Ball(delta).shifted(centre).prox(3 * randn(8, seed=8))
    (slope,) = torch.autograd.grad((randn(8, seed=9) * x).sum(), centre)

    def loss(c):
        return (randn(8, seed=9) * lg.L2Ball(delta).shifted(c).prox(3 * randn(8, seed=8))).sum()

    along = randn(8, seed=10)
    assert float(slope @ along) == pytest.approx(slope_by_differences(loss, y, along), rel=1e-6)


# --- what is not convex ---------------------------------------------------------------------------

FOLDED = {
    "MCP": lambda w: MCP(w, 2.0),
    "SCAD": lambda w: SCAD(w, 3.0),
    "LogSum": lambda w: LogSum(w, 0.6),
    "ExponentialType": lambda w: ExponentialType(w, 1.4),
    "ExponentialType, flat": lambda w: ExponentialType(w, 0.2),
    "Geman": lambda w: Geman(w, 0.7),
    "TruncatedQuadratic": lambda w: TruncatedQuadratic(w, 0.9),
}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.9, 2.5, 6.0])
def test_the_prox_of_a_folded_penalty_is_a_global_minimiser(name, alpha):
    """Against a fine grid, for steps where the prox is continuous and where it jumps."""
    g = FOLDED[name](0.8)
    y = torch.linspace(-6, 6, 241, dtype=torch.float64)
    x = lg.prox(g, lg.Euclidean(), y, alpha)
    grid = torch.linspace(-7, 7, 14001, dtype=torch.float64)[:, None]
    least = (0.5 * (grid - y) ** 2 + alpha * g.penalty(grid.abs())).amin(0)
    found = 0.5 * (x - y) ** 2 + alpha * g.penalty(x.abs())
    assert float((found - least).max()) <= 1e-12
    assert float((least - found).max()) <= 1e-5  # as fine as the grid is


@pytest.mark.parametrize("name", FOLDED)
def test_folded_penalties_have_slopes(name):
    y = torch.tensor([0.15, 1.3, -2.2, 5.0], dtype=torch.float64)
    weight = torch.tensor([0.5, 0.4, 0.9, 0.3], dtype=torch.float64).requires_grad_()

    def apply(t, w):
        return lg.prox(FOLDED[name](w), lg.Euclidean(), t, 0.4)

    assert torch.autograd.gradcheck(apply, (y.requires_grad_(), weight))
    assert bool(FOLDED[name](0.5).prox(torch.full((2,), torch.nan)).isnan().all())


@pytest.mark.parametrize("name", FOLDED)
def test_folded_penalties_are_solved_without_momentum(name):
    A, b = randn(30, 8, seed=1), randn(30, seed=2)
    energy = lg.LeastSquares(A, b) + FOLDED[name](3.0)
    solution = lg.solve(energy, stop=lg.Stop(5000, tol=1e-12))
    plain = lg.solve(energy, lg.ForwardBackward(inertia=0.0), stop=lg.Stop(5000, tol=1e-12))
    torch.testing.assert_close(solution.x, plain.x)
    step = float(1 / lg.LeastSquares(A, b).lipschitz())
    x = solution.x
    again = energy.terms[1].prox(x - step * lg.LeastSquares(A, b).grad(x), step)
    torch.testing.assert_close(again, x, atol=1e-9, rtol=0)


# --- what is refused ------------------------------------------------------------------------------

VECTOR = torch.ones(4)
REFUSED = {
    "negative counts": (lambda: lg.KullbackLeibler(-VECTOR), "4 of 4 are negative"),
    "counts that are integers": (lambda: lg.KullbackLeibler(VECTOR.long()), "floating-point"),
    "a negative background": (lambda: lg.KullbackLeibler(VECTOR, -1.0), "background"),
    "a negative δ": (lambda: lg.Huber(-1.0), "delta of Huber must be non-negative"),
    "a share above 1": (lambda: lg.Quantile(1.2), "between 0 and 1"),
    "labels 0 and 1": (lambda: lg.Hinge(0 * VECTOR), "Hinge needs labels −1 and 1"),
    "weights that grow": (lambda: lg.SortedL1(torch.tensor([1.0, 2.0])), "must not increase"),
    "one sorted weight": (lambda: lg.SortedL1(torch.tensor(1.0)), "it is L1"),
    "too few sorted weights": (lambda: lg.SortedL1(VECTOR).prox(torch.ones(5)), "4 weights"),
    "a cone of one number": (lambda: lg.SecondOrderCone().prox(torch.ones(1)), "one more entry"),
    "a semidefinite vector": (lambda: lg.PositiveSemidefinite().prox(VECTOR), "square matrices"),
    "rows that depend": (
        lambda: lg.AffineSet(torch.ones(2, 3), torch.ones(2)),
        "depend on one another",
    ),
    "rows that are no numbers": (
        lambda: lg.AffineSet(torch.tensor([[1.0, torch.nan]]), torch.ones(1)),
        "AffineSet holds NaN",
    ),
    "a plane without a normal": (lambda: lg.Halfspaces(torch.zeros(3), 1.0), "no half-space"),
    "a matrix norm of a vector": (lambda: lg.Nuclear().prox(VECTOR), "takes matrices"),
    "a spectral ball of a vector": (lambda: lg.SpectralBall()(VECTOR), "takes matrices"),
    "an axis counted from the front": (lambda: lg.L2Norm(1.0, (0,)), "from the end"),
    "the largest of one number": (lambda: lg.MaxEntry().prox(torch.tensor(1.0)), "needs an axis"),
    "a monotone number": (lambda: lg.Monotone().prox(torch.tensor(1.0)), "needs an axis"),
    "the variation of a number": (
        lambda: lg.TotalVariation1D().prox(torch.tensor(1.0)),
        "needs an axis",
    ),
    "a weight for each entry": (lambda: lg.LInfNorm(VECTOR).prox(VECTOR), "one group norm"),
    "γ = 0": (lambda: MCP(1.0, 0.0), "larger than 0"),
    "a = 2": (lambda: SCAD(1.0, 2.0), "larger than 2"),
    "ε = 0": (lambda: LogSum(1.0, 0.0), "larger than 0"),
    "γ < 0": (lambda: Geman(1.0, -1.0), "gamma of Geman must be larger than 0"),
    "γ that is not a number": (lambda: ExponentialType(1.0, torch.nan), "larger than 0"),
    "a negative cost": (lambda: TruncatedQuadratic(1.0, -1.0), "most of TruncatedQuadratic"),
    "a sphere of radius 0": (lambda: lg.functions.L2Sphere(0.0), "radius of L2Sphere"),
    "a sphere of one number": (
        lambda: lg.functions.L1Sphere().prox(torch.tensor(1.0)),
        "needs an axis",
    ),
    "groups of one axis": (lambda: lg.functions.GroupL0Ball(1).prox(VECTOR), "needs two axes"),
    "groups along themselves": (
        lambda: lg.functions.GroupL0Ball(1, -1, 1).prox(torch.ones(2, 2)),
        "needs two axes",
    ),
    "a step that varies": (
        lambda: lg.prox(lg.Monotone(), lg.Euclidean(), VECTOR, VECTOR.cumsum(0)),
        "couples the entries",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_words(name):
    make, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        make()


def test_a_budget_that_counts_nothing_has_a_gradient_in_its_weights():
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-0.5, 0.25, 2.0], dtype=torch.float64)
    x = lg.BoxSection(0.0, weights).prox(y)
    torch.testing.assert_close(x, y.clamp(0, 1))
    x.sum().backward()
    assert torch.isfinite(weights.grad).all()
