"""The geometric series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    require_settings,
)
from legato.gradients.linear.spectrum import largest_decay_rate, norms


@dataclass(frozen=True)
class Neumann(LinearSolver):
    r"""The geometric series, w = Σ_k M^k ξ, which converges where ρ(M) < 1.

    ``tol=None`` sums all ``iterations`` terms.
    Defaults: ``tol=1e-6``, ``iterations=1000``.
    Reference: Section 4.3 of Ochs et al. (2016), with errata 8.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.Neumann().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    takes_rows: ClassVar[bool] = True

    tol: float | None = 1e-6
    iterations: int = 1000

    def __post_init__(self) -> None:
        require_settings(1.0 if self.tol is None else self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        tol = 0.0 if self.tol is None else attainable(self.tol, xi)
        w, term, sizes = xi.clone(), xi, [norms(xi)]
        while True:
            # The residual of Σ_{j<k} M^j ξ is exactly M^k ξ, the first term left out.
            term = product(term)
            sizes.append(norms(term))
            residual, terms = _largest_share(sizes[-1], sizes[0]), len(sizes) - 1
            if not residual > tol or terms >= self.iterations or not residual < math.inf:
                break
            w = w + term
        # Rounding w and Mw changes a residual, too (see residual_of).
        floor = torch.finfo(xi.dtype).eps * _largest_share(norms(w), sizes[0])
        residual = residual if math.isnan(residual) else max(floor, residual)
        return LinearResult(w, residual, terms, residual <= tol, largest_decay_rate(sizes), tol)


def _largest_share(parts: list[float], wholes: list[float]) -> float:
    """max_b part_b/whole_b over the rows that are not zero; NaN if there is one."""
    shares = [part / whole for part, whole in zip(parts, wholes, strict=True) if whole > 0]
    return next((share for share in shares if math.isnan(share)), max(shares))
