"""Adaptive tolerances: the same loss as with 1e-10 throughout, for half the lower iterations."""

from __future__ import annotations

import math

import pytest
import torch

import legato as lg
from legato import bilevel, optim
from legato.bilevel.inexact import Progress
from legato.bilevel.inner import Tolerances
from optim.data import Split, normal

UNTIL = bilevel.Until(decrease=1e-6, patience=3)


def run(split, make, inexact):
    theta = torch.tensor([math.log(0.1 * split.largest)], dtype=torch.float64, requires_grad=True)
    result = bilevel.fit(split.loss(theta), theta, make, 200, inexact=inexact, until=UNTIL)
    assert result.converged
    exact = float(split.loss(theta)(bilevel.InnerSolver()).detach())
    return exact, result.history


@pytest.mark.parametrize("name", ["diabetes", "breast cancer"])
@pytest.mark.parametrize(
    ("make", "inexact"),
    [
        (optim.IPiano, bilevel.HOAG()),
        (optim.ProximalGradient, bilevel.HOAG()),
        (optim.ProximalGradient, bilevel.MAID()),
    ],
    ids=["iPiano with HOAG", "proximal gradient with HOAG", "proximal gradient with MAID"],
)
def test_same_loss_for_half_the_iterations(name, make, inexact):
    split = Split(name)
    reference, throughout = run(split, make, None)
    loss, adaptive = run(split, make, inexact)
    assert loss <= reference * (1 + 1e-6)
    assert sum(adaptive.inner_iterations) <= 0.5 * sum(throughout.inner_iterations)
    assert adaptive.inner_iterations[0] < throughout.inner_iterations[0]
    assert adaptive.tolerance[0] > 1e4 * adaptive.tolerance[-1]


def test_loose_tolerances_throughout_would_not_do():
    """The test above can fail: what is saved must not be saved at the end."""
    split = Split("diabetes")
    reference, _ = run(split, optim.IPiano, None)
    loss, _ = run(split, optim.IPiano, bilevel.HOAG(first=0.3, last=0.3, decay=0.999))
    assert loss > reference * (1 + 1e-6)


def test_the_adjoint_is_loosened_with_the_lower_level():
    split = Split("diabetes")
    _, throughout = run(split, optim.ProximalGradient, None)
    _, adaptive = run(split, optim.ProximalGradient, bilevel.HOAG())
    per_evaluation = [h.adjoint_iterations[0] / h.evaluations[0] for h in (adaptive, throughout)]
    assert per_evaluation[0] < per_evaluation[1]


def test_every_certified_step_of_maid_decreases_the_exact_loss():
    split = Split("diabetes")
    theta = torch.tensor([math.log(0.3 * split.largest)], dtype=torch.float64, requires_grad=True)
    exact, tolerance = [], []
    reference = split.loss(theta, tol=1e-12)

    def callback(record):
        exact.append(float(reference(bilevel.InnerSolver()).detach()))
        tolerance.append(record.tolerance)

    bilevel.fit(
        split.loss(theta, tol=1e-12),
        theta,
        optim.ProximalGradient,
        12,
        inexact=bilevel.MAID(last=1e-9),
        callback=callback,
    )
    certified = [
        (old, new)
        for old, new, tol in zip(exact, exact[1:], tolerance[1:], strict=False)
        if tol > 1e-9
    ]
    assert len(certified) >= 5
    assert all(new < old for old, new in certified)


def test_the_tolerance_is_one_on_the_distance_to_the_solution():
    """A slow iteration has to be stopped later than a fast one for the same accuracy."""
    split = Split("diabetes")
    theta = torch.tensor([math.log(0.05 * split.largest)], dtype=torch.float64, requires_grad=True)
    exact = bilevel.InnerSolver()
    x = {}
    for key, inner in (("exact", exact), ("adaptive", bilevel.InnerSolver())):
        for _ in range(3):
            if key == "adaptive":
                inner.tolerances = Tolerances.both(1e-3)
            inner.begin()
            problem = lg.Composite(lg.LeastSquares(split.operator, split.b), lg.L1(theta.exp()))
            stop = lg.Stop(50_000, tol=1e-13)
            solution = inner.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(), stop=stop)
            split.validation(solution.x).backward()
            inner.close()
            inner.error()
        x[key] = solution.x.detach()
    distance = float((x["adaptive"] - x["exact"]).norm()) / max(1.0, float(x["exact"].norm()))
    assert 1e-9 < distance <= 1e-3


