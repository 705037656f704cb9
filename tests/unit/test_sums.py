"""Sums of terms that have one prox together: against cvxpy, in any order, and at ties."""

from __future__ import annotations

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch

import legato as lg
from legato import errors

D = {"dtype": torch.float64}
Y = torch.tensor([2.0, -0.3, 0.6, 1.5, -2.0], **D)
W = torch.tensor([0.3, 0.2, 0.5, 0.1, 0.4], **D)
LO = torch.tensor([-0.5, -1.0, -0.2, 0.2, -1.2], **D)
HI = LO + 1.3
w, lo, hi = (t.numpy() for t in (W, LO, HI))


def weighted(x):
    return cp.sum(cp.multiply(w, cp.abs(x)))


SUMS = {
    "L1 + L1": ((lg.L1(0.3), 2 * lg.L1(W)), lambda x: (0.3 * cp.norm1(x) + 2 * weighted(x), [])),
    "L1 + NonNegative": ((lg.L1(W), lg.NonNegative()), lambda x: (weighted(x), [x >= 0])),
    "L1 + Box": ((lg.L1(W), lg.Box(LO, HI)), lambda x: (weighted(x), [x >= lo, x <= hi])),
    "L1 + Box + NonNegative": (
        (lg.L1(0.3), lg.Box(-1.0, 1.2), lg.NonNegative()),
        lambda x: (0.3 * cp.norm1(x), [x >= 0, x <= 1.2]),
    ),
    "AsymmetricL1 + L1 + Box": (
        (lg.AsymmetricL1(-0.2, 0.5), lg.L1(0.3), lg.Box(-0.2, 0.9)),
        lambda x: (
            0.3 * cp.norm1(x) + cp.sum(cp.maximum(-0.2 * x, 0.5 * x)),
            [x >= -0.2, x <= 0.9],
        ),
    ),
    "L1, moved + Box": (
        (2 * lg.L1(W).shifted(HI), lg.Box(LO, 0.7)),
        lambda x: (2 * cp.sum(cp.multiply(w, cp.abs(x - hi))), [x >= lo, x <= 0.7]),
    ),
    "Quantile + NonNegative": (
        (lg.Quantile(0.8, W).shifted(HI), lg.NonNegative()),
        lambda x: (
            cp.sum(cp.multiply(w, cp.maximum(-0.8 * (x - hi), 0.2 * (x - hi)))),
            [x >= 0],
        ),
    ),
    "Huber + Box": (
        (3 * lg.Huber(0.4).shifted(LO), lg.Box(LO, HI)),
        lambda x: (1.5 * cp.sum(cp.huber(x - lo, 0.4)), [x >= lo, x <= hi]),
    ),
    "Hinge + Box": (
        (lg.Hinge(torch.sign(LO), 0.8), lg.Box(-0.5, 0.4)),
        lambda x: (0.8 * cp.sum(cp.pos(1 - cp.multiply(np.sign(lo), x))), [x >= -0.5, x <= 0.4]),
    ),
    "Box + Box": (
        (lg.Box(LO, HI), lg.Box(-0.4, 0.7)),
        lambda x: (0, [x >= lo, x <= hi, x >= -0.4, x <= 0.7]),
    ),
    "L1 + GroupL1": (
        (lg.L1(0.2), 0.5 * lg.GroupL1(0.8)),
        lambda x: (0.2 * cp.norm1(x) + 0.4 * cp.norm(x), []),
    ),
    "L1 + GroupL1 + NonNegative": (
        (lg.L1(0.2), 0.5 * lg.GroupL1(0.8), lg.NonNegative()),
        lambda x: (0.2 * cp.norm1(x) + 0.4 * cp.norm(x), [x >= 0]),
    ),
    "L2Ball + NonNegative + L1": (
        (lg.L2Ball(0.8), lg.NonNegative(), lg.L1(0.3)),
        lambda x: (0.3 * cp.norm1(x), [cp.norm(x) <= 0.8, x >= 0]),
    ),
    "Monotone + NonNegative": (
        (lg.Monotone(), lg.NonNegative()),
        lambda x: (0, [cp.diff(x) >= 0, x >= 0]),
    ),
    "Monotone + Box + L1": (
        (lg.Monotone(), lg.Box(-0.2, 0.9), lg.L1(0.3)),
        lambda x: (0.3 * cp.norm1(x), [cp.diff(x) >= 0, x >= -0.2, x <= 0.9]),
    ),
    "TotalVariation1D + L1 + Box": (
        (2 * lg.TotalVariation1D(0.2), lg.L1(0.3), lg.Box(-0.2, 0.9)),
        lambda x: (0.3 * cp.norm1(x) + 0.4 * cp.norm1(cp.diff(x)), [x >= -0.2, x <= 0.9]),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_against_cvxpy_in_any_order(name):
    terms, model = SUMS[name]
    x = cp.Variable(5)
    value, constraints = model(x)
    cp.Problem(cp.Minimize(0.7 * value + 0.5 * cp.sum_squares(x - Y.numpy())), constraints).solve(
        solver="CLARABEL", tol_gap_abs=1e-8, tol_gap_rel=1e-8, tol_feas=1e-8
    )
    first = sum(terms).prox(Y, 0.7)
    np.testing.assert_allclose(first.numpy(), x.value, atol=3e-5)
    for order in itertools.permutations(terms):
        assert torch.equal(sum(order).prox(Y, 0.7), first)
        problem = lg.split(lg.LeastSquares(torch.eye(5, **D), Y) + sum(order))
        assert isinstance(problem, lg.Composite)
        if not any(term.is_smooth for term in terms):  # which a gradient treats
            assert torch.equal(problem.nonsmooth.prox(Y, 0.7), first)


def test_slopes_on_a_box_have_a_conjugate():
    """sup ⟨x, y⟩ − g(x) on a fine grid."""
    y = torch.linspace(-3, 3, 7, **D)
    for ends in ((-1.0, 2.0), (0.5, 2.0), (-2.0, -0.5), (-1.0, torch.inf), (-torch.inf, 1.0)):
        g = lg.L1(0.5) + lg.Box(*ends)
        reach = [max(ends[0], -60.0), min(ends[1], 60.0)]
        x = torch.linspace(*reach, 2001, **D)
        best = (x * y[:, None] - 0.5 * x.abs()).amax(1)
        found = torch.stack([g.conjugate()(t[None]) for t in y])
        infinite = torch.isinf(found)
        assert torch.equal(infinite, best > 20)
        torch.testing.assert_close(found[~infinite], best[~infinite], atol=4e-2, rtol=0)


def test_ties_have_the_derivative_of_one_side():
    """Entries on the kink of the norm, on an end of the box, and where both meet."""
    g = lg.L1(0.5) + lg.Box(0.0, 1.0)
    y = torch.tensor([0.5, -0.5, 1.5, 0.0, 1.2], **D, requires_grad=True)
    (slope,) = torch.autograd.grad(g.prox(y).sum(), y)
    assert slope.tolist() == [0, 0, 1, 0, 1]
    for maker in (
        lambda t: lg.L1(t) + lg.Box(0.0, 1.0),
        lambda t: lg.TotalVariation1D(t) + lg.L1(0.1),
        lambda t: lg.GroupL1(t) + lg.NonNegative(),
        lambda t: lg.L1(t) + lg.L1(0.0),
    ):
        found = {}
        for strategy in (lg.Unroll(), lg.Implicit(), lg.FixedPoint(), lg.Implicit(lg.Direct())):
            t = torch.tensor(0.3, **D, requires_grad=True)
            energy = lg.LeastSquares(torch.diag(1 + W), Y) + maker(t)
            x = lg.solve(energy, gradient=strategy, stop=lg.Stop(800, tol=1e-13)).x
            (found[repr(strategy)],) = torch.autograd.grad((x * (1 + W)).sum(), t)
        h = 1e-6
        ends = []
        for s in (0.3 - h, 0.3 + h):
            energy = lg.LeastSquares(torch.diag(1 + W), Y) + maker(torch.tensor(s, **D))
            ends.append((lg.solve(energy, stop=lg.Stop(800, tol=1e-13)).x * (1 + W)).sum())
        truth = float(ends[1] - ends[0]) / 2 / h
        for name, value in found.items():
            assert float(value) == pytest.approx(truth, rel=1e-4, abs=1e-6), name


def test_what_has_no_prox_together_stays_apart():
    with pytest.raises(errors.InputError, match="no common point"):
        (lg.Box(0.0, 1.0) + lg.Box(2.0, 3.0)).prox(Y)
    for g in (
        lg.Simplex() + lg.L2Ball(),
        lg.Monotone() + lg.Box(LO, HI),
        lg.L2Ball() + lg.Box(-1.0, 1.0),
        lg.GroupL1() + lg.AsymmetricL1(0.0, 1.0),
        lg.L2Ball() + lg.L1(),
    ):
        with pytest.raises(errors.InputError, match="no closed-form prox"):
            g.prox(Y)
    complex_y = torch.complex(Y, Y)
    joined = lg.L1(0.3) + lg.L1(0.2)
    torch.testing.assert_close(joined.prox(complex_y), lg.L1(0.5).prox(complex_y))
    with pytest.raises(errors.InputError, match="complex"):
        (lg.L1(0.3) + lg.Box(0.0, 1.0)).prox(complex_y)
