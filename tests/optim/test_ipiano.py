"""iPiano's update, its conditions, and what it does where no step works."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import InputError, NonFiniteLossError, NoStepError, ProxError, StepError
from optim.data import Counted, least_squares, normal, rosenbrock

A, b = normal(30, 20, seed=1), normal(30, seed=2)
L = float(torch.linalg.matrix_norm(A, 2)) ** 2


def soft(y, t):
    return torch.sign(y) * torch.clamp(y.abs() - t, min=0)


def l0_with(rule):
    x = torch.ones(20, dtype=torch.float64, requires_grad=True)
    return optim.IPiano([x], rule, prox=lg.functions.L0(2.0))


@pytest.mark.parametrize(
    ("rule", "lr", "momentum"),
    [
        (optim.ConstantStep(0.9 / L, 0.5, L), 0.9 / L, 0.5),
        (optim.ConstantStep(1.9 / L, 0.0), 1.9 / L, 0.0),
        (optim.ConstantStep(0.19 / L, 0.4, L), 0.19 / L, 0.4),
    ],
)
def test_constant_steps_are_the_formula(rule, lr, momentum):
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], rule, prox=lg.L1(2.0))
    x = previous = torch.ones(20, dtype=torch.float64)
    for _ in range(300):
        optimizer.step(closure)
        gradient = A.T @ (A @ x - b)
        x, previous = soft(x - lr * gradient + momentum * (x - previous), 2.0 * lr), x
        assert float((closure.point - x).abs().max()) <= 1e-14


def test_constant_steps_with_a_prox_that_is_not_convex():
    """The formula again, and H with the weights that non-convexity leaves."""
    lr, momentum = 0.19 / L, 0.4
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    g = lg.functions.L0(2.0)
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(lr, momentum, L), prox=g)
    x = previous = torch.ones(20, dtype=torch.float64)
    values = []
    for _ in range(100):
        optimizer.step(closure)
        half = x - lr * A.T @ (A @ x - b) + momentum * (x - previous)
        x, previous = torch.where(half**2 > 2 * lr * 2.0, half, 0.0), x
        assert float((closure.point - x).abs().max()) <= 1e-14
        values.append(optimizer.H)
    assert optimizer.steps[0].delta == pytest.approx((1 - momentum) / (2 * lr) - L / 2)
    assert all(new <= old * (1 + 1e-14) for old, new in pairwise(values))
    with pytest.raises(InputError, match="where the prox is not convex"):
        l0_with(optim.ConstantStep(lr, 0.8))


def test_one_evaluation_a_step():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(0.9 / L, 0.5))
    for _ in range(10):
        optimizer.step(closure)
    assert closure.calls == 11
    assert pytest.approx(2 * (1 - 0.5) / (0.9 / L)) == optimizer.L  # the largest that α allows


def test_forget_evaluates_anew():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(0.9 / L, 0.5))
    optimizer.step(closure)
    optimizer.forget()
    optimizer.step(closure)
    assert closure.calls == 4


def test_the_state_is_readable():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.SearchedStep(momentum=0.6))
    assert optimizer.H is None
    assert optimizer.L is None
    assert optimizer.steps == []
    returned = optimizer.step(closure)
    assert returned == pytest.approx(float(least_squares(A, b)(torch.ones(20, dtype=A.dtype))))
    for _ in range(20):
        optimizer.step(closure)
    state = optimizer.state[closure.x]
    assert math.isfinite(optimizer.H)
    (used,) = optimizer.steps
    assert (state["H"], state["L"]) == (optimizer.H, optimizer.L)
    assert used.lr == pytest.approx(0.99 * 2 * (1 - 0.6) / optimizer.L)
    assert used.momentum == 0.6
    delta = 1 / used.lr - optimizer.L / 2 - 0.6 / (2 * used.lr)
    assert used.delta == pytest.approx(delta)
    assert used.gamma == pytest.approx(delta - 0.6 / (2 * used.lr))
    move = state["point"] - state["previous"]
    H = float(least_squares(A, b)(closure.point) + delta * (move @ move))
    assert pytest.approx(H, rel=1e-14) == optimizer.H


def test_the_estimate_finds_the_order_of_the_lipschitz_constant():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano(
        [closure.x], optim.SearchedStep(search=optim.LipschitzSearch(first=1e-6))
    )
    optimizer.step(closure)
    assert 0.05 * L < optimizer.L < 2 * L


def test_variable_inertia_follows_its_formula():
    rule = optim.VariableMomentum(delta=30.0, c2=1e-3)
    used = rule.coefficients({}, 20.0, None)
    ratio = (30 + 10) / (1e-3 + 10)
    assert used.momentum == pytest.approx((ratio - 1) / (ratio - 0.5))
    assert used.lr == pytest.approx(2 * (1 - used.momentum) / (2e-3 + 20))
    # these are exactly the step and inertia for which δ and γ = c₂ come out as prescribed
    assert (1 - used.momentum / 2) / used.lr - 10 == pytest.approx(30.0)
    assert (1 - used.momentum) / used.lr - 10 == pytest.approx(1e-3)
    assert optim.VariableMomentum().coefficients({}, 7.0, None).momentum == pytest.approx(0.8)


@pytest.mark.parametrize("rule", [optim.SearchedStep(), optim.VariableMomentum()])
def test_converges_to_the_lasso_solution(rule):
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(2.0))
    x = lg.solve(problem, lg.ForwardBackward(), stop=lg.Stop(20_000, tol=1e-14)).x
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], rule, prox=lg.L1(2.0))
    for _ in range(600):
        optimizer.step(closure)
    assert float((closure.point - x).abs().max()) < 1e-7


def test_groups_have_their_own_prox():
    target = torch.tensor([0.9, -0.7, 0.2], dtype=torch.float64)
    plain, boxed, sparse, shares = (torch.zeros(3, dtype=torch.float64) for _ in range(4))
    params = [p.requires_grad_() for p in (plain, boxed, sparse, shares)]
    groups = [
        {"params": [plain]},
        {"params": [boxed], "prox": lg.Box(-0.5, 0.5)},
        {"params": [sparse], "prox": lg.L1(0.3)},
        {"params": [shares], "prox": lg.Simplex()},
    ]
    optimizer = optim.IPiano(groups)

    def closure():
        loss = sum(0.5 * ((p - target) ** 2).sum() for p in params)
        loss.backward()
        return loss

    for _ in range(200):
        optimizer.step(closure)
    expected = (target, target.clamp(-0.5, 0.5), soft(target, 0.3))
    for p, value in zip(params, expected, strict=False):
        assert torch.allclose(p.detach(), value, atol=1e-10)
    projected = lg.prox(lg.Simplex(), lg.Euclidean(), target, 1.0)
    assert torch.allclose(shares.detach(), projected, atol=1e-10)


def test_a_start_outside_the_constraint_is_brought_inside():
    closure = Counted(rosenbrock, torch.full((4,), 5.0, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], prox=lg.Box(-1.0, 0.5))
    for _ in range(5):
        optimizer.step(closure)
    assert float(closure.point.max()) <= 0.5
    assert math.isfinite(optimizer.H)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_never_accepts_a_loss_that_is_not_finite(bad):
    """The minimum of −x lies behind a cliff at x = 1, where the loss stops being a number."""

    def cliff(x):
        return torch.where(x < 1, -x, torch.full_like(x, bad)).sum()

    closure = Counted(cliff, torch.zeros(1, dtype=torch.float64))
    optimizer = optim.IPiano(
        [closure.x], optim.SearchedStep(search=optim.LipschitzSearch(first=1e-3))
    )
    for _ in range(30):
        optimizer.step(closure)
        assert float(closure.point) < 1
        assert math.isfinite(optimizer.H)
    assert float(closure.point) > 0.9


def test_a_nan_gradient_is_refused_as_well():
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def closure():
        loss = -x.sum()
        loss.backward()
        if float(x.detach()) > 1:
            x.grad.fill_(math.nan)
        return loss

    optimizer = optim.IPiano([x], optim.SearchedStep(search=optim.LipschitzSearch(first=0.01)))
    for _ in range(20):
        optimizer.step(closure)
    assert 0 < float(x.detach()) <= 1


def test_ends_with_a_clear_word_where_no_step_works():
    """A gradient of the wrong sign: every step goes uphill."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def closure():
        loss = (x**2).sum()
        (-loss).backward()
        return loss

    optimizer = optim.IPiano([x])
    with pytest.raises(NoStepError, match=r"No step works.*gradient is wrong"):
        optimizer.step(closure)
    assert torch.equal(x.detach(), torch.ones(3, dtype=torch.float64))


