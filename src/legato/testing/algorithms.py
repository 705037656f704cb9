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
from legato.errors import DomainError, LawError, LegatoError
from legato.running import Stop, batch_of
from legato.solving import Solution, solve
from legato.testing.report import Measured, Report, hold, skip, worst
from legato.testing.sampling import apart, replica

UNTIL = Stop(5000, tol=1e-12)


def check_algorithm(
    algorithm: Algorithm[Any, Any],
    problem: Any,
    x0: Var | None = None,
    singles: Sequence[Any] = (),
    stop: Stop = UNTIL,
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
    laws = (pure_step, fixed_point, fresh_start, going_on)
    measured = [law(algorithm, problem, x0, stop) for law in laws]
    measured.append(separate_elements(algorithm, problem, x0))
    measured.append(singly(algorithm, problem, x0, singles))
    return Report(f"{algorithm!r} on {problem!r}", tuple(measured))


def pure_step(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None = None, stop: Stop = UNTIL
) -> Measured:
    """The same state gives the same result, and neither state nor problem is changed."""
    with torch.no_grad():
        state = algorithm.init(problem, x0)
        for _ in range(3):
            state = algorithm.step(problem, state)
        held = tuple(h.tensor for h in held_tensors(problem))
        before = tree.copy((state, held))
        first = tree.copy(algorithm.step(problem, state))
        changed = 0.0 if tree.equal((state, held), before) else 1.0
        second = algorithm.step(problem, state)
    error = worst([changed, apart(first, second)])
    look = "step() writes into its state or its problem, or remembers something from call to call."
    return hold("pure step", error, 0, look)


def fixed_point(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None = None, stop: Stop = UNTIL
) -> Measured:
    """At a solution the fixed-point map stands still, and stands for the same solution."""
    with torch.no_grad():
        found = solve(problem, algorithm, x0, stop=stop)
        map_, reduced = algorithm.fixed_point_map(found.state)
        after = map_.step(problem, reduced)
        merged = algorithm.with_variables(found.state, after)
        moved = apart(map_.points(after), map_.points(reduced))
        lost = apart(algorithm.points(merged), map_.points(after))
    bound = max(1e-8, 10 * float(found.residual.amax()))
    look = "Look at fixed_point_map(): another fixed point, other steps, or a momentum kept."
    return hold("fixed point", worst([moved, lost]), bound, look)


def fresh_start(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None = None, stop: Stop = UNTIL
) -> Measured:
    """A state of another problem is only a start: it leads to the same solution as a point."""
    law = "fresh start"
    with torch.no_grad():
        state = solve(problem, algorithm, x0, stop=stop).state
        scaled = _scaled(algorithm, problem, x0, stop)
        if scaled is None:
            return skip(law, "no scaled copy of the problem is solved from scratch")
        other, truth = scaled
        starts = [state, algorithm.solution(state)]
        try:
            ends = [_solved(other, truth.algorithm, start, stop) for start in starts]
        except LegatoError as error:
            raise LawError(
                f"The law “{law}” does not hold: from the state of another problem the solve fails "
                f"({error}). Look at resume(): steps must be derived again."
            ) from error
    error = worst([apart(end.x, truth.x) for end in ends if end is not None])
    look = "Look at resume(): it must take the variables of a state only, and derive steps anew."
    return hold(law, error, max(1e-6, 100 * float(truth.residual.amax())), look)


def _scaled(algorithm: Any, problem: Any, x0: Any, stop: Stop) -> tuple[Any, Solution] | None:
    """A copy of the problem with all its tensors scaled, such that the algorithm solves it."""
    for factor in (1.42, 1 / 1.42):  # where fixed steps do not allow for larger data, smaller ones
        # Copied together: a kernel in the problem may be that of the algorithm's geometry.
        (other, same), _ = replica((problem, algorithm))
        for held in {id(h.tensor): h.tensor for h in held_tensors(other)}.values():
            held.mul_(factor if held.is_floating_point() else 1)
        try:
            found = solve(other, same, x0, stop=stop)
        except LegatoError:
            continue
        if float(found.residual.amax()) < 1e-8:
            return other, found
    return None


def _solved(problem: Any, algorithm: Any, start: Any, stop: Stop) -> Solution | None:
    try:
        return solve(problem, algorithm, start, stop=stop)
    except DomainError:  # a point that has reached the boundary is no start
        return None


def going_on(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None = None, stop: Stop = UNTIL
) -> Measured:
    """A solve that is interrupted and goes on is as one that was not."""
    law = "going on"
    with torch.no_grad():
        whole = solve(problem, algorithm, x0, stop=Stop(20))
        half = solve(problem, algorithm, x0, stop=Stop(8))
        again = algorithm.steps(problem, algorithm.proceed(problem, half.state))
        if apart(_numbers(again), _numbers(half.steps)) > 1e-9:
            return skip(law, "its line search begins again")
        rest = solve(problem, algorithm, half, stop=Stop(12))
    look = "Look at proceed(): momentum, averages and counters have to go on too."
    return hold(law, apart(rest.x, whole.x), 1e-8, look)


def _numbers(steps: dict[str, Any]) -> Any:
    values = [v for v in steps.values() if isinstance(v, (Tensor, float, tuple))]
    return (torch.zeros(1), *(_as_tensors(v) for v in values))


def _as_tensors(value: Any) -> Any:
    return tree.tree_map(lambda t: torch.as_tensor(t).detach(), value)


def separate_elements(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None = None
) -> Measured:
    """Another start in one element of a batch changes nothing in the others."""
    law = "separate elements"
    with torch.no_grad():
        start = algorithm.solution(algorithm.init(problem, x0))
        batch = batch_of(problem, algorithm, algorithm.init(problem, x0))
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
    return hold(law, worst(errors), 1e-12, look)


def singly(
    algorithm: Algorithm[Any, Any], problem: Any, x0: Var | None, singles: Sequence[Any]
) -> Measured:
    """The iterates of a batch are those of its elements."""
    law = "batch = elements"
    if not singles:
        return skip(law, "no problems for the elements were given")
    with torch.no_grad():
        together = solve(problem, algorithm, x0, stop=Stop(40))
        errors = []
        for k, single in enumerate(singles):
            alone = solve(single, algorithm, None if x0 is None else x0[k], stop=Stop(40))
            errors.append(apart(together.x[k], alone.x))
            errors.append(apart(together.residual[k], alone.residual))
    look = "Steps, restarts or line searches of one element depend on the others."
    return hold(law, worst(errors), 1e-9, look)
