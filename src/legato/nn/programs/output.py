"""The record of a solve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times
from legato.nn.programs.solver import ProgramStatus


@dataclass
class ProgramOutput:
    """What ``solve`` of :class:`QuadraticProgram` and :class:`LinearProgram` returns.

    Every field has the batch's leading axes. ``x`` is attached to the graph, and NaN where there is
    no solution; multipliers ``y`` (Ax = b), ``z`` (Gx ≤ h), ``z_lo`` and ``z_hi`` (bounds) satisfy
    Qx + c + Aᵀy + Gᵀz − z_lo + z_hi = 0 and carry no gradient; of lower ≤ Gx ≤ upper, z is positive
    at the upper end and negative at the lower one. Where ``status`` is INFEASIBLE they
    are a proof instead: Aᵀy + Gᵀz − z_lo + z_hi = 0 although bᵀy + hᵀz − loᵀz_lo + hiᵀz_hi < 0.
    Where it is UNBOUNDED, ``ray`` is a direction of endless descent.

    ``primal``, ``dual`` and ``gap`` are absolute: the largest violation of a constraint, the
    largest entry of the sum above, and the difference of the two objectives; they are those of the
    point in float64, before it is rounded to the data's dtype. ``margin`` is the
    smallest max(slack, multiplier) of an inequality, in scaled units: zero where complementarity is
    not strict and x has a kink in its data. ``tied``, ``loose`` and ``dependent`` say where that is
    so, where x is not unique, and where active constraints depend on one another.

    >>> record = QuadraticProgram().solve(torch.eye(2), torch.tensor([-1.0, 1.0]), lo=0.0)
    >>> record.x, record.z_lo, record.solved
    (tensor([1., 0.]), tensor([0., 1.]), tensor(True))
    """

    x: Tensor
    y: Tensor
    z: Tensor
    z_lo: Tensor
    z_hi: Tensor
    ray: Tensor
    primal: Tensor
    dual: Tensor
    gap: Tensor
    status: Tensor
    iterations: Tensor
    margin: Tensor
    tied: Tensor
    loose: Tensor
    dependent: Tensor

    @property
    def solved(self) -> Tensor:
        """Where x is the solution."""
        return self.status == int(ProgramStatus.SOLVED)

    @property
    def degenerate(self) -> Tensor:
        """Where x is not a differentiable function of all its data."""
        return self.tied | self.loose | self.dependent


def residuals(
    P: Program, x: Tensor, y: Tensor, z: Tensor, z_lo: Tensor, z_hi: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Primal, dual and gap of a point, absolute, and the largest of the three when relative."""
    Qx, Ax, Gx = times(P.Q, x), times(P.A, x), times(P.G, x)
    pulled = times(P.A.mT, y) + times(P.G.mT, z)
    finite_h = torch.isfinite(P.h)
    over = torch.where(finite_h, Gx - P.h, 0.0).clamp(min=0)
    outside = torch.maximum((P.lo - x).clamp(min=0), (x - P.hi).clamp(min=0))
    primal = torch.stack([largest(Ax - P.b), largest(over), largest(outside)]).amax(0)
    dual = largest(Qx + P.c + pulled - z_lo + z_hi)
    xQx, cx = (x * Qx).sum(-1), (P.c * x).sum(-1)
    h, lo, hi = (torch.where(torch.isfinite(v), v, 0.0) for v in (P.h, P.lo, P.hi))
    value = (P.b * y).sum(-1) + (h * z).sum(-1) - (lo * z_lo).sum(-1) + (hi * z_hi).sum(-1)
    gap = (xQx + cx + value).abs()
    size_p = torch.stack([largest(Ax), largest(P.b), largest(Gx), largest(h), largest(x)]).amax(0)
    size_d = torch.stack([largest(Qx), largest(P.c), largest(pulled)]).amax(0)
    size_g = torch.maximum(xQx.abs(), torch.maximum(cx.abs(), value.abs()))
    tiny = torch.finfo(x.dtype).tiny
    relative = torch.stack(
        [primal / (size_p + tiny), dual / (size_d + tiny), gap / (size_g + tiny)]
    )
    # Where everything is zero, nothing is missing.
    small = torch.stack([primal, dual, gap]) <= 1e-14
    return primal, dual, gap, torch.where(small, 0.0, relative).amax(0)
