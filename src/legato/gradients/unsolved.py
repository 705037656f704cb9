"""What is said about a solve that has not arrived, and what would help."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from legato._support.checks import as_number
from legato._support.telling import tell
from legato.algorithms import Algorithm
from legato.errors import NotConvergedWarning
from legato.running import Stop, most

MOVING = 1e-4
"""Residual above which 100 iterations by default have not arrived: as many again may move x by a
hundredth of its size."""

STANDING = 1e-6
"""Residual up to which a missed tolerance is told by ``solution.converged`` alone: x stands still
for most purposes, and rounding may be in the way of more."""


class Solved(Protocol):
    """What a solve says of itself."""

    problem: Any
    algorithm: Algorithm[Any, Any]
    state: Any
    iterations: int | Tensor
    residual: Tensor
    converged: Tensor | bool | None


def warn_if_moving(done: Solved) -> None:
    """Warn where the number of iterations was nobody's choice and has not been enough.

    Reading the residual makes a GPU wait once, at the end.
    """
    residual = as_number(done.residual.amax())
    if residual > MOVING:
        tell(
            f"{most(done.iterations)} iterations, the default, have not solved this problem: the "
            f"last one still moved the solution by {residual:.1e} of its size. Its derivative is "
            "that of these iterations. Give more of them, e.g. stop=Stop(10000, tol=1e-6)"
            f"{cures(done.problem, done.algorithm, done.state)}. If these are what you want, write "
            f"stop=Stop({most(done.iterations)}).",
            NotConvergedWarning,
        )


def warn_if_missed(done: Solved, tol: float | None) -> None:
    """Warn where a tolerance was asked for and x still moves."""
    if tol is None:
        return
    residual = as_number(done.residual.amax())
    if residual > max(tol, STANDING):
        tell(
            f"The solve ended after {most(done.iterations)} iterations with residual "
            f"{residual:.1e} > {tol:.0e}. Give Stop more iterations or a looser tol"
            f"{cures(done.problem, done.algorithm, done.state)}. If you want these iterations, "
            "leave tol out.",
            NotConvergedWarning,
        )
    elif residual <= tol and not arrived(done.converged):
        tell(still_vanishing(done.iterations, done.residual), NotConvergedWarning)


def arrived(converged: Tensor | bool | None) -> bool:
    """Whether every element of a batch has, as far as anybody asked."""
    return converged is None or bool(torch.as_tensor(converged).all())


def still_vanishing(iterations: int | Tensor, residual: Tensor) -> str:
    """Words for points whose last change is small beside what they were, and large beside them."""
    return (
        f"The solve ended after {most(iterations)} iterations with residual "
        f"{as_number(residual.amax()):.1e}, which is relative to the largest iterate, but "
        "points that are far smaller by now, or at a boundary, still move, against their own size. "
        "Give Stop more iterations, or a start of the solution's size."
    )


def warn_if_limited(done: Solved, stop: Stop) -> None:
    """Warn where limit and tolerance were nobody's choice, and the limit came first."""
    if stop.tol is None or bool(torch.as_tensor(done.converged).all()):
        return
    residual = as_number(done.residual.amax())
    why = f"residual {residual:.1e} > {stop.tol:.0e}, the default tolerance"
    if residual <= stop.tol:
        why = "entries at a boundary, or far smaller than they were, still move by their own size"
    tell(
        f"{most(done.iterations)} iterations, the default limit, have not solved this problem: "
        f"{why}. Choose both, e.g. stop=Stop({10 * stop.iterations}, tol=1e-6)"
        f"{cures(done.problem, done.algorithm, done.state)}.",
        NotConvergedWarning,
    )


def cures(problem: Any, algorithm: Algorithm[Any, Any], state: Any) -> str:
    """What makes this iteration faster, to stand after "more iterations"."""
    remedy = algorithm.remedy(problem, state)
    return f"; {remedy}" if remedy else ""
