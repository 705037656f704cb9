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
    Qx, pulled = times(P.Q, x), times(P.A.mT, y) + times(P.G.mT, z)
    left = Qx + P.c + pulled
    rounding = _ROUNDING * (1 + largest(x / S.D)).unsqueeze(-1)
    violated, shares = [], []

    def judged(over: Tensor, size: Tensor, unit: Tensor) -> None:
        violated.append(over)
        shares.append(over / (size + rounding * unit))

    value = (P.b * y).sum(-1)
    if P.b.shape[-1]:
        judged((times(P.A, x) - P.b).abs(), terms(P.A, x) + P.b.abs(), 1 / S.E_A)
    if P.h.shape[-1]:
        h = torch.where(P.h.isinf(), 0.0, P.h)
        over = (times(P.G, x) - P.h).clamp(min=0)  # below an infinite end −∞, hence 0
        judged(over, terms(P.G, x) + h.abs(), 1 / S.E_G)
        value = value + (h * z).sum(-1)
    if P.bounded:
        for end, force, sign in ((P.lo, z_lo, -1.0), (P.hi, z_hi, 1.0)):
            known = torch.where(end.isinf(), 0.0, end)
            judged((sign * (x - end)).clamp(min=0), known.abs() + x.abs(), S.D)
            value = value + sign * (known * force).sum(-1)
        left = left - z_lo + z_hi
    nothing = x.new_zeros(P.size)
    primal = largest(torch.cat(violated, -1)) if violated else nothing
    relative_p = largest(torch.cat(shares, -1)) if shares else nothing
    dual = largest(left)
    xQx, cx = (x * Qx).sum(-1), (P.c * x).sum(-1)
    gap = (xQx + cx + value).abs()
    size_d = torch.stack([largest(Qx), largest(P.c), largest(pulled)]).amax(0)
    size_g = torch.maximum(xQx.abs(), torch.maximum(cx.abs(), value.abs()))
    tiny = torch.finfo(x.dtype).tiny
    relative = torch.stack([relative_p, dual / (size_d + tiny), gap / (size_g + tiny)])
    # Where everything is zero, nothing is missing.
    small = torch.stack([primal, dual, gap]) <= 1e-14
    return primal, dual, gap, torch.where(small, 0.0, relative).amax(0)
