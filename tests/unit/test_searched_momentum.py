"""Momentum with a line search, and relaxed steps: their paper's bound, formulas, derivatives."""

import warnings

import numpy as np
import pytest
import torch

import legato as lg
from draws import rand, randn

A, b = randn(12, 6, seed=1), randn(12, seed=2)
WEIGHT = 0.9
L = float(torch.linalg.matrix_norm(A, 2)) ** 2
FISTA = lg.ForwardBackward(lg.Backtracking(), inertia=lg.Nesterov())
RESTARTED = lg.ForwardBackward(lg.Backtracking(), inertia=lg.Nesterov(restart=True))
RELAXED = lg.ForwardBackward(lg.Backtracking(), inertia=lg.Nesterov(restart=True), relaxation=0.8)
ALL = {
    "FISTA": FISTA,
    "restarted": RESTARTED,
    "constant": lg.ForwardBackward(lg.Backtracking(), inertia=0.5),
    "relaxed": lg.ForwardBackward(relaxation=0.7, inertia=0.0),
    "relaxed, searched": lg.ForwardBackward(lg.Backtracking(), relaxation=0.7),
    "relaxed with momentum": lg.ForwardBackward(relaxation=0.7, inertia=lg.Nesterov()),
    "all three": RELAXED,
}


def lasso(weight=WEIGHT):
    return lg.LeastSquares(A, b) + lg.L1(weight)


def in_numpy(iterations, step, relaxation=1.0, momentum=True):
    """FISTA with halving, from its paper; the points and the steps."""
    M, y = A.numpy(), b.numpy()

    def value(x):
        return 0.5 * ((M @ x - y) ** 2).sum()

    x = before = np.zeros(6)
    t, points, steps = 1.0, [], []
    for _ in range(iterations):
        following = (1 + np.sqrt(1 + 4 * t * t)) / 2
        a = x + (t - 1) / following * (x - before) if momentum else x
        slope = M.T @ (M @ a - y)
        while True:
            half = a - step * slope
            p = np.sign(half) * np.maximum(np.abs(half) - step * WEIGHT, 0)
            if value(p) <= value(a) + slope @ (p - a) + ((p - a) ** 2).sum() / (2 * step) + 1e-12:
                break
            step /= 2
        before, x, t = x, x + relaxation * (p - x), following
        points.append(x)
        steps.append(step)
    return points, steps


@pytest.mark.parametrize("initial", [1.0, 0.07])
@pytest.mark.parametrize(("momentum", "relaxation"), [(True, 1.0), (True, 0.8), (False, 0.6)])
def test_points_and_steps_are_those_of_the_formula(initial, momentum, relaxation):
    points, steps = in_numpy(15, initial, relaxation, momentum)
    inertia = lg.Nesterov() if momentum else 0.0
    algorithm = lg.ForwardBackward(lg.Backtracking(initial), None, inertia, relaxation)
    for n in (1, 4, 15):
        found = lg.solve(lasso(), algorithm, stop=lg.Stop(n))
        np.testing.assert_allclose(found.x.numpy(), points[n - 1], rtol=1e-11, atol=1e-13)
        assert float(found.steps["step"]) == steps[n - 1]


def test_the_bound_of_its_paper_holds():
    """F(xᵏ) − F(x*) ≤ 2ηL‖x⁰ − x*‖²/(k + 1)², η = 2; steps only fall, and not below 1/(ηL)."""
    energy = lasso()
    best = lg.solve(energy, stop=lg.Stop(20000, tol=1e-14)).x
    problem = lg.split(energy)
    state = FISTA.init(problem, None)
    last = float(state.step)
    for k in range(1, 200):
        state = FISTA.step(problem, state)
        gap = float(energy(FISTA.solution(state)) - energy(best))
        assert gap <= 4 * L * float(best.square().sum()) / (k + 1) ** 2 + 1e-12
        assert 0.5 / L <= float(state.step) <= last
        last = float(state.step)


@pytest.mark.parametrize("name", ALL)
def test_the_solution_is_one(name):
    """0 ∈ Aᵀ(Ax − b) + w∂‖x‖₁."""
    found = lg.solve(lasso(), ALL[name], stop=lg.Stop(20000, tol=1e-13))
    assert found.converged
    slope = A.T @ (A @ found.x - b)
    active = found.x.abs() > 1e-9
    assert bool(active.any())
    assert bool((~active).any())
    expected = -WEIGHT * torch.sign(found.x)[active]
    torch.testing.assert_close(slope[active], expected, atol=1e-8, rtol=0)
    assert bool((slope[~active].abs() <= WEIGHT + 1e-8).all())


def test_a_gradient_without_a_lipschitz_constant():
    """Σ cosh(x − c) from far away: steps shrink as far as cosh asks there."""
    c = torch.tensor([1.0, -2.0, 0.01]).double()
    f = lg.Smooth(lambda x: torch.cosh(x - c).sum(-1) + 0.5e-3 * x[..., 2] ** 2, coupled=1)
    x = lg.solve(lg.Composite(f), RESTARTED, torch.tensor([6.0, 5.0, 1.0]).double(),
                 stop=lg.Stop(2000, tol=1e-12)).x  # fmt: skip
    torch.testing.assert_close(x[:2], c[:2], atol=1e-6, rtol=0)
    assert float(f.grad(x).abs().max()) < 1e-6


