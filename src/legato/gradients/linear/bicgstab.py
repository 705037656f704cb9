"""Stabilised bi-conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    require_settings,
    residual_of,
)
from legato.gradients.linear.spectrum import spectral_radius


@dataclass(frozen=True)
class BiCGStab(LinearSolver):
    """Stabilised bi-conjugate gradients: (I − M)w = ξ by short recurrences, for any I − M.

    Reference: van der Vorst (1992).

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.BiCGStab().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    tol: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        require_settings(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return LinearResult.zero(xi)
        tol = attainable(self.tol, xi)
        w, count = torch.zeros_like(xi), 0
        r = shadow = p = xi
        rho = torch.dot(shadow, r)
        while count < self.iterations:
            count += 1
            v = p - product(p)
            alpha = rho / torch.dot(shadow, v)
            s = r - alpha * v  # the residual of half a step
            t = s - product(s)
            square = torch.dot(t, t)
            omega = torch.dot(t, s) / square if float(square) > 0 else torch.zeros_like(alpha)
            step = alpha * p + omega * s
            if not bool(torch.isfinite(step).all()):  # ⟨shadow, v⟩ = 0: the recurrence broke down
                break
            w = w + step
            r = s - omega * t
            if float(torch.linalg.vector_norm(r)) <= tol * size:
                break
            new = torch.dot(shadow, r)
            if float(new) == 0 or float(omega) == 0:
                break
            p = r + (new / rho) * (alpha / omega) * (p - omega * v)
            rho = new
        _, residual = residual_of(product, w, xi)
        # Not from ξ: w = (I − M)⁻¹ξ holds most of what decays slowest, so few products are enough.
        radius = spectral_radius(product, w, 20)
        return LinearResult.judged(w, residual, count, tol, radius)
