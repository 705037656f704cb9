"""A line search knows the directions it moved along; the derivative at the solution sees all."""

import warnings

import pytest
import torch

import legato as lg
from makers import randn

STRATEGIES = {
    "GMRES": lg.Implicit(),
    "CG": lg.Implicit(lg.CG()),
    "Direct": lg.Implicit(lg.Direct()),
    "series": lg.FixedPoint(2000),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_direction_solved_from_the_start(strategy):
    """½Σ q_i (x_i − c_i)², whose steep entry starts at its solution: steps grow to 1/0.01."""
    q = torch.tensor([1.0, 0.01]).double()
    c = torch.tensor([2.0, 3.0]).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    start, stop = torch.tensor([2.0, 0.0]).double(), lg.Stop(500, tol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient = STRATEGIES[strategy]
        found = lg.solve(problem, algorithm, start, gradient=gradient, stop=stop)
        assert float(found.steps["step"]) > 10
        (slope,) = torch.autograd.grad(found.x @ torch.tensor([1.0, 2.0]).double(), c)
    torch.testing.assert_close(slope, torch.tensor([1.0, 2.0]).double(), rtol=1e-4, atol=0)
    assert found.backward.spectral_radius < 1


ITERATIONS = {
    "all": lambda c: lg.Unroll(),
    "the last": lambda c: lg.Unroll(last=90),
    "until small": lambda c: lg.Unroll(tol=1e-9),
    "checkpoints": lambda c: lg.Unroll(checkpoint="sqrt"),
    "forward": lambda c: lg.Forward(c),
}


@pytest.mark.parametrize("grow", [1.0, 2.0])
@pytest.mark.parametrize("stop", [lg.Stop(2000), lg.Stop(5000, tol=1e-9)], ids=["fixed", "tol"])
@pytest.mark.parametrize("how", ITERATIONS)
def test_iterations_along_a_direction_at_rest(how, stop, grow):
    """x = c, so that dx/dc = 1; the steep entry rests, and so would not hold steps back."""
    q = torch.tensor([8.0, 0.5]).double()
    c = torch.tensor([2.0, 3.0]).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=grow))
    start = torch.tensor([2.0, 0.0]).double()
    found = lg.solve(problem, algorithm, start, gradient=ITERATIONS[how](c), stop=stop)
    (slope,) = torch.autograd.grad(found.x.sum(), c)
    torch.testing.assert_close(slope, torch.ones(2).double(), rtol=1e-2, atol=0)


def test_a_solve_without_derivatives_takes_the_long_steps():
    """Nothing is differentiated, and nothing is paid for it."""
    q, c = torch.tensor([1.0, 0.01]).double(), torch.tensor([2.0, 3.0]).double()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    found = lg.solve(problem, algorithm, torch.tensor([2.0, 0.0]).double(), stop=lg.Stop(50))
    assert float(found.steps["step"]) > 10


def test_the_same_steps_with_and_without_recording():
    q, c = torch.tensor([1.0, 0.01]).double(), torch.tensor([2.0, 3.0]).double().requires_grad_()
    problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c))
    algorithm, start = lg.ForwardBackward(lg.Backtracking(grow=2.0)), torch.zeros(2).double()
    recorded = lg.solve(problem, algorithm, start, stop=lg.Stop(50)).x.detach()
    with torch.no_grad():
        torch.testing.assert_close(
            lg.solve(problem, algorithm, start, stop=lg.Stop(50)).x, recorded, rtol=0, atol=0
        )


def test_a_number():
    """x = y − 1 for one number without axes."""
    y = torch.tensor(3.0).double().requires_grad_()
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))
    for gradient in (lg.Implicit(), lg.Unroll()):
        found = lg.solve(lg.SquaredDistance(y) + lg.L1(1.0), algorithm, gradient=gradient)
        (slope,) = torch.autograd.grad(found.x, y)
        assert float(found.x.detach()) == pytest.approx(2.0)
        assert float(slope) == pytest.approx(1.0)


def test_an_element_of_a_batch_rests_while_another_moves():
    """The step of the first, which starts at its solution, is the one that it has alone."""
    q = torch.tensor([1.0, 0.01]).double()
    c = torch.tensor([[2.0, 3.0], [5.0, -4.0]]).double()
    start = torch.tensor([[2.0, 3.0], [0.0, 0.0]]).double()
    algorithm = lg.ForwardBackward(lg.Backtracking(grow=2.0))

    def steps(rows):
        problem = lg.Composite(lg.Quadratic(lg.Diagonal(q), -q * c[rows]))
        return lg.solve(problem, algorithm, start[rows], stop=lg.Stop(30)).steps["step"]

    together, alone = steps([0, 1]), torch.cat((steps([0]), steps([1])))
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)


def _burg(A, b, iterations=12):
    algorithm = lg.ForwardBackward(lg.Backtracking(steady=True), lg.Burg())
    problem = lg.Composite(lg.LeastSquares(A, b), lg.NonNegative())
    start = torch.full(b.shape[:-1] + A.shape[-1:], 0.7).double()
    return lg.solve(problem, algorithm, start, stop=lg.Stop(iterations)).x


def test_a_step_that_was_searched_has_no_tangent():
    """It counts as a constant, in forward mode as in reverse mode."""
    A, b = randn(5, 4, seed=1).abs(), randn(5, seed=2).abs() + 1
    direction = randn(5, 4, seed=3)
    forward = torch.func.jvp(lambda A: _burg(A, b).square().sum(), (A,), (direction,))[1]
    moved = A.clone().requires_grad_()
    (reverse,) = torch.autograd.grad(_burg(moved, b).square().sum(), moved)
    torch.testing.assert_close(forward, (reverse * direction).sum(), rtol=1e-10, atol=0)


def test_steady_steps_are_those_of_elements_alone_and_the_same_without_gradients():
    A, b = randn(3, 5, 4, seed=1).abs(), randn(3, 5, seed=2).abs() + 1
    together = _burg(A.clone().requires_grad_(), b).detach()
    assert torch.equal(_burg(A, b), together)
    alone = torch.stack([_burg(A[k], b[k]) for k in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)
