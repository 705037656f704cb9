"""The geometric series."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    require_settings,
)
from legato.gradients.linear.spectrum import decay_rate


@dataclass(frozen=True)
class Neumann(LinearSolver):
    r"""The geometric series, w = Σ_k M^k ξ, which converges where ρ(M) < 1.

    ``tol=None`` sums all ``iterations`` terms.
    Reference: Section 4.3 of Ochs et al. (2016), with errata 8.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.Neumann().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    tol: float | None = 1e-6
    iterations: int = 1000

    def __post_init__(self) -> None:
        require_settings(1.0 if self.tol is None else self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return LinearResult.zero(xi)
        tol = 0.0 if self.tol is None else attainable(self.tol, xi)
        w, term, sizes = xi.clone(), xi, [size]
        while True:
            # The residual of Σ_{j<k} M^j ξ is exactly M^k ξ, the first term left out. Rounding adds
            # to it no more than to the sum, which at most ``iterations`` terms keep moderate.
            term = product(term)
            sizes.append(float(torch.linalg.vector_norm(term)))
            residual, terms = sizes[-1] / size, len(sizes) - 1
            if not residual > tol or terms >= self.iterations or not math.isfinite(residual):
                break
            w = w + term
        return LinearResult(w, residual, terms, residual <= tol, decay_rate(sizes), tol)
