"""Proofs that a program has no solution, read off iterates that grow without bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times

_PROXIMAL = 1e-10
_LENGTHS = 60
"""Lengths of a step that are tried, each half of the one before."""
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


def least_violation(P: Program, x: Tensor, steps: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """The point that violates the constraints least, and what is left: a proof, where it is not 0.

    Minimises ½‖Ax − b‖² + ½‖(Cx − d)₊‖² by Newton steps. At the minimum u = Ax − b and
    v = (Cx − d)₊ satisfy Aᵀu + Cᵀv = 0 and bᵀu + dᵀv = −‖u‖² − ‖v‖²: Farkas' multipliers.
    """
    d, on = P.sides
    # What is left is linear along a step, with a kink where a row begins to be violated. A step
    # may be as long as rounding is small, where rows that it will meet do not yet hold it back.
    lengths = (0.5 ** torch.arange(_LENGTHS, dtype=x.dtype, device=x.device))[:, None, None]
    equal, over = times(P.A, x) - P.b, torch.where(on, P.rows(x) - d, -torch.inf)
    for _ in range(steps):
        u, v = equal, over.clamp(min=0)
        change = _normal_solve(P, (v > 0).to(x), -times(P.A.mT, u) - P.pull(v))
        to_equal, to_over = times(P.A, change), torch.where(on, P.rows(change), 0.0)
        sizes = (equal + lengths * to_equal).square().sum(-1)
        sizes = sizes + (over + lengths * to_over).clamp(min=0).square().sum(-1)
        least, which = sizes.min(0)
        better = least < u.square().sum(-1) + v.square().sum(-1)
        if not bool(better.any()):
            break
        x = x + (lengths[which, :, 0] * better.unsqueeze(-1)) * change
        equal, over = times(P.A, x) - P.b, torch.where(on, P.rows(x) - d, -torch.inf)
    return x, equal, over.clamp(min=0)


def _normal_solve(P: Program, w: Tensor, right: Tensor) -> Tensor:
    """(AᵀA + CᵀWC + ρ)⁻¹ right."""
    if not isinstance(P.A, Tensor):
        from legato.nn.programs.sparse_systems import normal_solve

        return normal_solve(P, w, right, _PROXIMAL)
    w_G, w_lo, w_hi = P.split(w)
    H = P.A.mT @ P.A + P.G.mT @ (w_G.unsqueeze(-1) * P.G)
    H.diagonal(dim1=-2, dim2=-1).add_(w_lo + w_hi + _PROXIMAL)
    return torch.linalg.solve_ex(H, right)[0]


def _rows_of_ray(P: Program) -> Any:
    """Q, A and c, one below the other."""
    if not isinstance(P.Q, Tensor):
        from legato.nn.programs.sparse_systems import ray_rows

        return ray_rows(P)
    return torch.cat([P.Q, P.A, P.c.unsqueeze(-2)], -2)


def steepest_ray(P: Program) -> Tensor:
    """A ray r with cᵀr = −1 that comes nearest to Qr = 0, Ar = 0, Cr ≤ 0."""
    still = torch.zeros_like(P.c)
    sides = torch.cat([still, torch.zeros_like(P.b), -torch.ones_like(P.c[:, :1])], -1)
    cone = Program(
        P.Q,
        P.c,
        _rows_of_ray(P),
        sides,
        P.G,
        torch.where(torch.isfinite(P.h), 0.0, P.h),
        torch.where(torch.isfinite(P.lo), 0.0, P.lo),
        torch.where(torch.isfinite(P.hi), 0.0, P.hi),
        P.bounded,
        torch.zeros_like(sides, dtype=torch.bool),
    )
    return least_violation(cone, still)[0]
