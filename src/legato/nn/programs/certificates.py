"""Proofs that a program has no solution, read off iterates that grow without bound."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times

_PROOF = 1e-9
"""What a proof misses, relative to its strength and for a point of the iterate's size."""


def farkas(P: Program, y: Tensor, z: Tensor, x: Tensor) -> Tensor:
    """Where z ≥ 0, Aᵀy + Cᵀz = 0 and bᵀy + dᵀz < 0: no point satisfies the constraints.

    With r = Aᵀy + Cᵀz not quite zero it holds for points with |rᵀx| < |bᵀy + dᵀz|: it counts only
    if those are a billion times larger than the iterate.
    """
    d, _ = P.sides
    excess = -((P.b * y).sum(-1) + (d * z).sum(-1))
    tiny = _PROOF * excess
    negative = largest(z.clamp(max=0)) <= tiny
    missed = largest(times(P.A.mT, y) + P.pull(z)) * (1 + x.abs().sum(-1))
    return (excess > 0) & negative & (missed <= tiny)


def descent_ray(P: Program, ray: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Where Qr = 0, Ar = 0, Cr ≤ 0 and cᵀr < 0: the objective falls without end along r.

    What it misses is weighed by the multipliers, as a point weighs what Farkas' proof misses.
    """
    _, on = P.sides
    descent = -(P.c * ray).sum(-1)
    leaving = torch.where(on, P.rows(ray), 0.0).clamp(min=0)
    stray = torch.stack([largest(times(P.Q, ray)), largest(times(P.A, ray)), largest(leaving)])
    weight = 1 + y.abs().sum(-1) + z.abs().sum(-1)
    return (descent > 0) & (stray.amax(0) * weight <= _PROOF * descent)
