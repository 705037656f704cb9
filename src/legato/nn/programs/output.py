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
_NOTHING = 1e-6
"""The same of forces and of the objective."""


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

    A constraint, a variable and the gap are judged by their own terms, which have their own units;
    ``S`` says what rounding is where all of them are zero.
    """
    forces = times(P.Q, x)
    xQx, cx = (x * forces).sum(-1), P.c * x
    value, known = cx.sum(-1), cx.abs().sum(-1)
    sizes = forces.abs() + P.c.abs()
    forces = forces + P.c
    unit = 1 + largest(x / S.D)
    violated, shares = [], []

    for M, side, force, E, both in ((P.A, P.b, y, S.E_A, True), (P.G, P.h, z, S.E_G, False)):
        if side.shape[-1]:
            inner, size, end = times(M, x), side.abs(), side
            if both:
                over = (inner - side).abs()
            else:  # below an infinite end −∞, hence 0
                over = (inner - side).clamp(min=0)
                end, size = (torch.where(size < torch.inf, v, 0.0) for v in (side, size))
            violated.append(over)
            shares.append(over / (terms(M, x) + size + _ROUNDING * unit.unsqueeze(-1) / E))
            pull = times(M.mT, force)
            forces, sizes = forces + pull, sizes + pull.abs()
            value, known = value + (end * force).sum(-1), known + (end * force).abs().sum(-1)
    if P.bounded:
        for end, force, sign in ((P.lo, z_lo, -1.0), (P.hi, z_hi, 1.0)):
            held = torch.where(end.abs() < torch.inf, end, 0.0)
            over = (sign * (x - end)).clamp(min=0)
            violated.append(over)
            shares.append(over / (held.abs() + x.abs() + _ROUNDING * unit.unsqueeze(-1) * S.D))
            forces, sizes = forces + sign * force, sizes + force.abs()
            known = known + (held * force).abs().sum(-1)
            value = value + sign * (held * force).sum(-1)
    price = _NOTHING * unit / S.sigma
    left, gap = forces.abs(), (xQx + value).abs()
    shares.append(left / (sizes + price.unsqueeze(-1) / S.D))
    relative = torch.maximum(largest(torch.cat(shares, -1)), gap / (xQx.abs() + known + price))
    primal = largest(torch.cat(violated, -1)) if violated else torch.zeros_like(gap)
    return primal, largest(left), gap, relative
