"""The loop: histories, warm starts, stopping, interrupts and failures."""

from __future__ import annotations

import functools
import gc
import math
import warnings
import weakref

import pytest
import torch
from torch.nn import functional as F

import legato as lg
from legato import bilevel, optim
from legato.errors import DivergenceError, FailedStepWarning
from optim.data import Split, normal

A, b = normal(30, 8, seed=1), normal(30, seed=2)


def tuning(theta, **options):
    """The validation loss of a lasso with penalties softplus(theta)."""

    def loss(inner):
        problem = lg.Composite(lg.LeastSquares(A[:20], b[:20]), lg.L1(F.softplus(theta)))
        x = inner.solve(problem, lg.ForwardBackward(), **options).x
        return ((A[20:] @ x - b[20:]) ** 2).mean()

    return loss


EXACT = {"gradient": lg.Implicit(lg.GMRES(tol=1e-10)), "stop": lg.Stop(5000, tol=1e-10)}


def start() -> torch.Tensor:
    return torch.zeros(8, dtype=torch.float64, requires_grad=True)


# --- what an optimiser is given -------------------------------------------------------------------


def test_the_loss_that_an_optimiser_sees_carries_no_graph():
    """One that keeps it would keep every lower-level solve alive."""
    theta, seen = start(), []

    class Keeping(torch.optim.SGD):
        def step(self, closure):
            seen.append(super().step(closure))

    bilevel.fit(tuning(theta, **EXACT), theta, lambda params: Keeping(params, lr=0.1), 2)
    assert [value.requires_grad for value in seen] == [False, False]


# --- history --------------------------------------------------------------------------------------


def test_history_tells_loss_gradient_norm_and_inner_iterations():
    theta = start()
    seen = []
    result = bilevel.fit(tuning(theta, **EXACT), theta, optim.IPiano, 6, callback=seen.append)
    history = result.history
    assert seen == history.records
    assert [r.step for r in history] == list(range(6))
    inner = bilevel.InnerSolver()
    first = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    value = tuning(first, **EXACT)(inner)
    value.backward()
    assert history.loss[0] == pytest.approx(float(value.detach()), rel=1e-9)
    assert history.gradient_norm[0] == pytest.approx(float(first.grad.norm()), rel=1e-6)
    assert all(n > 0 for n in history.inner_iterations)
    assert all(n > 0 for n in history.adjoint_iterations)
    assert history.evaluations[0] >= 2
    assert history.loss[-1] < history.loss[0]
    assert result.loss < history.loss[-1]
    assert history.change[0] > 0
    assert (result.reason, result.converged) == ("all 6 steps are done", False)
    assert bilevel.History.from_dicts(history.as_dicts()).records == history.records
    assert len(repr(result)) < 300 + len(result.reason)  # and not a line for each step


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torch.optim.Adam, lr=0.1),
        functools.partial(torch.optim.LBFGS, line_search_fn="strong_wolfe"),
        functools.partial(torch.optim.SGD, lr=0.5, momentum=0.5),
        optim.NonlinearCG,
        optim.ProximalGradient,
        functools.partial(optim.IPiano, prox=lg.Box(-1.0, 1.0)),
        functools.partial(optim.HeavyBall, lr=0.5),
    ],
)
def test_any_optimiser_will_do(make):
    theta = start()
    result = bilevel.fit(tuning(theta, **EXACT), theta, make, 5)
    assert result.loss < result.history.loss[0]
    again = float(tuning(theta, **EXACT)(bilevel.InnerSolver()).detach())
    assert result.loss == pytest.approx(again, rel=1e-8)


def test_an_optimiser_made_beforehand_and_named_parameters():
    theta, offset = start(), torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = optim.IPiano([{"params": [theta]}, {"params": [offset], "prox": lg.NonNegative()}])
    lasso = tuning(theta, **EXACT)
    result = bilevel.fit(
        lambda inner: lasso(inner) + (offset + 1).square().sum(),
        {"penalties": theta, "offset": offset},
        optimizer,
        5,
    )
    assert float(offset.detach()) == 0.0
    assert result.loss < result.history.loss[0]


# --- warm starts ----------------------------------------------------------------------------------


def test_warm_starts_save_iterations_and_change_nothing():
    make = functools.partial(optim.HeavyBall, lr=0.5, momentum=0.5)
    theta = start()
    warm = bilevel.fit(tuning(theta, **EXACT), theta, make, 15)
    cold_theta = start()
    loss = tuning(cold_theta, **EXACT)
    iterations = 0

    def cold(inner):
        nonlocal iterations
        fresh = bilevel.InnerSolver()
        value = loss(fresh)
        iterations += fresh.iterations
        return value

    cold_fit = bilevel.fit(cold, cold_theta, make, 15)
    assert torch.allclose(theta, cold_theta, atol=1e-7)
    assert warm.loss == pytest.approx(cold_fit.loss, rel=1e-8)
    assert sum(warm.history.inner_iterations) < 0.85 * iterations


