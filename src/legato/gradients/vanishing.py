"""Iterates so small beside their start, or their dual, that a last change says nothing of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.telling import tell
from legato.algorithms import Algorithm
from legato.algorithms.base import norm_of
from legato.errors import NotConvergedWarning
from legato.gradients.base import Linearisation
from legato.gradients.bending import BENT
from legato.gradients.distance import rate_of_steps
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm, ratio
from legato.gradients.outlook import Outlook, rows_of, small_beside_dual, vanished

_MOST = 500
"""Further steps at most to find out where an iterate is going."""
_CLOSER = 1e-4
"""By which share of the way those steps come closer."""

_MULTIPLIED = 2.0
"""Growth in as many steps again that no iterate shows which has come close to its solution."""
_ON_ITS_WAY = 0.1
"""The share of its size by which one moves in as many steps again that is still on its way."""

Adjoint = Callable[[Linearisation, Tensor], LinearResult]


def warn_if_another_piece(
    adjoint: Adjoint,
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

    The same holds for an x far smaller than its dual, whose changes are small against the dual, or
    drown in its rounding. There steps go on that move each of the two by its own size.
    """
    if linearisation.algorithm.coordinates(linearisation.state):
        return
    if outlook.lost:
        _warn_beside_start(adjoint, linearisation, last_change, result, xi)
    if outlook.beside:
        _warn_beside_dual(adjoint, linearisation, result, xi)


def _warn_beside_start(
    adjoint: Adjoint, linearisation: Linearisation, last_change: Tensor, result: LinearResult,
    xi: Tensor,
) -> None:  # fmt: skip
    seen, present = norm(xi).reshape(-1), linearisation.present_change
    lost, present = vanished(last_change, present, seen), rows_of(present, seen)
    rate = as_number(rows_of(rate_of_steps(linearisation), seen)[lost].amax())
    count = math.ceil(math.log(_CLOSER) / math.log(rate)) if 0 < rate < 1 else _MOST
    algorithm, begun = linearisation.algorithm, tree.detach(linearisation.after)
    count = min(max(count, 1), _MOST)
    state = _later(linearisation, algorithm, begun, count)
    off = _difference(adjoint, linearisation, state, result, lost)
    if bool((_grows(linearisation, begun, state, count, seen) & lost).any()):
        off = math.inf
    if off > BENT:
        away = f"about {off:.0%}" if off < math.inf else "by an unknown amount"
        tell(
            "The start was so much larger than the solution that the last change, which is small "
            f"against the start, is {as_number(present[lost].amax()):.1e} of the present iterate, "
            f"and the gradient is {away} away from that of the solution. Give Stop a smaller tol, "
            "or a start of the solution's size.",
            NotConvergedWarning,
        )


def _warn_beside_dual(
    adjoint: Adjoint, linearisation: Linearisation, result: LinearResult, xi: Tensor
) -> None:
    batch, begun = linearisation.rows.batch, linearisation.state
    evened = linearisation.algorithm.evened(begun, batch)
    if evened is None:
        return
    seen = norm(xi).reshape(-1)
    small = small_beside_dual(linearisation.share, seen)
    state = _later(linearisation, evened, begun, 1)
    parts = ((read(begun), read(state)) for read in (evened.solution, evened.dual))
    moves = [rows_of(_change(old, new, batch), seen) for old, new in parts]
    small = small & (torch.stack(moves).amax(0) > _CLOSER)
    if not bool(small.any()):
        return
    state = _later(linearisation, evened, state, _MOST)
    off = _difference(adjoint, linearisation, state, result, small)
    if not off <= BENT:
        share = as_number(rows_of(linearisation.share, seen)[small].amin())
        tell(
            f"The solution is {share:.1e} times as large as its dual, to which the tolerance is "
            "relative: it has not arrived by its own size, and its gradient is not that of the "
            "solution. Give a start of the solution's size, or Stop a smaller tol.",
            NotConvergedWarning,
        )


@torch.no_grad()
def _later(
    linearisation: Linearisation, algorithm: Algorithm[Any, Any], state: Any, count: int
) -> Any:
    """The state some steps on, by this algorithm."""
    for _ in range(count):
        state = tree.detach(algorithm.step(linearisation.problem, state))
    return state


@torch.no_grad()
def _grows(
    linearisation: Linearisation, begun: Any, state: Any, count: int, seen: Tensor
) -> Tensor:
    """Which rows have multiplied in the last ``count`` steps, and still move by a share of that.

    A dual that grows at a constant speed has a long way to go, whatever its rate looked like.
    """
    algorithm, batch = linearisation.algorithm, linearisation.rows.batch
    larger = algorithm.size(state, batch) > _MULTIPLIED * algorithm.size(begun, batch)
    change = algorithm.residual(state, algorithm.step(linearisation.problem, state), batch)
    return rows_of((larger & (count * change > _ON_ITS_WAY)).to(seen), seen) > 0


@torch.no_grad()
def _change(old: Any, new: Any, batch: int) -> Tensor:
    """‖new − old‖/‖old‖, for each element of a batch."""
    size = norm_of(old, batch)
    return norm_of(tree.tree_map(torch.sub, new, old), batch) / torch.where(size > 0, size, 1.0)


def _difference(
    adjoint: Adjoint, linearisation: Linearisation, state: Any, result: LinearResult, rows: Tensor
) -> float:
    """‖w − w*‖/‖w‖ in some ``rows``, the largest, for w* at a state further on; 0 where small."""
    algorithm, shape = linearisation.algorithm, linearisation.rows
    ahead = Linearisation(linearisation.problem, algorithm, state, batch=shape.batch)

    def carried(v: Tensor) -> Tensor:
        return shape.flatten(algorithm.transport(linearisation.state, state, shape.unflatten(v)))

    w = torch.where(rows.reshape(norm(result.solution).shape), result.solution, 0.0)
    there = carried(w)
    turn = ahead.transposed(there) - carried(linearisation.transposed(w))
    if not bool((norm(turn) > 1e-3 * BENT * norm(there)).any()):
        return 0.0
    return as_number(ratio(norm(adjoint(ahead, turn).solution), norm(there)).amax())