def test_no_step_works_in_the_middle_of_nan():
    def island(x):
        return torch.where(x == 0, x, torch.full_like(x, math.nan)).sum()

    closure = Counted(island, torch.zeros(2, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x])
    with pytest.raises(NoStepError, match="NaN"):
        optimizer.step(closure)
    assert torch.equal(closure.point, torch.zeros(2, dtype=torch.float64))


def test_a_constant_step_into_nan_is_not_taken():
    def cliff(x):
        return torch.where(x < 1, -x, torch.full_like(x, math.nan)).sum()

    closure = Counted(cliff, torch.zeros(1, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(0.7, 0.0))
    optimizer.step(closure)
    with pytest.raises(NoStepError, match="SearchedStep"):
        optimizer.step(closure)
    assert float(closure.point) == 0.7


def test_at_a_minimum_it_stands_still():
    closure = Counted(lambda x: (x**2).sum(), torch.zeros(3, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x])
    optimizer.step(closure)
    assert torch.equal(closure.point, torch.zeros(3, dtype=torch.float64))


def test_moved_parameters_lose_their_inertia():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.ConstantStep(0.5 / L, 0.5))
    for _ in range(5):
        optimizer.step(closure)
    with torch.no_grad():
        closure.x.fill_(1.0)
    optimizer.step(closure)
    one = torch.ones(20, dtype=torch.float64)
    expected = one - 0.5 / L * A.T @ (A @ one - b)
    assert torch.allclose(closure.point, expected, atol=1e-14)