def test_hoag_follows_its_schedule():
    rule = bilevel.HOAG(first=1e-2, last=1e-6, decay=0.5)
    first = 2.0
    now = rule.start()
    assert (now.lower, now.adjoint) == (1e-2, 1e-2)
    assert rule.following(now, Progress(change=4.0), first).lower == pytest.approx(5e-3)
    assert rule.following(now, Progress(change=0.02), first).lower == pytest.approx(1e-4)
    assert rule.following(now, Progress(change=1e-9), first).lower == 1e-6
    assert rule.repeat(now, Progress(change=1.0)) is None
    assert rule.repeat(now, Progress(change=1.0, failed=True)).lower == pytest.approx(1e-3)
    assert rule.repeat(now, Progress(change=0.0)).lower == pytest.approx(1e-3)
    assert rule.repeat(Tolerances.both(1e-6), Progress(change=0.0)) is None


def test_maid_asks_for_a_certificate():
    rule = bilevel.MAID(first=1e-2, last=1e-6)
    now = Tolerances.both(1e-3)
    certified = Progress(change=1.0, decrease=1.0, error=0.5)
    assert rule.repeat(now, certified) is None
    assert rule.following(now, certified, 1.0).lower == pytest.approx(2e-4)
    doubtful = Progress(change=1.0, decrease=1.0, error=1.5)
    assert rule.repeat(now, doubtful).lower == pytest.approx(1e-4)
    assert rule.repeat(Tolerances.both(1e-6), doubtful) is None
    ample = Progress(change=1.0, decrease=1.0, error=1e-4)
    assert rule.following(now, ample, 1.0).lower == pytest.approx(2e-3)
    assert rule.following(Tolerances.both(9e-3), ample, 1.0).lower == 1e-2
    assert rule.repeat(now, Progress(change=1.0, failed=True, decrease=1.0)).lower < 1e-3


@pytest.mark.parametrize(
    "gradient",
    [lg.Implicit(lg.BiCGStab()), lg.FixedPoint(terms=500), lg.Unroll(), lg.Unroll(last=9)],
)
def test_any_gradient_strategy_goes_along(gradient):
    A, b = normal(30, 5, seed=1), normal(30, seed=2)
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def loss(inner):
        problem = lg.Composite(lg.LeastSquares(A[:20], b[:20]), lg.L1(theta.exp()))
        solution = inner.solve(
            problem, lg.ForwardBackward(), gradient=gradient, stop=lg.Stop(2000, tol=1e-9)
        )
        return ((A[20:] @ solution.x - b[20:]) ** 2).mean()

    result = bilevel.fit(loss, theta, optim.ProximalGradient, 6, inexact=bilevel.HOAG())
    assert result.loss < result.history.loss[0]


def test_a_rule_that_is_met_with_loose_tolerances_is_asked_again_with_the_tightest():
    """The tolerance hardly falls by itself: one step more, at the last one, and the fit may end."""
    theta = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)

    def loss(inner):
        energy = lg.SquaredDistance(theta) + lg.L1(1.0)
        x = inner.solve(energy, gradient=lg.Implicit(), stop=lg.Stop(100, tol=1e-12)).x
        return (x**2).sum()

    result = bilevel.fit(
        loss,
        theta,
        lambda params: torch.optim.SGD(params, lr=0.01),
        20,
        inexact=bilevel.HOAG(first=1e-2, last=1e-8, decay=0.999),
        until=lambda history: "enough" if len(history) >= 3 else None,
    )
    assert result.reason == "enough"
    assert len(result.history) == 4
    assert min(result.history.tolerance[:3]) > 1e-4
    assert result.history.tolerance[3] == 1e-8
