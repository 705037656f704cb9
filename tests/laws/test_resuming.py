"""Laws of algorithms, and where a solve may start: a state is a start, and never more than that."""

import pytest
import torch

import legato as lg
from legato.testing import check_algorithm
from makers import randn

# In the interval x₁ shrinks to its bound 0 by 0.2 % of itself in each step: after 8000 of them it
# is 1e-10 and still moves, against its own size; 15000 bring it to rounding.
UNTIL = lg.Stop(20000, tol=1e-12)
A, b = randn(9, 5, seed=1), randn(9, seed=2)
NOISY = randn(7, 6, seed=3)


def lasso(scale):
    return lg.Composite(lg.LeastSquares(scale * A, b), lg.L1(0.3))


def nnls(scale):
    return lg.Composite(lg.LeastSquares(scale * A, b), lg.Box(0.0, 2.0))


def ridge(scale):
    return lg.Composite(lg.LeastSquares(scale * A, b), lg.SquaredNorm(0.1))


def tv(scale):
    K = scale * lg.Differences()
    return lg.Saddle(K, lg.L1(0.2), nonsmooth=lg.SquaredDistance(NOISY))


CASES = {
    "plain": (lg.ForwardBackward(), lasso),
    "inertia": (lg.ForwardBackward(inertia=0.4), lasso),
    "Nesterov": (lg.ForwardBackward(inertia=lg.Nesterov(restart=True)), lasso),
    "Backtracking": (lg.ForwardBackward(lg.Backtracking(grow=2.0)), lasso),
    "Backtracking, Nesterov": (
        lg.ForwardBackward(lg.Backtracking(), inertia=lg.Nesterov(restart=True)),
        lasso,
    ),
    "relaxed": (lg.ForwardBackward(relaxation=0.7, inertia=0.0), lasso),
    "interval": (lg.ForwardBackward(geometry=lg.Interval(0.0, 2.0)), nnls),
    "Newton": (lg.Newton(), ridge),
    "PrimalDual": (lg.PrimalDual(), tv),
    "preconditioned": (lg.PrimalDual(precondition=True), tv),
    "balanced": (lg.PrimalDual(balance=3.0), tv),
    "restarted": (
        lg.PrimalDual(restart=lg.Restart(), balance=lg.AdaptiveBalance(), scaling=lg.Ruiz()),
        tv,
    ),
    "adapted": (lg.PrimalDual(balance=lg.AdaptiveBalance()), tv),
}


@pytest.mark.parametrize("name", CASES)
def test_laws(name):
    algorithm, make = CASES[name]
    report = check_algorithm(algorithm, make(torch.tensor(1.0).double()), stop=UNTIL)
    assert report["fresh start"] is not None
    assert (report["going on"] is None) == (name == "Backtracking")


@pytest.mark.parametrize("scale", [1 / 3, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_a_state_of_another_problem_is_only_a_start(name, scale):
    """With the steps of the first problem the second would diverge, or end elsewhere."""
    algorithm, make = CASES[name]
    state = lg.solve(make(1.0), algorithm, stop=UNTIL).state
    truth = lg.solve(make(scale), algorithm, stop=UNTIL)
    found = lg.solve(make(scale), algorithm, state, stop=UNTIL)
    assert found.converged == truth.converged
    torch.testing.assert_close(found.x, truth.x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_data_that_change_in_place_get_fresh_steps(name):
    algorithm, _ = CASES[name]
    scale = torch.tensor(1.0).double()
    if isinstance(algorithm, lg.PrimalDual):
        problem = tv(scale)
    else:
        matrix = A.clone()
        rest = lg.SquaredNorm(0.1) if isinstance(algorithm, lg.Newton) else lg.Box(0.0, 2.0)
        problem = lg.Composite(lg.LeastSquares(matrix, b), rest)
    half = lg.solve(problem, algorithm, stop=lg.Stop(10))
    with torch.no_grad():
        (scale if isinstance(algorithm, lg.PrimalDual) else matrix).mul_(3.0)
    found = lg.solve(problem, algorithm, half, stop=UNTIL)
    truth = lg.solve(problem, algorithm, stop=UNTIL)
    torch.testing.assert_close(found.x, truth.x, rtol=1e-6, atol=1e-7)


def test_a_state_of_another_shape_is_refused():
    state = lg.solve(lasso(1.0), lg.ForwardBackward()).state
    wider = lg.Composite(lg.LeastSquares(randn(9, 7, seed=4), b), lg.L1(0.3))
    with pytest.raises(lg.errors.InputError, match="shape"):
        lg.solve(wider, lg.ForwardBackward(), state)


def test_a_solution_of_another_algorithm_gives_its_point():
    problem = lasso(1.0)
    first = lg.solve(problem, lg.ForwardBackward(), stop=UNTIL)
    saddle = lg.Saddle(A, lg.SquaredDistance(b), nonsmooth=lg.L1(0.3))
    again = lg.solve(saddle, lg.PrimalDual(), first, stop=UNTIL)
    torch.testing.assert_close(again.x, first.x, rtol=1e-6, atol=1e-8)
