"""One judgement for all solvers: what a w is worth, whoever found it."""

from __future__ import annotations

from torch import Tensor

from legato.gradients.linear.base import LinearResult, Product, residual_of, worst
from legato.gradients.linear.spectrum import ritz_radius


def judged(product: Product, w: Tensor, xi: Tensor, iterations: int, tol: float) -> LinearResult:
    """w with its residual and with the radius of M that it shows.

    Converged up to a factor 2: a recurrence may miss its true residual by as much. The radius is
    asked of w, not of ξ: w = (I − M)⁻¹ξ holds most of what decays slowest. Where the tolerance was
    missed, what is left of ξ is asked as well: it may be what does not decay at all.
    """
    r, residuals = residual_of(product, w, xi)
    residual, radius = worst(residuals), ritz_radius(product, w)
    converged = residual <= 2 * tol
    if not converged:
        radius = max(radius, ritz_radius(product, r))
    return LinearResult(w, residual, iterations, converged, radius, tol)
