"""What Unroll asks of a fused layer: where gradients begin, and where iterates are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from legato._support import tree
from legato._support.checks import is_concrete
from legato._support.precision import full_precision
from legato.algorithms import Algorithm
from legato.errors import InputError
from legato.gradients import Backward, GradientStrategy, Task, Unroll
from legato.running import Stop


class Schedule(NamedTuple):
    """``skipped`` iterations without gradients, ``attached`` with them, marks every so many."""

    skipped: int
    attached: int
    checkpoint: int | None


def schedule(gradient: Unroll, iterations: int) -> Schedule:
    """The part of a solve that is differentiated, and the distance of its checkpoints."""
    attached = gradient.attached(iterations)
    return Schedule(iterations - attached, attached, gradient.interval(attached))


def iterate_from(
    problem: Any,
    algorithm: Algorithm[Any, Any],
    state: Any,
    iterations: int,
    gradient: GradientStrategy,
) -> Any:
    """The state after some iterations, from one with its momentum and averages.

    :func:`legato.solve` takes a state as a start only, and would begin them anew.
    """
    with full_precision():
        task = Task(problem, algorithm, state, Stop(iterations), None, Backward())
        found = gradient.differentiate(task).state
    if is_concrete():
        algorithm.require_sound(tree.detach(found))
    return found


def sections(iterations: int, length: int) -> list[tuple[int, int]]:
    """Where each section of a solve begins and how many iterations it has; 0 means one section."""
    length = length or iterations
    return [(start, min(length, iterations - start)) for start in range(0, iterations, length)]


def require_strategy(gradient: GradientStrategy, layer: str) -> None:
    """Refuse what is no strategy, and what no fused layer can unroll."""
    if not isinstance(gradient, GradientStrategy):
        raise InputError(f"gradient must be a strategy such as Unroll(), not {gradient!r}.")
    if isinstance(gradient, Unroll):
        if gradient.checkpoint is not None and gradient.last is not None:
            raise InputError(f"{layer} takes Unroll(last=…) or Unroll(checkpoint=…), not both.")
        if gradient.tol is not None:
            raise InputError(f"{layer} does not take Unroll(tol=…): choose last=K.")
