"""How far the last iterate may still be from the solution that its gradient speaks of."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.telling import tell
from legato.errors import NotConvergedWarning
from legato.gradients.base import Linearisation
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm
from legato.gradients.outlook import FAR, Outlook, changes_now, growth, rows_of

_STEPS = 8
"""Further steps from which a rate is read; more of them see past the swinging of complex pairs."""
_AHEAD = 3.0
"""Changes in one direction lead further than this many of them in nine steps at any rate above
two thirds."""
_ROUNDING = 100.0
"""Changes up to so many eps may be rounding of a step whose terms cancel."""
_SLOWEST = 1 - 1e-6
"""Rates beyond count as this one: a drift at constant speed has no end in sight."""


def warn_if_far(
    linearisation: Linearisation,
    last_change: Tensor,
    result: LinearResult,
    xi: Tensor,
    outlook: Outlook,
) -> bool:
    r"""A small last change says little where the map contracts slowly.

    .. math:: ‖x − x^*‖ ≈ ‖(I − A_x)^{-1}\|\,‖𝒜(x) − x‖, \qquad
              ‖(I − A_x)^{-1}‖ ≥ ‖w‖/‖ξ‖,\; 1/(1 − ρ)

    The two are what any solve of (I − A_xᵀ)w = ξ shows of that norm, as far as ξ excites it; the
    rate at which the iteration itself goes on sees the rest, where a solver does not. Elements of a
    batch that the loss does not see have no gradient to be wrong.
    """
    reach = 1 / (1 - (result.spectral_radius or 0.0))
    least = max(10 * torch.finfo(xi.dtype).eps, (1 - _SLOWEST) * FAR)
    far = max(outlook.spread, reach * outlook.moved) > FAR
    # Where the radius is that of all of M, nothing is left to see; and far is far at any rate.
    slower = outlook.moved > least and not far and result.certain is None
    if not far and not slower:
        return False
    seen = norm(xi).reshape(-1)
    factor = known = torch.clamp(growth(result.solution, seen), min=reach)
    changes = changes_now(last_change, linearisation.present_change, seen)
    visible = changes > least
    if slower:
        rates = rows_of(rate_of_steps(linearisation), seen).clamp(max=_SLOWEST)
        factor = torch.where(visible, torch.maximum(factor, 1 / (1 - rates)), factor)
    distances = changes * factor
    if as_number(distances.amax()) > FAR and bool((factor > known).any()):
        # Few steps took it for slow: where primal and dual points take turns, more tell.
        rates = torch.minimum(rates, rows_of(lasting_rate(linearisation), seen))
        factor = torch.where(visible, torch.maximum(known, 1 / (1 - rates)), known)
        distances = changes * factor
    distance = as_number(distances.amax())
    if distance > FAR:
        worst = factor[distances.argmax()]
        tell(
            f"The last change was {distance / as_number(worst):.2e}, but at a rate of about "
            f"{1 - 1 / as_number(worst):.6g} the solution is still about {distance:.1e} away "
            "(relative), so the gradient is not that of the solution. Give Stop more iterations, "
            "or use Unroll().",
            NotConvergedWarning,
        )
    return distance > FAR


@torch.no_grad()
def rate_of_steps(linearisation: Linearisation) -> Tensor:
    """(‖x^{n+9} − x^{n+8}‖/‖x^{n+1} − x^n‖)^{1/8} of the points, for each element of a batch.

    0 where they are changed by rounding, which goes nowhere: ‖x^{n+9} − x^n‖ is no longer than
    one or two of its steps.
    """
    algorithm, batch = linearisation.algorithm, linearisation.rows.batch
    start, after = linearisation.state, tree.detach(linearisation.after)
    before, size = start, algorithm.size(start, batch)
    first = algorithm.residual(before, after, batch, size)
    for _ in range(_STEPS):
        before, after = after, algorithm.step(linearisation.problem, after)
    last = algorithm.residual(before, after, batch, size)
    gone = algorithm.residual(start, after, batch, size)
    # Points near 0 inside a large interval have the digits that its mirror coordinates leave.
    eps = torch.finfo(first.dtype).eps
    shaken = tree.tree_map(lambda t: t + eps * t.abs() if t.is_floating_point() else t, start)
    rounding = _ROUNDING * algorithm.residual(start, shaken, batch, size).clamp(min=eps)
    last = torch.where((first <= rounding) & (gone < _AHEAD * first), 0.0, last)
    return torch.where(first > 0, last / torch.where(first > 0, first, 1.0), 0.0) ** (1 / _STEPS)


@torch.no_grad()
def lasting_rate(linearisation: Linearisation) -> Tensor:
    """(max ‖x^{n+1} − x^n‖ late/the same early)^{1/32}, over sixteen steps each of 64.

    The largest of sixteen changes does not swing with complex pairs, as one of them does.
    """
    algorithm, batch = linearisation.algorithm, linearisation.rows.batch
    before, after = linearisation.state, tree.detach(linearisation.after)
    size, changes = algorithm.size(before, batch), []
    for _ in range(64):
        changes.append(algorithm.residual(before, after, batch, size))
        before, after = after, algorithm.step(linearisation.problem, after)
    early, late = (torch.stack(changes[k : k + 16]).amax(0) for k in (16, 48))
    return torch.where(early > 0, late / torch.where(early > 0, early, 1.0), 0.0) ** (1 / 32)
