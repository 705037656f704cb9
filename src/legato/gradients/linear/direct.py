"""A dense factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.errors import GradientError
from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    require_finite_products,
)
from legato.gradients.linear.judging import judged


@dataclass(frozen=True)
class Direct(LinearSolver):
    """The matrix I − M written out and factorised, w = (I − M)⁻¹ξ: small problems, and checks.

    ``largest`` is the largest number of unknowns of one system.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.Direct().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    takes_rows: ClassVar[bool] = True

    largest: int = 2048

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        n, systems = xi.shape[-1], xi.shape[:-1]
        if n * math.sqrt(systems.numel()) > self.largest:
            count = f"{systems.numel()} matrices" if systems else "a matrix"
            needed = math.ceil(n * math.sqrt(systems.numel()))
            raise GradientError(
                f"Direct would write out {count} of {n} × {n}. Use GMRES(), or raise "
                f"Direct(largest={needed}) if that is meant."
            )
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
        # One product for a column of all matrices at once.
        M = torch.stack([product(e.expand(xi.shape).contiguous()) for e in identity], dim=-1)
        require_finite_products(M)
        # Least squares of minimal norm: also defined, and certified by its residual, if singular.
        B, rhs = (identity - M).cpu(), xi.cpu().unsqueeze(-1)
        w = torch.linalg.lstsq(B, rhs, driver="gelsd").solution.squeeze(-1).to(xi)
        return judged(product, w, xi, n, math.sqrt(torch.finfo(xi.dtype).eps))
