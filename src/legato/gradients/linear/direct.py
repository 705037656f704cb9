"""A dense factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import GradientError
from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    require_finite_products,
    residual_of,
)
from legato.gradients.linear.spectrum import spectral_radius


@dataclass(frozen=True)
class Direct(LinearSolver):
    """The matrix I − M written out and factorised, w = (I − M)⁻¹ξ: small problems, and checks.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.Direct().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    largest: int = 2048

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        n = xi.numel()
        if n > self.largest:
            raise GradientError(
                f"Direct would write out a {n} × {n} matrix. Use GMRES(), or raise "
                f"Direct(largest={n}) if that is meant."
            )
        if float(torch.linalg.vector_norm(xi)) == 0:
            return LinearResult.zero(xi)
        identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
        M = torch.stack([product(e) for e in identity], dim=1)
        require_finite_products(M)
        # Least squares of minimal norm: also defined, and certified by its residual, if singular.
        B, rhs = (identity - M).cpu(), xi.cpu().unsqueeze(-1)
        w = torch.linalg.lstsq(B, rhs, driver="gelsd").solution.squeeze(-1).to(xi)
        _, residual = residual_of(product, w, xi)
        # Not the largest eigenvalue of M: entries that touch nothing have 1 and do no harm.
        radius = spectral_radius(lambda v: M @ v, xi, 1000)
        return LinearResult.judged(w, residual, n, math.sqrt(torch.finfo(xi.dtype).eps), radius)
