"""One judgement for all solvers: what a w is worth, whoever found it."""

from __future__ import annotations

from torch import Tensor

from legato.gradients.linear.base import LinearResult, Product, residual_of, worst
from legato.gradients.linear.spectrum import ritz_radius


def judged(product: Product, w: Tensor, xi: Tensor, iterations: int, tol: float) -> LinearResult:
    """w with its residual and with the radius of M that it shows.

    Converged up to a factor 2: a recurrence may miss its true residual by as much. The radius is
    asked of w, not of ξ: w = (I − M)⁻¹ξ holds most of what decays slowest.
    """
    _, residuals = residual_of(product, w, xi)
    residual = worst(residuals)
    return LinearResult(w, residual, iterations, residual <= 2 * tol, ritz_radius(product, w), tol)
