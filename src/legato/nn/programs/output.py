"""The record of a solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, terms, times
from legato.nn.programs.solver import ProgramStatus

if TYPE_CHECKING:
    from legato.nn.programs.scaling import Scaling

_ROUNDING = 1e-4
"""A share of the scaled program's unit, below which it does not matter that terms are small."""


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
    P: Program, S: Scaling, x: Tensor, y: Tensor, z: Tensor, z_lo: Tensor, z_hi: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Primal, dual and gap of a point, absolute, and the largest of the three when relative.

    A constraint is judged by its own terms: a side of another one, however large, excuses nothing.
    ``S`` says what rounding is in a row whose terms are all zero.
    """
    Qx, Ax, Gx = times(P.Q, x), times(P.A, x), times(P.G, x)
    pulled = times(P.A.mT, y) + times(P.G.mT, z)
    h, lo, hi = (torch.where(torch.isfinite(v), v, 0.0) for v in (P.h, P.lo, P.hi))
    over = torch.where(torch.isfinite(P.h), Gx - P.h, 0.0).clamp(min=0)
    violated = [(Ax - P.b).abs(), over, (P.lo - x).clamp(min=0), (x - P.hi).clamp(min=0)]
    own = [
        terms(P.A, x) + P.b.abs(),
        terms(P.G, x) + h.abs(),
        lo.abs() + x.abs(),
        hi.abs() + x.abs(),
    ]
    rounding = _ROUNDING * (1 + largest(x / S.D)).unsqueeze(-1)
    units = [1 / S.E_A, 1 / S.E_G, S.D, S.D]
    primal = largest(torch.cat(violated, -1))
    shares = [
        largest(v / (size + rounding * u)) for v, size, u in zip(violated, own, units, strict=True)
    ]
    relative_p = torch.stack(shares).amax(0)
    dual = largest(Qx + P.c + pulled - z_lo + z_hi)
    xQx, cx = (x * Qx).sum(-1), (P.c * x).sum(-1)
    value = (P.b * y).sum(-1) + (h * z).sum(-1) - (lo * z_lo).sum(-1) + (hi * z_hi).sum(-1)
    gap = (xQx + cx + value).abs()
    size_d = torch.stack([largest(Qx), largest(P.c), largest(pulled)]).amax(0)
    size_g = torch.maximum(xQx.abs(), torch.maximum(cx.abs(), value.abs()))
    tiny = torch.finfo(x.dtype).tiny
    relative = torch.stack([relative_p, dual / (size_d + tiny), gap / (size_g + tiny)])
    # Where everything is zero, nothing is missing.
    small = torch.stack([primal, dual, gap]) <= 1e-14
    return primal, dual, gap, torch.where(small, 0.0, relative).amax(0)