@pytest.mark.parametrize("gradient", [None, lg.Unroll(), lg.Unroll(last=10)])
def test_paths_that_are_differentiated_start_anew(gradient):
    """From a warm start an unrolled gradient would miss all that happened before."""
    theta = start()
    loss = tuning(theta, gradient=gradient, stop=lg.Stop(5000, tol=1e-9))
    inner = bilevel.InnerSolver()
    grads = []
    for _ in range(2):
        inner.begin()
        grads.append(torch.autograd.grad(loss(inner), theta)[0])
    assert torch.equal(*grads)


ALGORITHMS = {
    "plain": lg.ForwardBackward(),
    "inertial": lg.ForwardBackward(inertia=0.3),
    "Nesterov": lg.ForwardBackward(inertia=lg.Nesterov()),
    "backtracking": lg.ForwardBackward(lg.Backtracking()),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_second_solve_starts_at_the_first_ones_solution(algorithm):
    inner = bilevel.InnerSolver()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    stop = lg.Stop(5000, tol=1e-11)
    inner.begin()
    first = inner.solve(problem, algorithm, gradient=lg.Implicit(), stop=stop)
    inner.begin()
    second = inner.solve(problem, algorithm, gradient=lg.Implicit(), stop=stop)
    assert second.iterations <= max(3, 0.2 * first.iterations)
    assert torch.allclose(first.x, second.x, atol=1e-9)


def test_an_energy_is_split_and_warm_started():
    theta, counts = start(), []

    def loss(inner):
        energy = lg.LeastSquares(A[:20], b[:20]) + lg.L1(F.softplus(theta))
        solution = inner.solve(energy, **EXACT)
        counts.append(solution.iterations)
        return ((A[20:] @ solution.x - b[20:]) ** 2).mean()

    inner = bilevel.InnerSolver()
    for _ in range(2):
        inner.begin()
        value = loss(inner)
    torch.testing.assert_close(value, tuning(theta, **EXACT)(bilevel.InnerSolver()))
    assert counts[1] < 0.1 * counts[0]


def test_primal_dual_is_warm_started_too():
    inner = bilevel.InnerSolver()
    signal = torch.sign(normal(40, seed=5)).cumsum(0)
    data = lg.Linear(-signal) + lg.SquaredNorm(1.0)
    problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(0.5), nonsmooth=data)
    exact = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(2000)).x
    errors = []
    for _ in range(4):
        inner.begin()
        x = inner.solve(problem, lg.PrimalDual(), gradient=lg.OneStep(), stop=lg.Stop(10)).x
        errors.append(float((x - exact).norm()))
    direct = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(40)).x
    assert torch.allclose(x, direct, atol=1e-12)
    assert errors[3] < 0.1 * errors[0]


def test_in_an_entropic_geometry_boundary_solutions_are_no_obstacle():
    """The solution underflows to 0; its mirror coordinates carry on."""
    inner = bilevel.InnerSolver()
    c = torch.tensor([0.0, 1.0, 2000.0], dtype=torch.float64)
    problem = lg.Composite(lg.Linear(c), lg.Simplex())
    algorithm = lg.ForwardBackward(1.0, lg.Entropy())
    for _ in range(2):
        inner.begin()
        x = inner.solve(problem, algorithm, gradient=lg.OneStep(), stop=lg.Stop(100)).x
    assert float(x[2]) == 0.0
    assert float(x[1]) == pytest.approx(math.exp(-200), rel=1e-6)  # 200 iterations in all


@pytest.mark.parametrize("inertia", [0.0, lg.Nesterov()])
def test_steps_follow_the_problem_not_the_warm_state(inertia):
    """The Lipschitz constant grows hundredfold: an old step would diverge."""
    inner, algorithm = bilevel.InnerSolver(), lg.ForwardBackward(inertia=inertia)
    stop = lg.Stop(5000, tol=1e-12)
    for scale in (1.0, 10.0):
        inner.begin()
        problem = lg.Composite(lg.LeastSquares(scale * A, b), lg.L1(0.1))
        found = inner.solve(problem, algorithm, gradient=lg.Implicit(), stop=stop)
    direct = lg.solve(problem, lg.ForwardBackward(), stop=stop)
    assert torch.allclose(found.x, direct.x, atol=1e-9)


