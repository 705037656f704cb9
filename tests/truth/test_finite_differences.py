"""Every gradient against central differences, on all problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch
from torch import Tensor

import legato as lg
from legato.errors import NotConvergedWarning
from legato.testing import SmallProblem
from legato.testing.sampling import H, slope_errors
from problems import ISOLATED, PROBLEMS, SADDLES, Theta, by_name, random, relative_error

STEPS = 30  # of the finite iteration: far enough for kinks to settle, far from converged
Strategy = Callable[[Theta], lg.GradientStrategy]

UNROLLED: dict[str, Strategy] = {
    "Unroll": lambda theta: lg.Unroll(),
    "Unroll(checkpoint)": lambda theta: lg.Unroll(checkpoint="sqrt"),
    "Forward": lambda theta: lg.Forward(*theta),
}
FIXED_POINT: dict[str, Strategy] = {
    "Implicit(GMRES)": lambda theta: lg.Implicit(lg.GMRES(tol=1e-10)),
    "Implicit(BiCGStab)": lambda theta: lg.Implicit(lg.BiCGStab(tol=1e-10)),
    "Implicit(Direct)": lambda theta: lg.Implicit(lg.Direct()),
    "FixedPoint": lambda theta: lg.FixedPoint(terms=1000, tol=1e-10),
}
PIGGYBACK: dict[str, Strategy] = {
    "Piggyback": lambda theta: lg.Piggyback(iterations=2000, tol=1e-10)
}


def both_loss(problem: SmallProblem, solution: lg.Solution) -> Tensor:
    """A loss that looks at the dual variable too, flat at 0.

    The entries of a Gradient's dual that belong to no difference stay at their start, 0: they are
    arbitrary, so a loss with a slope there would ask for the derivative of an arbitrary number.
    """
    y = solution.y
    slope = torch.sin(1 + torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    return problem.loss(solution.x) + (slope * y * y).sum()


def over(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names)


def using(strategies: dict[str, Strategy]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("strategy", strategies.values(), ids=strategies.keys())


def gradient_by(
    strategy: Strategy, name: str, iterations: int, dtype: torch.dtype = torch.float64
) -> Theta:
    problem = by_name(name)
    theta = problem.leaves(dtype)
    solution = problem.solve(*theta, iterations=iterations, gradient=strategy(theta))
    return torch.autograd.grad(problem.loss(solution.x), theta)


@cache
def reference(name: str, iterations: int, strategy: str) -> Theta:
    """What float32 is held to, computed once."""
    return gradient_by((UNROLLED | FIXED_POINT)[strategy], name, iterations)


@cache
def differences(name: str, iterations: int, dual: bool) -> list[tuple[int, Tensor, float]]:
    """Central differences of the loss: parameter, direction, slope. All strategies share them."""
    problem = by_name(name)
    theta = [t.detach().clone() for t in problem.leaves()]
    found = []
    for k, original in enumerate([t.clone() for t in theta]):
        for seed in (10 * k + 1, 10 * k + 2):
            direction, ends = random(seed, *original.shape), []
            for size in (H, -H):
                theta[k] = original + size * direction
                with torch.no_grad():
                    solution = problem.solve(*theta, iterations=iterations)
                    loss = both_loss(problem, solution) if dual else problem.loss(solution.x)
                ends.append(float(loss))
            found.append((k, direction, (ends[0] - ends[1]) / (2 * H)))
        theta[k] = original
    return found


def check(
    strategy: Strategy, name: str, iterations: int, tolerance: float, dual: bool = False
) -> None:
    """Against differences, relative to gradient and direction; ``dual``: for a loss of y too."""
    problem = by_name(name)
    theta = problem.leaves()
    solution = problem.solve(*theta, iterations=iterations, gradient=strategy(theta))
    loss = both_loss(problem, solution) if dual else problem.loss(solution.x)
    found = torch.autograd.grad(loss, theta)
    if not dual:
        assert all(g.norm() > 1e-3 for g in found)  # else the comparison would say nothing
    rounding = 100 * torch.finfo(loss.dtype).eps / (2 * H) * float(loss.detach().abs())
    for k, direction, slope in differences(name, iterations, dual):
        error = abs(slope - float((found[k] * direction).sum())) - rounding
        assert error <= tolerance * max(abs(slope), float(found[k].norm() * direction.norm()))


def require_close(found: Theta, truth: Theta, bound: float) -> None:
    """Parameter by parameter: a wrong small one must not hide behind a large one."""
    for g, expected in zip(found, truth, strict=True):
        assert relative_error(g, expected) < bound


# --- the finite iteration -------------------------------------------------------------------------


@using(UNROLLED)
@over(PROBLEMS)
def test_unrolled_gradients_are_those_of_the_iteration(name: str, strategy: Strategy) -> None:
    check(strategy, name, STEPS, 1e-7)


@using(UNROLLED)
@over(PROBLEMS)
def test_unrolled_gradients_in_float32(name: str, strategy: Strategy) -> None:
    truth = reference(name, STEPS, "Unroll")
    found = gradient_by(strategy, name, STEPS, dtype=torch.float32)
    assert all(g.dtype == torch.float32 for g in found)
    require_close(found, truth, 1e-3)


@using(UNROLLED)
@over(SADDLES)
def test_unrolled_gradients_of_a_loss_of_the_dual(name: str, strategy: Strategy) -> None:
    check(strategy, name, STEPS, 1e-7, dual=True)


@using(UNROLLED)
@pytest.mark.parametrize("first", [0, 1])
def test_unrolled_gradients_of_the_average(first: int, strategy: Strategy) -> None:
    """The mean of the iterates."""
    original = by_name("potts")

    def solve(theta: Theta, gradient: lg.GradientStrategy) -> Tensor:
        problem, algorithm, x0 = original.build(*theta)
        averaged = lg.PrimalDual(
            algorithm.tau,
            algorithm.sigma,
            algorithm.geometry,
            algorithm.dual_geometry,
            average=lg.Average(first),
        )
        stop = lg.Stop(STEPS)
        return original.loss(lg.solve(problem, averaged, x0, gradient=gradient, stop=stop).x)

    theta = original.leaves()
    gradient = torch.autograd.grad(solve(theta, strategy(theta)), theta)
    errors = slope_errors(lambda: solve(theta, lg.Unroll()).detach(), theta, gradient)
    assert all(error < 1e-7 for error in errors)


# --- the solution ---------------------------------------------------------------------------------


@over(ISOLATED)
def test_solutions_are_converged_and_away_from_kinks(name: str) -> None:
    """Otherwise central differences would not be the truth."""
    problem = by_name(name)
    solution = problem.solve(*problem.parameters, iterations=problem.iterations)
    assert solution.residual < 1e-14
    for sign in (1, -1):
        moved = [t + sign * 1e-4 * random(11, *t.shape) for t in problem.parameters]
        other = problem.solve(*moved, iterations=problem.iterations)
        assert torch.equal(other.x.abs() > 1e-9, solution.x.abs() > 1e-9)
        if solution.y is not None:
            before, after = (s.y.abs() > 1e-9 for s in (solution, other))
            assert torch.equal(before, after)


@using(FIXED_POINT)
@over(ISOLATED)
def test_fixed_point_gradients_are_those_of_the_solution(name: str, strategy: Strategy) -> None:
    check(strategy, name, by_name(name).iterations, 1e-6)


@using(FIXED_POINT)
@over(ISOLATED)
def test_fixed_point_gradients_in_float32(name: str, strategy: Strategy) -> None:
    iterations = by_name(name).iterations
    truth = reference(name, iterations, "Implicit(GMRES)")
    found = gradient_by(strategy, name, iterations, dtype=torch.float32)
    assert all(g.dtype == torch.float32 for g in found)
    require_close(found, truth, 1e-3)


@using(FIXED_POINT | PIGGYBACK)
@over(SADDLES)
def test_fixed_point_gradients_of_a_loss_of_the_dual(name: str, strategy: Strategy) -> None:
    check(strategy, name, by_name(name).iterations, 1e-6, dual=True)


@over(SADDLES)
def test_piggyback(name: str) -> None:
    check(PIGGYBACK["Piggyback"], name, by_name(name).iterations, 1e-6)


@over(SADDLES)
def test_piggyback_in_float32(name: str) -> None:
    iterations = by_name(name).iterations
    truth = reference(name, iterations, "Implicit(GMRES)")
    found = gradient_by(PIGGYBACK["Piggyback"], name, iterations, dtype=torch.float32)
    require_close(found, truth, 1e-3)


@pytest.mark.filterwarnings("ignore::legato.errors.NonContractiveWarning")
@using(FIXED_POINT | PIGGYBACK)
def test_the_vertex_of_a_potts_problem_does_not_move(strategy: Strategy) -> None:
    """Without entropy the labelling is integral: its derivative is 0, and no NaN.

    The dual is not unique here; a strategy may say so, but must still deliver the truth.
    """
    problem = by_name("potts")
    for g in gradient_by(strategy, "potts", problem.iterations):
        assert g.abs().max() < 1e-8  # the last entry reaches its vertex up to 1e-12


@pytest.mark.parametrize("solver", [lg.GMRES(), lg.BiCGStab(), lg.Direct()])
def test_an_unfinished_solve_does_not_go_unnoticed(solver: lg.gradients.LinearSolver) -> None:
    """Changes of 5e-4 at a rate of 0.9999 are far from the end: the gradient has the wrong sign."""
    d = torch.tensor([1.0, 0.01], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0, 0.05], dtype=torch.float64)

    def gradient() -> Tensor:
        problem = lg.Composite(lg.LeastSquares(lg.Diagonal(d), b))
        plain = lg.ForwardBackward(inertia=0.0)
        few = lg.Stop(100)
        solution = lg.solve(problem, plain, gradient=lg.Implicit(solver), stop=few)
        return torch.autograd.grad(solution.x.sum(), d)[0]

    with pytest.warns(NotConvergedWarning):
        found = gradient()
    assert found[1] > 0 > -b[1] / d[1] ** 2  # what was found, and the truth
