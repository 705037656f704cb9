"""How far the last iterate may still be from the solution that its gradient speaks of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.rows import Rows
from legato._support.telling import tell
from legato.errors import NotConvergedWarning
from legato.gradients.base import Linearisation
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm
from legato.gradients.outlook import FAR, Outlook, changes_now, growth, rows_of
from legato.gradients.unseen import contracts, reach_of, rounding_of, seen_by

_STEPS = 8
"""Further steps from which a rate is read; more of them see past the swinging of complex pairs."""
_AHEAD = 3.0
"""Changes in one direction lead further than this many of them in nine steps at any rate above
two thirds."""
_ROUNDING = 100.0
"""Changes up to so many eps may be rounding of a step whose terms cancel."""
_FURTHER = 64
"""Steps after which a solution that was on its way may have arrived."""
_COMPARED = 16
"""Rows of a batch at most whose gradients are taken once more, one by one."""
_SAME = 1e-3
"""Relative difference of gradients that are the same."""
_SLOWEST = 1 - 1e-6
"""Rates beyond count as this one: a drift at constant speed has no end in sight."""


def warn_if_far(
    adjoint: Callable[[Linearisation, Tensor], LinearResult],
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
    batch that the loss does not see have no gradient to be wrong, nor has one whose further steps
    change nothing of it.
    """
    distances, factor = _distances(linearisation, last_change, result, xi, outlook)
    distance = as_number(distances.amax())
    if distance <= FAR:
        return False
    if _makes_no_difference(adjoint, linearisation, result, xi, distances > FAR):
        return False
    worst = factor[distances.argmax()]
    tell(
        f"The last change was {distance / as_number(worst):.2e}, but at a rate of about "
        f"{1 - 1 / as_number(worst):.6g} the solution is still about {distance:.1e} away "
        "(relative), so the gradient is not that of the solution. Give Stop more iterations, "
        "or use Unroll().",
        NotConvergedWarning,
    )
    return True


def _distances(
    linearisation: Linearisation, last_change: Tensor, result: LinearResult, xi: Tensor,
    outlook: Outlook,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The estimated distance of each row, and the factor of its last change in it."""
    reach = 1 / (1 - (result.spectral_radius or 0.0))
    least = max(10 * torch.finfo(xi.dtype).eps, (1 - _SLOWEST) * FAR)
    far = max(outlook.spread, reach * outlook.moved) > FAR
    # Where the radius is that of all of M, nothing is left to see; and far is far at any rate.
    slower = outlook.moved > least and not far and result.certain is None
    seen = norm(xi).reshape(-1)
    if not far and not slower:
        return torch.zeros_like(seen), torch.ones_like(seen)
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
    return distances, factor


@torch.no_grad()
def _goes_on(linearisation: Linearisation) -> Any:
    """The state some further steps on."""
    state = tree.detach(linearisation.after)
    for _ in range(_FURTHER):
        state = tree.detach(linearisation.algorithm.step(linearisation.problem, state))
    return state


def _makes_no_difference(
    adjoint: Callable[[Linearisation, Tensor], LinearResult],
    linearisation: Linearisation,
    result: LinearResult,
    xi: Tensor,
    far: Tensor,
) -> bool:
    r"""Whether the iteration arrives some steps later, with this x and this gradient.

    .. math:: A_θ(z^{n+k})^⊤ w^{n+k} = A_θ(z^n)^⊤ w^n

    A dual may be on its way where x is not, because a constraint or a vertex holds it: points of a
    polyhedron arrive in finitely many steps, of any length. Each row that is ``far`` is compared by
    itself, so that none hides behind a larger one.
    """
    algorithm, rows = linearisation.algorithm, linearisation.rows
    chosen = far.nonzero().flatten().tolist()
    if algorithm.coordinates(linearisation.state) or len(chosen) > _COMPARED:
        return False
    state = _goes_on(linearisation)
    ahead = Linearisation(linearisation.problem, algorithm, state, batch=rows.batch)
    found = adjoint(ahead, xi)
    if not found.converged or not contracts(ahead, found):
        return False
    outlook = Outlook.after(ahead, ahead.present_change, found, xi)
    distances, _ = _distances(ahead, ahead.present_change, found, xi, outlook)
    if bool((distances[far] > FAR).any()):
        return False
    here, there = (algorithm.solution(s) for s in (linearisation.state, state))
    x = Rows(there, rows.batch)
    moved = norm(x.flatten(there) - x.flatten(here)) > FAR * norm(x.flatten(there))
    if bool((rows_of(moved.to(xi), norm(xi).reshape(-1))[far] > 0).any()):
        return False
    parameters = linearisation.other_leaves()
    if {id(t) for t in parameters} != {id(t) for t in ahead.other_leaves()}:
        return False
    for number in chosen:
        only = (torch.arange(len(far), device=far.device) == number).reshape(norm(xi).shape)
        now, later = (torch.where(only, w, 0.0) for w in (result.solution, found.solution))
        try:
            before, after = (
                seen_by(parameters, linearisation, now),
                seen_by(parameters, ahead, later),
            )
        except RuntimeError:  # what lies in front may not let itself be asked, as some checkpoints
            return False
        rounding = rounding_of(ahead, later).amax()
        for parameter, old, new in zip(parameters, before, after, strict=True):
            change = torch.linalg.vector_norm(new - old)
            same = change <= _SAME * torch.linalg.vector_norm(new)
            if not bool(same | (change * reach_of(ahead, parameter).amax() <= rounding)):
                return False
    return True


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
