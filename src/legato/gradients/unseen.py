"""Whether what the fixed-point equation leaves open is of any consequence to a gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legato._support import tree
from legato.gradients.base import Linearisation, pull_back
from legato.gradients.linear import GMRES, LinearResult
from legato.gradients.linear.base import norm, ratio
from legato.gradients.linear.spectrum import random_vector, spectral_radius

SEEN = 1e-4
"""Share of a parameter's gradient that may be undetermined without a word."""

_DIGITS = 10.0
"""So many eps of a point, moved by a change of θ as large as θ, are rounding."""

_PRODUCTS = 20
"""Products that may be spent on looking for what the solve did not see, beyond twice its own."""

_BLURRED = 1e-2
"""How far from 1 power iteration may still read an eigenvalue 1: what else its start holds has to
decay first."""


def contracts(linearisation: Linearisation, result: LinearResult) -> bool:
    """Whether A_x contracts at its solution, as far as the gradient sees it.

    The radius of the result becomes that of power iteration where its own is next to 1, and None
    where there is an eigenvalue 1 that nobody sees: that of what the gradient sees is not known.
    """
    # Residuals and radii are known to rounding only; √eps is what rounding makes of a double
    # eigenvalue 1, which two equal columns have.
    limit = 1 - (result.certain or math.sqrt(torch.finfo(result.solution.dtype).eps))
    if result.spectral_radius is None or result.spectral_radius <= limit:
        return True
    if not result.converged:
        return False
    # Ritz values of a non-normal map may leave its spectrum: ask power iteration.
    radius = spectral_radius(linearisation.transposed, result.solution)
    result.spectral_radius = radius
    if radius <= 1 - _BLURRED:
        return True
    if not leaves_gradient_open(linearisation, result):
        result.spectral_radius = None
        return True
    return radius <= limit


def leaves_gradient_open(linearisation: Linearisation, result: LinearResult) -> bool:
    r"""Whether solutions w of (I − M)w = ξ, of which there are many, differ in what θ sees.

    .. math:: w + n \text{ solves it too where } Mn = n; \qquad
              A_θ^⊤ (w + n) = A_θ^⊤ w \text{ for all of them, or not}

    A dual that is not unique makes M have the eigenvalue 1, and does no harm to the gradient where
    neither ξ (the system was solved) nor θ sees it. One n is drawn at random from the null space;
    what does not touch it touches, almost surely, none. True where no n was found.
    Reference: the Fredholm alternative.
    """
    M, w = linearisation.transposed, result.solution
    eps = torch.finfo(w.dtype).eps
    rounding = math.sqrt(eps)
    r = random_vector(w)
    # What is left of r − Mr belongs to no n, and θ sees it: it has to be small beside what counts.
    found = GMRES(tol=eps**0.75).solve(M, r - M(r))
    n = r - found.solution
    along = norm(n) > rounding * norm(r)
    if not found.residual <= 2 * rounding or not bool(along.any()):
        return True
    return _is_seen(linearisation, w, n, r, along)


def holds_unseen(linearisation: Linearisation, result: LinearResult) -> bool:
    r"""Whether there is an n = Mn that ξ does not excite and θ sees, as far as little work tells.

    A solve of (I − M)w = ξ moves in the Krylov space of ξ and finds nothing of an eigenvalue 1
    outside of it: the dual of an edge of weight 0, two equal columns of which the loss sees the
    sum. It converges, to one of many w, and each makes another gradient of a weight or a column.
    So n is looked for as above, in no more than some products, and is said to be one only if it is
    one to the last digits.
    """
    M, w = linearisation.transposed, result.solution
    eps = torch.finfo(w.dtype).eps
    r = random_vector(w)
    most = 2 * result.iterations + _PRODUCTS
    found = GMRES(tol=100 * eps, restart=min(most, 50), iterations=most).solve(M, r - M(r))
    n = r - found.solution
    left = norm(n - M(n))
    along = (norm(n) > 1e-4 * norm(r)) & (left <= eps**0.75 * norm(n)) & (norm(w) > 0)
    return bool(along.any()) and _is_seen(linearisation, w, n, r, along)


def _is_seen(linearisation: Linearisation, w: Tensor, n: Tensor, r: Tensor, along: Tensor) -> bool:
    """Whether any gradient A_θᵀw changes along n, in the rows ``along`` which there is one."""
    rounding = math.sqrt(torch.finfo(w.dtype).eps)
    # Elements of a batch without such an n stay out: one of them may have a much larger gradient.
    parts = n * ratio(norm(w), norm(n)), w, r * ratio(norm(w), norm(r))
    leaves = linearisation.other_leaves()
    try:
        seen = [seen_by(leaves, linearisation, torch.where(along, v, 0.0)) for v in parts]
    except RuntimeError:  # what lies in front may not let itself be asked, as some checkpoints
        return True
    sizes = zip(
        *([_sizes(linearisation, t) for t in tensors] for tensors in seen),
        [reach_of(linearisation, t) for t in leaves],
        strict=True,
    )
    moved = rounding_of(linearisation, torch.where(along, w, 0.0))
    return any(
        # A gradient of 0 is one up to the rounding of what cancels in it, and of the point.
        bool(
            (
                (open_part > SEEN * gradient + rounding * any_other)
                & (open_part * reach > (moved if open_part.ndim else moved.amax()))
            ).any()
        )
        for open_part, gradient, any_other, reach in sizes
    )


def rounding_of(linearisation: Linearisation, w: Tensor) -> Tensor:
    """What rounding of the point makes of ⟨w, 𝒜(x)⟩, for each row."""
    point = norm(linearisation.rows.flatten(linearisation.after))
    return (_DIGITS * torch.finfo(w.dtype).eps * norm(w) * point).reshape(-1)


def reach_of(linearisation: Linearisation, parameter: Tensor) -> Tensor:
    """How far a parameter may move: by its own size, or any way where it holds a 0."""
    size = _sizes(linearisation, parameter)
    return size if bool((parameter != 0).all()) else torch.full_like(size, torch.inf)


def _sizes(linearisation: Linearisation, gradient: Tensor) -> Tensor:
    """The norm of a parameter's gradient, for each element where it has the axes of the batch."""
    batch = linearisation.rows.batch
    axes = tree.leaves(linearisation.state)[0].shape[:batch]
    own = linearisation.rows.count and gradient.shape[:batch] == axes
    return torch.linalg.vector_norm(
        gradient.reshape(*linearisation.rows.count if own else (), -1), dim=-1
    )


def seen_by(parameters: list[Tensor], linearisation: Linearisation, v: Tensor) -> list[Tensor]:
    """A_θᵀv for each θ, leaves that the step depends on."""
    cotangents = tree.leaves(linearisation.transport(linearisation.rows.unflatten(v)))
    return pull_back(tree.leaves(linearisation.after), parameters, cotangents)
