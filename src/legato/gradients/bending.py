"""How much the derivative of the step still changes between the last iterate and the solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.telling import tell
from legato.errors import NotConvergedWarning
from legato.gradients.base import Linearisation
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm, ratio
from legato.gradients.outlook import VANISHED, Outlook, rows_of
from legato.running import MOVES

BENT = 0.01
"""Estimated relative error of a gradient from which on a word is said."""
_STEPS = 8
"""Further steps from which it is read how fast cotangents still move with the points."""
_ROUNDING = 100.0
"""So many eps of a cotangent may be what rounding of mirror coordinates makes of it."""
_CURVATURE = 100.0
"""A step moves the derivative by at most so many times its own length, as a rule: what stays below
BENT even then is not looked at."""


def warn_if_bent(
    adjoint: Callable[[Linearisation, Tensor], LinearResult],
    linearisation: Linearisation,
    last_change: Tensor,
    result: LinearResult,
    xi: Tensor,
    outlook: Outlook,
    start: Any,
) -> None:
    r"""A point close to the solution may still be far in its derivative, where the map is curved.

    .. math:: w − w^* ≈ w − T_∞ w + (I − M)^{-1} \sum_{k ≥ 0} (M_{k+1} − M_k)\,w,
              \qquad M_k = A_x(x^{n+k})^⊤

    The first of these differences is computed, between the last iterate and one more step; the
    others shrink like the steps, at the rate ρ. It is zero for a map that is linear in pieces. Near
    the boundary of a curved geometry, where the iteration is slow, it decides. There cotangents of
    mirror coordinates shrink with the points, to nothing where these reach the boundary: T_k
    carries them to where the iteration is k steps later. ``adjoint`` solves
    the system once more, where a bound is not small enough. Where points vanish beside what they
    were, so does their gradient, and so do cotangents at a face that has been reached, beside what
    they are at the ``start``: the error of it is no share of itself.
    Reference: the implicit function theorem, to first order.
    """
    radius = result.spectral_radius
    reach = 1 / (1 - (radius or 0.0))
    if not _CURVATURE * reach * max(outlook.bent, reach * outlook.turned) > BENT:
        return
    w, seen = result.solution, norm(xi)
    gain = torch.clamp(ratio(norm(w), seen), min=reach)
    changes = last_change.reshape(-1) if last_change.numel() == seen.numel() else last_change.amax()
    changes = torch.where(seen.reshape(-1) > 0, changes.to(w), 0.0)
    if linearisation.algorithm.coordinates(linearisation.state):
        present = rows_of(linearisation.present_change, seen.reshape(-1))
        gone = (present > MOVES) & (present >= VANISHED * changes)
        changes = torch.where(gone, 0.0, changes)
        if not bool((_CURVATURE * changes * reach * gain.reshape(-1) > BENT).any()):
            return
    rows = linearisation.rows

    def carried(v: Tensor) -> Tensor:
        return rows.flatten(linearisation.transport(rows.unflatten(v)))

    ahead = Linearisation(
        linearisation.problem,
        linearisation.algorithm,
        tree.detach(linearisation.after),
        batch=rows.batch,
    )
    there = carried(w)
    inside = rows.flatten(ahead.algorithm.transport(ahead.state, start, rows.unflatten(there)))
    left = norm(there) > _ROUNDING * torch.finfo(w.dtype).eps * norm(inside)
    changes = torch.where(left.reshape(-1), changes, 0.0)
    if not bool((changes > 0).any()):
        return
    turn = ahead.transposed(there) - carried(linearisation.transposed(w))
    moving = _moves_on(ahead, w, there, reach)
    if moving is None and not bool((reach * gain * norm(turn) > BENT * norm(there)).any()):
        return  # whichever way it points
    error = reach * adjoint(ahead, turn).solution
    error = error if moving is None else error + moving
    shares = ratio(norm(error), norm(there)).reshape(-1)
    off = as_number(torch.where(changes > 0, shares, 0.0).amax())
    if off > BENT:
        rate = "" if radius is None else f" at a rate of about {radius:.6g}"
        # More than all of it says that a first order is not enough, not how much it is.
        share = f"about {off:.0%}" if off < 1 else "perhaps all of its size"
        tell(
            f"The derivative of the step still changes from one iterate to the next,{rate}: the "
            f"gradient is {share} away from that of the solution, although the last change "
            f"was only {as_number(changes.amax()):.1e}. Give Stop more iterations, or use "
            "Unroll(), which is exact for those that were taken.",
            NotConvergedWarning,
        )


@torch.no_grad()
def _moves_on(ahead: Linearisation, w: Tensor, there: Tensor, reach: float) -> Tensor | None:
    r"""T_∞w − w, None where it counts for nothing; ``there`` is T₁w.

    .. math:: T_∞ w − w ≈ \frac{T_1 w − w}{1 − q}, \qquad
              q^8 = \frac{‖T_9 w − T_8 w‖}{‖T_1 w − w‖}
    """
    change = there - w
    first, least = norm(change), _ROUNDING * torch.finfo(w.dtype).eps
    counts = (first > least * norm(w)) & (reach * first > BENT * norm(w))
    if not bool(counts.any()):
        return None
    algorithm, rows, state = ahead.algorithm, ahead.rows, ahead.state
    before = now = there
    for _ in range(_STEPS):
        after = tree.detach(algorithm.step(ahead.problem, state))
        carried = algorithm.transport(state, after, rows.unflatten(now))
        before, now, state = now, rows.flatten(carried), after
    rate = ratio(norm(now - before), first) ** (1 / _STEPS)
    # No longer than at the rate of the map, which is that of all directions.
    return torch.where(counts, change / (1 - rate).clamp(min=1 / reach), 0.0)
