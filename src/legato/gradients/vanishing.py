"""Iterates that have become so small that their own size says nothing about the way left to go."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.telling import tell
from legato.errors import NotConvergedWarning
from legato.gradients.base import Linearisation
from legato.gradients.bending import BENT
from legato.gradients.distance import rate_of_steps
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm, ratio
from legato.gradients.outlook import Outlook, rows_of, vanished

_MOST = 500
"""Further steps at most to find out where an iterate is going."""
_CLOSER = 1e-4
"""By which share of the way those steps come closer."""


def warn_if_another_piece(
    adjoint: Callable[[Linearisation, Tensor], LinearResult],
    linearisation: Linearisation,
    last_change: Tensor,
    result: LinearResult,
    xi: Tensor,
    outlook: Outlook,
) -> None:
    r"""An iterate far smaller than its start looks the same near 0 and near a small solution.

    .. math:: w − w^* ≈ (I − M^*)^{-1} (M^* − M)\,w, \qquad M^* = A_x(x^{n+k})^⊤

    Its last change is small against the start and large against itself in both cases. In the first
    one its derivative is that of the solution, in the second it may lie beyond any number of kinks.
    So the iteration goes on, k steps, which its rate says are enough, and the derivatives are
    compared; it is zero for a map that is linear between the two. In a curved geometry points that
    tend to a boundary vanish for ever, and their cotangents with them: nothing is compared there.
    """
    if not outlook.lost or linearisation.algorithm.coordinates(linearisation.state):
        return
    seen, present = norm(xi).reshape(-1), linearisation.present_change
    lost, present = vanished(last_change, present, seen), rows_of(present, seen)
    rate = as_number(rows_of(rate_of_steps(linearisation), seen)[lost].amax())
    count = math.ceil(math.log(_CLOSER) / math.log(rate)) if 0 < rate < 1 else _MOST
    algorithm, rows = linearisation.algorithm, linearisation.rows
    state = tree.detach(linearisation.after)
    with torch.no_grad():
        for _ in range(min(max(count, 1), _MOST)):
            state = tree.detach(algorithm.step(linearisation.problem, state))
    ahead = Linearisation(linearisation.problem, algorithm, state, batch=rows.batch)

    def carried(v: Tensor) -> Tensor:
        return rows.flatten(algorithm.transport(linearisation.state, state, rows.unflatten(v)))

    w = torch.where(lost.reshape(norm(xi).shape), result.solution, 0.0)
    there = carried(w)
    turn = ahead.transposed(there) - carried(linearisation.transposed(w))
    if not bool((norm(turn) > 1e-3 * BENT * norm(there)).any()):
        return
    off = as_number(ratio(norm(adjoint(ahead, turn).solution), norm(there)).amax())
    if off > BENT:
        tell(
            "The start was so much larger than the solution that the last change, which is small "
            f"against the start, is {as_number(present[lost].amax()):.1e} of the present iterate, "
            f"and the gradient is about {off:.0%} away from that of the solution. Give Stop a "
            "smaller tol, or a start of the solution's size.",
            NotConvergedWarning,
        )