def test_float32_works_and_stays():
    closure = Counted(
        lambda x: least_squares(A.float(), b.float())(x), torch.ones(20, dtype=torch.float32)
    )
    optimizer = optim.IPiano([closure.x], prox=lg.L1(2.0))
    values = []
    for _ in range(150):
        optimizer.step(closure)
        values.append(optimizer.H)
    assert closure.x.dtype == torch.float32
    eps = torch.finfo(torch.float32).eps
    assert all(n <= o * (1 + 32 * eps) for o, n in pairwise(values))


def test_proximal_gradient_is_ipiano_without_inertia():
    first = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    plain = optim.ProximalGradient([first.x], lr=0.9 / L, prox=lg.L1(2.0))
    x = torch.ones(20, dtype=torch.float64)
    for _ in range(50):
        plain.step(first)
        x = soft(x - 0.9 / L * A.T @ (A @ x - b), 2.0 * 0.9 / L)
    assert float((first.point - x).abs().max()) <= 1e-14
    searching = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.ProximalGradient([searching.x], prox=lg.L1(2.0))
    for _ in range(50):
        optimizer.step(searching)
        assert optimizer.steps[0].momentum == 0.0
        assert optimizer.steps[0].lr == pytest.approx(0.99 / optimizer.L)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.ConstantStep(1.0, 0.5, L=1.0),  # α = 2(1 − β)/L is not allowed
        lambda: optim.ConstantStep(-1.0),
        lambda: l0_with(optim.ConstantStep(0.5, 0.25, L=1.0)),  # α = (1 − 2β)/L
        lambda: optim.HeavyBall([torch.zeros(1, requires_grad=True)], lr=0.0),
    ],
)
def test_steps_beyond_their_condition_are_refused(make):
    with pytest.raises(StepError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.ConstantStep(0.1, 1.0),
        lambda: optim.SearchedStep(momentum=1.0),
        lambda: optim.NonConvexStep(momentum=0.5),
        lambda: optim.VariableMomentum(delta=1e-9, c2=1e-6),
        lambda: optim.LipschitzSearch(grow=1.0),
        lambda: optim.IPiano([torch.zeros(1, requires_grad=True)], rule=lg.Backtracking()),
        lambda: optim.IPiano([]),
        lambda: optim.IPiano([torch.zeros(2, dtype=torch.int64)]),
        lambda: optim.IPiano([torch.zeros(2)]),
        lambda: optim.IPiano([torch.zeros(2, requires_grad=True)], prox=lg.L1),
    ],
)
def test_bad_hyperparameters_are_refused(make):
    with pytest.raises((InputError, ValueError)):
        make()


def test_a_nonconvex_prox_needs_the_nonconvex_rule():
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(ProxError, match="NonConvexStep"):
        optim.IPiano([x], prox=lg.functions.L0(1.0))
    with pytest.raises(ProxError, match="NonConvexStep"):
        optim.IPiano([x], prox=lg.functions.L0(1.0) + lg.SquaredNorm(1.0))
    optim.IPiano([x], optim.NonConvexStep(), prox=lg.functions.L0(1.0) + lg.SquaredNorm(1.0))


def test_nan_at_the_start_is_an_error():
    closure = Counted(lambda x: torch.log(x).sum(), torch.full((2,), -1.0))
    for make in (optim.IPiano, optim.NonlinearCG, optim.ProximalGradient):
        with pytest.raises(NonFiniteLossError, match="nothing to descend from"):
            make([closure.x]).step(closure)
    with pytest.raises(NonFiniteLossError):
        optim.HeavyBall([closure.x], lr=0.1).step(closure)
