"""The laws of algorithms: pure maps on states that start, stop and go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.holding import held_tensors
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import DomainError, LegatoError
from legato.running import Stop, batch_of
from legato.solving import Solution, solve, solve_silently
from legato.testing.report import Measured, Report, hold, skip
from legato.testing.sampling import apart, replica

Method = Algorithm[Any, Any]
SOLVED = Stop(5000, tol=1e-12)
"""When a problem of this size counts as solved."""


@torch.no_grad()
def check_algorithm(
    algorithm: Method,
    problem: Any,
    x0: Var | None = None,
    singles: Sequence[Any] = (),
    stop: Stop = SOLVED,
) -> Report:
    """Check the laws of an algorithm on a float64 problem with one solution, x* = 𝒜(x*).

    Raises a :class:`~legato.errors.LawError` for the first law that does not hold.

    Args:
        algorithm: what is checked.
        problem: a problem that it solves.
        x0: a start, where the problem's data do not tell one.
        singles: the elements of a batch as problems of their own, to compare with.
        stop: until when it solves.

    >>> A, b = torch.eye(2).double(), torch.tensor([3.0, 0.5]).double()
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> legato.testing.check_algorithm(lg.ForwardBackward(), problem)["pure step"]
    0.0
    """
    laws = (
        pure_step(algorithm, problem, x0),
        fixed_point(algorithm, problem, x0, stop),
        fresh_start(algorithm, problem, x0, stop),
        going_on(algorithm, problem, x0),
        separate_elements(algorithm, problem, x0),
        singly(algorithm, problem, x0, singles),
    )
    return Report(f"{algorithm!r} on {problem!r}", laws)


def pure_step(algorithm: Method, problem: Any, x0: Var | None) -> Measured:
    """The same state gives the same result, and neither state nor problem is changed."""
    state = algorithm.init(problem, x0)
    for _ in range(3):
        state = algorithm.step(problem, state)
    held = tuple(h.tensor for h in held_tensors(problem))
    before = tree.copy((state, held))
    first = tree.copy(algorithm.step(problem, state))
    errors = [float(not tree.equal((state, held), before))]
    errors.append(apart(first, algorithm.step(problem, state)))
    look = "step() writes into its state or its problem, or remembers something from call to call."
    return hold("pure step", errors, 0, look)


def fixed_point(algorithm: Method, problem: Any, x0: Var | None, stop: Stop) -> Measured:
    """At a solution the fixed-point map stands still, and stands for the same solution."""
    found = solve_silently(problem, algorithm, x0, stop=stop)
    map_, reduced = algorithm.fixed_point_map(found.state)
    after = map_.step(problem, reduced)
    merged = algorithm.with_variables(found.state, after)
    moved = apart(map_.points(after), map_.points(reduced))
    lost = apart(algorithm.points(merged), map_.points(after))
    look = "Look at fixed_point_map(): another fixed point, other steps, or a momentum kept."
    return hold("fixed point", [moved, lost], max(1e-8, 10 * _residual(found)), look)


def fresh_start(algorithm: Method, problem: Any, x0: Var | None, stop: Stop) -> Measured:
    """A state of another problem is only a start: it leads to the same solution as a point."""
    law = "fresh start"
    state = solve_silently(problem, algorithm, x0, stop=stop).state
    truth = _scaled_solution(algorithm, problem, x0, stop)
    if truth is None:
        return skip(law, "no scaled copy of the problem is solved from scratch")
    errors = []
    for start in (state, algorithm.solution(state)):
        try:
            found = solve_silently(truth.problem, truth.algorithm, start, stop=stop)
            errors.append(apart(found.x, truth.x))
        except DomainError:  # a point that has reached the boundary is no start
            continue
        except LegatoError:  # as a divergence with steps that do not fit
            errors.append(torch.inf)
    look = "Look at resume(): it must take the variables of a state only, and derive steps anew."
    return hold(law, errors, max(1e-6, 100 * _residual(truth)), look)


def _scaled_solution(algorithm: Method, problem: Any, x0: Any, stop: Stop) -> Solution | None:
    """The solution of a copy of the problem whose tensors are scaled, where it is found."""
    for factor in (1.42, 1 / 1.42):  # where fixed steps do not allow for larger data, smaller ones
        # Copied together: a kernel in the problem may be that of the algorithm's geometry.
        (other, same), _ = replica((problem, algorithm))
        for held in {id(h.tensor): h.tensor for h in held_tensors(other)}.values():
            if held.is_floating_point() or held.is_complex():
                held.mul_(factor)
        try:
            found = solve_silently(other, same, x0, stop=stop)
        except LegatoError:
            continue
        if _residual(found) < 1e-8:
            return found
    return None


def _residual(solution: Solution) -> float:
    return float(solution.residual.amax())


def going_on(algorithm: Method, problem: Any, x0: Var | None) -> Measured:
    """A solve that is interrupted and goes on is as one that was not."""
    whole = solve(problem, algorithm, x0, stop=Stop(20))
    half = solve(problem, algorithm, x0, stop=Stop(8))
    again = algorithm.steps(problem, algorithm.proceed(problem, half.state))
    if repr(again) != repr(half.steps):
        return skip("going on", "its line search begins again")
    rest = solve(problem, algorithm, half, stop=Stop(12))
    look = "Look at proceed(): momentum, averages and counters have to go on too."
    return hold("going on", [apart(rest.x, whole.x)], 1e-8, look)


def separate_elements(algorithm: Method, problem: Any, x0: Var | None) -> Measured:
    """Another start in one element of a batch changes nothing in the others."""
    law = "separate elements"
    state = algorithm.init(problem, x0)
    start, batch = algorithm.solution(state), batch_of(problem, algorithm, state)
    if batch == 0 or isinstance(start, tuple):
        return skip(law, "the problem has no batch")

    def end(start: Var, iterations: int = 30) -> Tensor:
        found = solve(problem, algorithm, start, stop=Stop(iterations)).x
        return found.flatten(0, batch - 1)

    usual, later, errors = end(start), end(start, 10), []
    for k in range(min(4, len(usual))):
        elsewhere = start.flatten(0, batch - 1).clone()
        elsewhere[k] = later[k]
        found = end(elsewhere.reshape(start.shape))
        found[k] = usual[k]
        errors.append(apart(found, usual))
    look = "Steps, restarts or line searches of one element depend on the others."
    return hold(law, errors, 1e-12, look)


def singly(algorithm: Method, problem: Any, x0: Var | None, singles: Sequence[Any]) -> Measured:
    """The iterates of a batch are those of its elements."""
    if not singles:
        return skip("batch = elements", "no problems for the elements were given")
    together, errors = solve(problem, algorithm, x0, stop=Stop(40)), []
    for k, single in enumerate(singles):
        alone = solve(single, algorithm, None if x0 is None else x0[k], stop=Stop(40))
        errors.append(apart(together.x[k], alone.x))
        errors.append(apart(together.residual[k], alone.residual))
    look = "Steps, restarts or line searches of one element depend on the others."
    return hold("batch = elements", errors, 1e-9, look)
