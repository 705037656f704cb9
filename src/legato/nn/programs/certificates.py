"""Proofs that a program has no solution, read off iterates that grow without bound."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times

_PROOF = 1e-8
"""A proof holds for all points below the inverse of this, in the units of the scaled program."""


def farkas(P: Program, y: Tensor, z: Tensor) -> Tensor:
    """Where z ≥ 0, Aᵀy + Cᵀz = 0 and bᵀy + dᵀz < 0: no x satisfies the constraints."""
    d, _ = P.sides()
    excess = -((P.b * y).sum(-1) + (d * z).sum(-1))
    tiny = _PROOF * excess
    negative = largest(z.clamp(max=0)) <= tiny
    return (excess > 0) & negative & (largest(times(P.A.mT, y) + P.pull(z)) <= tiny)


def descent_ray(P: Program, ray: Tensor) -> Tensor:
    """Where Qr = 0, Ar = 0, Cr ≤ 0 and cᵀr < 0: the objective falls without end along r."""
    _, on = P.sides()
    descent = -(P.c * ray).sum(-1)
    leaving = torch.where(on, P.rows(ray), 0.0).clamp(min=0)
    stray = torch.stack([largest(times(P.Q, ray)), largest(times(P.A, ray)), largest(leaving)])
    return (descent > 0) & (stray.amax(0) <= _PROOF * descent)
