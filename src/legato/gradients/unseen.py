"""Whether what the fixed-point equation leaves open is of any consequence to a gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legato._support import tree
from legato.gradients.base import Linearisation, pull_back
from legato.gradients.linear import GMRES, LinearResult
from legato.gradients.linear.base import norm, ratio
from legato.gradients.linear.spectrum import random_vector

SEEN = 1e-4
"""Share of a parameter's gradient that may be undetermined without a word."""


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
    rounding = math.sqrt(torch.finfo(w.dtype).eps)
    r = random_vector(w)
    found = GMRES(tol=rounding).solve(M, r - M(r))
    n = r - found.solution
    along = norm(n) > rounding * norm(r)
    if not found.converged or not bool(along.any()):
        return True
    n = torch.where(along, n * ratio(norm(w), norm(n)), 0.0)
    any_other = r * ratio(norm(w), norm(r))
    try:
        seen = _seen_by_parameters(linearisation, n, w, any_other)
    except RuntimeError:  # what lies in front may not let itself be asked, as some checkpoints
        return True
    return any(
        # A gradient of 0 is one up to the rounding of what cancels in it.
        bool(tree.norm(open_part) > SEEN * tree.norm(gradient) + rounding * tree.norm(other))
        for open_part, gradient, other in zip(*seen, strict=True)
    )


def _seen_by_parameters(linearisation: Linearisation, *cotangents: Tensor) -> list[list[Tensor]]:
    """A_θᵀv for all leaves θ that the step depends on, for each of some v."""
    leaves = linearisation.other_leaves()
    rows = linearisation.rows
    return [
        pull_back(
            tree.leaves(linearisation.after),
            leaves,
            tree.leaves(linearisation.transport(rows.unflatten(v))),
        )
        for v in cotangents
    ]