def test_a_warm_start_carries_no_gradient():
    inner = bilevel.InnerSolver()
    theta = torch.ones(8, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        inner.begin()
        problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(theta))
        x = inner.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(), stop=lg.Stop(900)).x
        (grad,) = torch.autograd.grad(x.square().sum(), theta)  # frees the graph each time
    assert torch.isfinite(grad).all()


def test_solves_are_told_apart_by_order_key_and_shape():
    inner = bilevel.InnerSolver()
    small = lg.Composite(lg.LeastSquares(A[:, :4], b), lg.L1(1.0))
    large = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))

    def iterations(problem, **options):
        return inner.solve(
            problem,
            lg.ForwardBackward(),
            gradient=lg.Implicit(),
            stop=lg.Stop(5000, tol=1e-11),
            **options,
        ).iterations

    for _ in range(2):
        inner.begin()
        counts = [iterations(small), iterations(large)]
    assert max(counts) <= 3
    inner.begin()
    assert iterations(large) > 3  # in the place of the small one: a cold start
    inner.begin()
    assert iterations(large, key="large") > 3
    inner.begin()
    assert iterations(large, key="large") <= 3


# --- stopping -------------------------------------------------------------------------------------


def quadratic(theta):
    return lambda inner: 0.5 * (theta**2).sum()


@pytest.mark.parametrize(
    ("until", "word"),
    [
        (bilevel.Until(gradient=1e-5), "gradient norm"),
        (bilevel.Until(change=1e-5, patience=2), "change"),
        (bilevel.Until(decrease=1e-5, patience=3), "relative decrease"),
        (bilevel.Until(loss=1e-4), "loss"),
        (bilevel.Until(seconds=0.0), "seconds"),
        (lambda history: "enough" if len(history) == 4 else None, "enough"),
    ],
)
def test_stopping_rules(until, word):
    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
    floor = 1.0 if word == "relative decrease" else 0.0
    make = functools.partial(optim.HeavyBall, lr=0.3, momentum=0.0)
    result = bilevel.fit(
        lambda inner: floor + 0.5 * (theta**2).sum(), theta, make, 3000, until=until
    )
    assert result.converged
    assert word in result.reason
    assert len(result.history) < 3000
    if word == "gradient norm":
        assert result.history.gradient_norm[-1] <= 1e-5 < result.history.gradient_norm[-2]
    if word == "change":
        assert max(result.history.change[-2:]) <= 1e-5 < result.history.change[-3]


def test_it_ends_where_nothing_moves_any_more():
    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
    result = bilevel.fit(quadratic(theta), theta, optim.IPiano, 5000)
    assert result.converged
    assert len(result.history) < 5000
    assert "not move" in result.reason
    assert float(theta.detach().abs().max()) < 1e-150 or result.loss < 1e-300


# --- interrupts and failures ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        optim.IPiano,
        optim.NonlinearCG,
        functools.partial(torch.optim.Adam, lr=0.1),
        functools.partial(torch.optim.LBFGS, max_iter=4),  # writes to its parameters in between
    ],
)
@pytest.mark.parametrize("moment", [1, 3, "callback"])
def test_an_interrupt_loses_nothing(make, moment):
    """Ctrl-C in the middle of a step leaves exactly what the steps before it leave."""
    theta, reference = start(), start()
    calls = 0
    lasso = tuning(theta, **EXACT)
    complete = bilevel.fit(tuning(reference, **EXACT), reference, make, 2)
    evaluations = sum(complete.history.evaluations)

    def loss(inner):
        nonlocal calls
        calls += 1
        value = lasso(inner)
        if moment != "callback" and calls == evaluations + moment:
            raise KeyboardInterrupt
        return value

    def callback(record):
        if moment == "callback" and record.step == 1:
            raise KeyboardInterrupt

    result = bilevel.fit(loss, theta, make, 50, callback=callback)
    assert result.interrupted
    assert not result.converged
    assert result.reason == "interrupted"
    done = len(result.history)
    assert done == 2 or (moment == 3 and done > 2)
    if done > 2:
        reference = start()
        complete = bilevel.fit(tuning(reference, **EXACT), reference, make, done)
    assert torch.equal(theta.detach(), reference.detach())
    assert result.history.loss == complete.history.loss


def test_an_interrupt_before_the_first_step():
    theta = start()

    def loss(inner):
        raise KeyboardInterrupt

    result = bilevel.fit(loss, theta, optim.IPiano, 5)
    assert result.interrupted
    assert math.isnan(result.loss)
    assert torch.equal(theta.detach(), torch.zeros(8, dtype=torch.float64))


def test_an_interrupt_leaves_the_last_loss_that_is_known():
    """Descent on (θ − 3)² from 0 with step 0.1 multiplies the distance by 0.8."""
    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def callback(record):
        if record.step == 4:
            raise KeyboardInterrupt

    make = functools.partial(torch.optim.SGD, lr=0.1)
    result = bilevel.fit(lambda inner: (theta - 3).square(), theta, make, 50, callback=callback)
    assert result.interrupted
    assert result.loss == pytest.approx(9 * 0.8 ** (2 * 4))


