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
    require_settings,
    residual_of,
)
from legato.gradients.linear.spectrum import random_vector, spectral_radius

LARGEST_RITZ_MATRIX = 400
"""Steps whose coefficients enter the estimate of the spectrum: their matrix is written out."""

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
    Reference: Hestenes and Stiefel (1952); Moreau (1965) for P.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.CG().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    tol: float = 1e-6
    iterations: int = 500
    takes_factors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_settings(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return LinearResult.zero(xi)
        M = product if isinstance(product, Factored) else Factored(product, lambda v: v)
        if not M.symmetric:
            require_symmetric(M.B, xi)
            require_symmetric(M.P, xi)
        tol = attainable(self.tol, xi)
        w, r, residual = torch.zeros_like(xi), xi, 1.0
        count, radius = 0, 0.0
        # The recurrence's residual drifts from the true one: start again from that where it did.
        while count < self.iterations and residual > tol:
            w, steps = _run(M, w, r, tol * size, self.iterations - count)
            count += len(steps)
            radius = max(radius, _farthest_from_one(steps[:LARGEST_RITZ_MATRIX]))
            previous = residual
            r, residual = residual_of(M, w, xi)
            if not residual < 0.9 * previous:
                break
        if not (residual <= 2 * tol and radius < 1):  # spoiled coefficients, or none: ask the map
            radius = spectral_radius(M, w, 20)
        return LinearResult.judged(w, residual, count, tol, radius)


def _run(
    M: Factored, w: Tensor, r: Tensor, target: float, most: int
) -> tuple[Tensor, list[tuple[float, float]]]:
    """Conjugate gradients from w with residual r: the new w, and the coefficients of the steps.

    The inner product ⟨u, Pv⟩ is only semi-definite: components of r in null(P) are invisible to CG
    and can grow until rounding in them dominates Pr; we stop when that happens. If the orthogonal
    projector Π onto range(P) is available (or P = cΠ, e.g. boxes), we avoid it: for n ∈ null(P),
    (I − BP)n = n, so n is added to the solution directly and r is projected. We return w + r, whose
    residual is BPr.
    """
    rounding = NULL_SPACE_ROUNDING * torch.finfo(r.dtype).eps
    project, c = M.project, None
    if project is None:
        c = _multiple_of_projection(M.P, r)
        project = None if c is None else _scaled(M.P, 1 / c)
    s = M.P(r)
    if project is not None:
        seen = project(r)
        w, r = w + (r - seen), seen
    p, t = r, s  # the direction, and P times it
    energy = float(torch.dot(r, s))
    steps: list[tuple[float, float]] = []
    while len(steps) < most and energy > 0:
        v, move = p - M.B(t), p
        if project is not None:
            whole, v = v, project(v)
            move = p - whole + v
        curvature = float(torch.dot(t, v))
        if not 0 < curvature < math.inf:
            break
        alpha = energy / curvature
        w = torch.add(w, move, alpha=alpha)
        r = torch.add(r, v, alpha=-alpha)
        s = M.P(r) if c is None else c * r
        products = torch.stack((torch.dot(r, s), torch.dot(s, s), torch.dot(r, r)))
        new, s_square, r_square = products.tolist()  # a GPU is waited for once
        steps.append((alpha, new / energy))
        if s_square <= max(target, rounding * math.sqrt(r_square)) ** 2:
            break
        p = torch.add(r, p, alpha=new / energy)
        t = torch.add(s, t, alpha=new / energy)
        energy = new
    return w + r, steps


def _multiple_of_projection(P: Product, like: Tensor) -> float | None:
    """c, where P = cΠ for an orthogonal projection Π, judged by a random vector.

    Not by the cotangent: it may lie in a subspace on which P happens to be a multiple of I.
    """
    s = P(random_vector(like))
    square = float(torch.dot(s, s))
    if square == 0:
        return None
    twice = P(s)
    c = float(torch.dot(s, twice)) / square
    rest = float(torch.linalg.vector_norm(twice - c * s))
    rounding = PROJECTION_ROUNDING * torch.finfo(s.dtype).eps
    return c if rest <= rounding * math.sqrt(square) else None


def _scaled(product: Product, factor: float) -> Product:
    return lambda v: factor * product(v)


def _farthest_from_one(steps: list[tuple[float, float]]) -> float:
    """max|1 − θ| over the Ritz values θ of I − M: eigenvalues of the Lanczos matrix that the
    coefficients α_k, β_k of the steps define.

    Reference: Golub and Van Loan, *Matrix Computations*, Section 10.2.
    """
    if not steps:
        return 0.0
    alphas = torch.tensor([a for a, _ in steps], dtype=torch.float64)
    betas = torch.tensor([b for _, b in steps[:-1]], dtype=torch.float64).clamp(min=0)
    diagonal = 1 / alphas
    diagonal[1:] += betas / alphas[:-1]
    beside = betas.sqrt() / alphas[:-1]
    T = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
    return float((1 - torch.linalg.eigvalsh(T)).abs().max())


def require_symmetric(product: Product, xi: Tensor) -> None:
    """Refuse a map that is not symmetric, by one random probe: a miss has probability zero."""
    u, v = random_vector(xi, seed=1), random_vector(xi, seed=2)
    difference = float(torch.dot(product(u), v) - torch.dot(u, product(v)))
    scale = float(torch.linalg.vector_norm(u) * torch.linalg.vector_norm(v))
    if abs(difference) > SYMMETRY_ROUNDING * torch.finfo(xi.dtype).eps * scale:
        raise GradientError(
            f"CG needs a step whose derivative is symmetric, but ⟨Mu, v⟩ − ⟨u, Mv⟩ = "
            f"{difference:g}. It takes proximal gradient steps in the Euclidean geometry "
            "with one step size (one per batch element); for anything else use "
            "Implicit(GMRES()) or Implicit(BiCGStab())."
        )