@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_its_elements(name):
    scale = torch.tensor([1.0, 30.0, 1e-2]).double()
    B = scale[:, None] * randn(3, 6, seed=3)
    entries = scale[:, None] * (0.2 + rand(3, 6, seed=4))

    def steps_and_points(rows):
        data = lg.LeastSquares(lg.Diagonal(entries[rows]), B[rows])
        problem = lg.Composite(data, lg.L1(0.1))
        found = lg.solve(problem, ALL[name], stop=lg.Stop(40))
        return found.x, torch.as_tensor(found.steps["step"]).expand(len(rows), 1)

    x, step = steps_and_points([0, 1, 2])
    for k in range(3):
        alone, own = steps_and_points([k])
        torch.testing.assert_close(x[k], alone[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(step[k], own[0])


STRATEGIES = {
    "Unroll": lambda w: lg.Unroll(),
    "checkpoints": lambda w: lg.Unroll(checkpoint="sqrt"),
    "the last": lambda w: lg.Unroll(last=300),
    "Forward": lambda w: lg.Forward(w),
    "Implicit": lambda w: lg.Implicit(),
    "CG": lambda w: lg.Implicit(lg.CG()),
    "FixedPoint": lambda w: lg.FixedPoint(3000),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["FISTA", "restarted", "relaxed", "all three"])
def test_every_strategy_has_the_derivative_of_the_solution(name, strategy):
    """On the support S: dx_S/dw = −(A_SᵀA_S)⁻¹ sign(x_S)."""
    weight = torch.tensor(WEIGHT).double().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stop = lg.Stop(8000, tol=1e-13)
        found = lg.solve(lasso(weight), ALL[name], gradient=STRATEGIES[strategy](weight), stop=stop)
        (slope,) = torch.autograd.grad(found.x.sum(), weight)
    x = found.x.detach()
    support = x.abs() > 1e-9
    M = A[:, support]
    expected = -torch.linalg.solve(M.T @ M, torch.sign(x[support])).sum()
    torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", ["FISTA", "constant", "all three"])
@pytest.mark.parametrize("strategy", ["Unroll", "Forward"])
def test_the_derivative_of_few_iterations(name, strategy):
    """Steps are halved the same number of times around a weight: against central differences."""

    def loss(w):
        gradient = STRATEGIES[strategy](w) if w.requires_grad else None
        start = lg.Backtracking(1 / 64)  # which fits, whatever direction
        rule = lg.ForwardBackward(start, None, ALL[name].inertia, ALL[name].relaxation)
        found = lg.solve(lasso(w), rule, gradient=gradient, stop=lg.Stop(12))
        return found.x.square().sum()

    weight = torch.tensor(WEIGHT).double().requires_grad_()
    (slope,) = torch.autograd.grad(loss(weight), weight)
    h = 1e-6
    w = weight.detach()
    expected = float(loss(w + h) - loss(w - h)) / (2 * h)
    assert float(slope) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("algorithm", [FISTA, RESTARTED], ids=["FISTA", "restarted"])
def test_iterations_along_a_direction_at_rest(algorithm):
    """The steep entry rests at its solution: no move of x shows how steep it is, derivatives do."""
    q = torch.tensor([8.0, 0.5]).double()
    c = torch.tensor([2.0, 3.0]).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    start = torch.tensor([2.0, 0.0]).double()
    found = lg.solve(problem, algorithm, start, gradient=lg.Unroll(), stop=lg.Stop(2000))
    (slope,) = torch.autograd.grad(found.x.sum(), c)
    torch.testing.assert_close(slope, torch.ones(2).double(), rtol=1e-2, atol=0)


def test_going_on_keeps_the_step_that_momentum_needs():
    problem = lg.split(lasso())
    half = lg.solve(problem, FISTA, stop=lg.Stop(20))
    whole = lg.solve(problem, FISTA, stop=lg.Stop(40))
    more = lg.solve(problem, FISTA, half, stop=lg.Stop(20))
    torch.testing.assert_close(more.x, whole.x, rtol=1e-12, atol=1e-14)
    assert more.steps["step"] == whole.steps["step"]


def test_relaxed_steps_converge_where_plain_ones_only_turn():
    """D is a quarter turn: plain steps go around for ever, the mean of x and D(x) comes to rest."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    problem = lg.Composite(lg.Zero(), lg.Denoiser(lambda y: y @ turn.T))
    start, stop = torch.tensor([1.0, 2.0]).double(), lg.Stop(200)
    plain = lg.solve(problem, lg.ForwardBackward(1.0), start, stop=stop).x
    torch.testing.assert_close(plain.norm(), start.norm())
    relaxed = lg.solve(problem, lg.ForwardBackward(1.0, relaxation=0.5), start, stop=stop).x
    assert float(relaxed.norm()) < 1e-20


@pytest.mark.parametrize("algorithm", [FISTA, RELAXED], ids=["FISTA", "all three"])
def test_complex_and_single_precision(algorithm):
    y = torch.tensor([3 + 4j, 0.1j, -2.0])
    x = lg.solve(lg.SquaredDistance(y) + lg.L1(1.0), algorithm, stop=lg.Stop(300, tol=1e-6)).x
    expected = torch.tensor([2.4 + 3.2j, 0, -1.0])
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)


def test_a_value_that_is_nan_ahead_of_x_is_an_error():
    f = lg.Smooth(lambda x: (-torch.log(x) + 50 * x).sum(-1), coupled=1)
    with pytest.raises(lg.errors.StepError, match="NaN"):
        lg.solve(lg.Composite(f), lg.ForwardBackward(lg.Backtracking(), inertia=0.99),
                 torch.tensor([1.0]).double(), stop=lg.Stop(500))  # fmt: skip