def test_a_failing_step_of_adam_is_undone_and_reported():
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def loss(inner):
        return torch.log(theta).sum()  # falls to −∞ at 0 and is NaN beyond

    with pytest.warns(FailedStepWarning, match="at a trial point the loss is"):
        result = bilevel.fit(loss, theta, functools.partial(torch.optim.SGD, lr=0.3), 100)
    assert result.failed
    assert result.failures[-1][0] == len(result.history) > 0
    assert float(theta.detach().min()) > 0 or len(result.history) > 0
    assert torch.isfinite(theta.detach()).all()


def test_a_step_to_infinity_is_undone_and_reported():
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)
    make = functools.partial(torch.optim.SGD, lr=1e308)
    with pytest.warns(FailedStepWarning, match="the step of SGD made a parameter NaN or infinite"):
        result = bilevel.fit(lambda inner: 10 * (theta**2).sum(), theta, make, 100)
    assert result.failed
    assert torch.equal(theta.detach(), torch.ones(2, dtype=torch.float64))
    assert result.loss == 20.0


def test_a_step_that_does_not_work_is_reported():
    """The loss has a kink of the wrong kind: its gradient promises what no step holds."""
    theta = torch.ones(2, dtype=torch.float64, requires_grad=True)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x**2).sum()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 * x * (1.0 if float(x.norm()) > 0.5 else -1.0)

    with pytest.warns(FailedStepWarning, match="No step works"):
        result = bilevel.fit(lambda inner: Wrong.apply(theta), theta, optim.ProximalGradient, 100)
    assert result.failed
    assert 0 < float(theta.detach().norm()) <= 0.5
    assert result.loss == pytest.approx(float((theta.detach() ** 2).sum()))


def test_trials_at_which_the_lower_level_fails_are_refused_and_noted():
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def loss(inner):
        if float(theta.detach()) > 1:
            raise DivergenceError("the lower level diverged")
        return -theta.sum()

    result = bilevel.fit(loss, theta, optim.IPiano, 25)
    assert 0.9 < float(theta.detach()) <= 1
    assert not result.failed
    assert any("the lower level diverged" in text for _, text in result.failures)


def test_the_package_prints_nothing(capsys):
    theta = start()
    bilevel.fit(tuning(theta, **EXACT), theta, optim.IPiano, 2)
    assert capsys.readouterr() == ("", "")


def test_unrolled_lower_levels_work_as_well():
    theta = start()
    loss = tuning(theta, gradient=lg.Unroll(last=20), stop=lg.Stop(60))
    result = bilevel.fit(loss, theta, optim.ProximalGradient, 8)
    assert result.loss < result.history.loss[0]
    assert result.history.inner_iterations[3] >= 60


def test_memory_of_old_graphs_is_released():
    """A solve is kept for its error estimate, but not its graph."""
    theta, inner = start(), bilevel.InnerSolver()
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(F.softplus(theta)))
    gc.collect()
    gc.disable()  # a cycle would not be found
    try:
        value = inner.solve(problem, lg.ForwardBackward(), stop=lg.Stop(5)).x
        graph = weakref.ref(value)
        value.sum().backward()
        del value
        assert graph() is None
    finally:
        gc.enable()


def test_errors_of_the_loss_are_bounded_a_posteriori():
    split = Split("diabetes")
    theta = torch.tensor([math.log(0.05 * split.largest)], dtype=torch.float64, requires_grad=True)
    inner = bilevel.InnerSolver()
    exact = float(split.loss(theta, tol=1e-13)(inner).detach())
    for tol in (1e-4, 1e-6, 1e-8):
        inner = bilevel.InnerSolver()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = split.loss(theta, tol=tol)(inner)
            value.backward()
        true = abs(float(value.detach()) - exact)
        assert true <= inner.error() <= 1e4 * true


def test_a_saddle_whose_dual_the_loss_ignores():
    """Its fixed-point gradient has a cotangent of x alone."""
    weight = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    noisy = torch.tensor([0.1, -0.1, 1.1, 0.9], dtype=torch.float64)
    clean = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)

    def loss(inner):
        energy = lg.SquaredDistance(noisy) + lg.L1(weight.exp()) @ lg.Differences((-1,))
        return (inner.solve(energy, gradient=lg.Implicit()).x - clean).square().sum()

    found = lg.fit(loss, [weight], lg.optim.IPiano, steps=8)
    assert found.history.loss[-1] < 0.5 * found.history.loss[0]
