"""Conjugate gradients, in the metric of a prox."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.errors import GradientError
from legato.gradients.linear.base import (
    Factored,
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    dot,
    norm,
    ratio,
    require_settings,
    residual_of,
)
from legato.gradients.linear.judging import judged
from legato.gradients.linear.spectrum import random_vector

SYMMETRY_ROUNDING = 1e3
"""⟨Mu, v⟩ − ⟨u, Mv⟩ of a symmetric map may be this many eps‖u‖‖v‖: rounding in large products."""

PROJECTION_ROUNDING = 16
"""‖P(Pv) − cPv‖ of a multiple of a projection may be this many eps‖Pv‖."""

NULL_SPACE_ROUNDING = 8
"""Once ‖Pr‖ is below this many eps‖r‖, the rest of Pr is rounding from what P does not see."""


@dataclass(frozen=True)
class CG(LinearSolver):
    r"""Conjugate gradients: one product a step and short recurrences, where M = BP.

    .. math:: ⟨(I − BP)u, v⟩_P = ⟨u, Pv⟩ − ⟨BPu, Pv⟩

    is symmetric and ≥ 0 for symmetric B ≤ I and 0 ≤ P ≤ I. So it is for every proximal gradient
    step in the Euclidean geometry, with B = I − αH for a Hessian H, and P the derivative of the
    prox, which is symmetric (P = I without a prox: the Hessian solve of Section 4.1 of Ochs et al.,
    2016). What is not symmetric is detected by a random probe and refused.
    Defaults: ``tol=1e-6``, ``iterations=500``.
    Reference: Hestenes and Stiefel (1952); Moreau (1965) for P.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.CG().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    takes_factors: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True

    tol: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        require_settings(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        M = product if isinstance(product, Factored) else Factored(product, lambda v: v)
        if not M.symmetric:
            require_symmetric(M.B, xi, "CG")
            require_symmetric(M.P, xi, "CG")
        tol = attainable(self.tol, xi)
        w, r, count = torch.zeros_like(xi), xi, 0
        target = tol * norm(xi)
        previous = torch.ones_like(target)
        # The recurrence's residual drifts from the true one: start again from that where it did.
        while count < self.iterations:
            moved, steps = _run(M, w, r, target, self.iterations - count)
            w, count = torch.where(r.any(-1, keepdim=True), moved, w), count + steps
            r, residual = residual_of(M, w, xi)
            drifted = (residual > tol) & (residual < 0.9 * previous)
            if steps == 0 or not bool(drifted.any()):
                break
            r, previous = torch.where(drifted, r, 0.0), residual
        return judged(M, w, xi, count, tol)


def _run(M: Factored, w: Tensor, r: Tensor, target: Tensor, most: int) -> tuple[Tensor, int]:
    """Conjugate gradients from w with residual r, row by row: the new w, and the number of steps.

    The inner product ⟨u, Pv⟩ is only semi-definite: components of r in null(P) are invisible to CG
    and can grow until rounding in them dominates Pr; we stop when that happens. If the orthogonal
    projector Π onto range(P) is available (or P = cΠ, e.g. boxes), we avoid it: for n ∈ null(P),
    (I − BP)n = n, so n is added to the solution directly and r is projected. We return w + r, whose
    residual is BPr.
    """
    rounding = NULL_SPACE_ROUNDING * torch.finfo(r.dtype).eps
    project, c = M.project, None
    if project is None:
        c = multiple_of_projection(M.P, r)
        project = None if c is None else _scaled(M.P, 1 / c)
    s = M.P(r)
    if project is not None:
        seen = project(r)
        w, r = w + (r - seen), seen
    p, t = r, s  # the direction, and P times it
    energy = dot(r, s)
    alive = energy > 0  # the rows that are still solved for; one look at them each step
    steps = 0
    while steps < most and bool(alive.any()):
        v, move = p - M.B(t), p
        if project is not None:
            whole, v = v, project(v)
            move = p - whole + v
        curvature = dot(t, v)
        alive = alive & (curvature > 0) & (curvature < math.inf)
        alpha = torch.where(alive, ratio(energy, curvature), 0.0)
        w = w + alpha * move
        r = r - alpha * v
        s = M.P(r) if c is None else c * r
        new = dot(r, s)
        beta = torch.where(alive, ratio(new, energy), 0.0)
        alive = alive & (norm(s) > torch.maximum(target, rounding * norm(r))) & (new > 0)
        p, t = r + beta * p, s + beta * t
        energy = new
        steps += 1
    return w + r, steps


def multiple_of_projection(P: Product, like: Tensor) -> Tensor | None:
    """c, one for each row, where P = cΠ for orthogonal projections Π, judged by a random vector.

    Not by the cotangent: it may lie in a subspace on which P happens to be a multiple of I.
    """
    s = P(random_vector(like))
    square = dot(s, s)
    twice = P(s)
    c = torch.where(square > 0, ratio(dot(s, twice), square), 1.0)
    rounding = PROJECTION_ROUNDING * torch.finfo(s.dtype).eps
    fits = (norm(twice - c * s) <= rounding * square.sqrt()) & (c > 0)
    return c if bool(fits.all()) else None


def _scaled(product: Product, factor: Tensor) -> Product:
    return lambda v: factor * product(v)


def require_symmetric(product: Product, xi: Tensor, who: str) -> None:
    """Refuse a map that is not symmetric, by one random probe: a miss has probability zero."""
    u, v = random_vector(xi, seed=1), random_vector(xi, seed=2)
    difference = float((product(u) * v).sum() - (u * product(v)).sum())
    scale = float(torch.linalg.vector_norm(u) * torch.linalg.vector_norm(v))
    if abs(difference) > SYMMETRY_ROUNDING * torch.finfo(xi.dtype).eps * scale:
        raise GradientError(
            f"{who} needs a step whose derivative is symmetric, but ⟨Mu, v⟩ − ⟨u, Mv⟩ = "
            f"{difference:g}. CG takes proximal gradient steps, MINRES primal–dual ones, in the "
            "Euclidean geometry with one step size (one per batch element); for anything else "
            "use Implicit(GMRES()) or Implicit(BiCGStab())."
        )
