"""Stabilised bi-conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    dot,
    norm,
    ratio,
    require_settings,
)
from legato.gradients.linear.judging import judged


@dataclass(frozen=True)
class BiCGStab(LinearSolver):
    """Stabilised bi-conjugate gradients: (I − M)w = ξ by short recurrences, for any I − M.

    Defaults: ``tol=1e-6``, ``iterations=500``.
    Reference: van der Vorst (1992).

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.BiCGStab().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    takes_rows: ClassVar[bool] = True

    tol: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        require_settings(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        tol = attainable(self.tol, xi)
        target = tol * norm(xi)
        w, count = torch.zeros_like(xi), 0
        r = shadow = p = xi
        rho = dot(shadow, r)
        alive = rho > 0  # the rows that are still solved for; one look at them each iteration
        while count < self.iterations:
            count += 1
            v = p - product(p)
            angle = dot(shadow, v)
            alpha = ratio(rho, angle)
            s = r - alpha * v  # the residual of half a step
            t = s - product(s)
            omega = ratio(dot(t, s), dot(t, t))
            step = alpha * p + omega * s
            # ⟨shadow, v⟩ = 0: the recurrence broke down
            alive = alive & (angle != 0) & torch.isfinite(step).all(-1, keepdim=True)
            w = torch.where(alive, w + step, w)
            r = torch.where(alive, s - omega * t, r)
            new = dot(shadow, r)
            alive = alive & (norm(r) > target) & (new != 0) & (omega != 0)
            if not bool(alive.any()):
                break
            slope = ratio(new, rho) * ratio(alpha, omega)
            p = torch.where(alive, r + slope * (p - omega * v), 0.0)
            rho = new
        return judged(product, w, xi, count, tol)
