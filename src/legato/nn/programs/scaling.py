"""Equilibration: rows and columns of the KKT matrix are brought to the size of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest

if TYPE_CHECKING:
    from legato.nn.programs.sparse_matrix import SparseMatrix

_PASSES = 10
_EVEN = 4.0
"""Norms within this factor of one need no further pass."""
_FAR = 1e7
"""A side this many times larger than the others is hardly there to bind."""
_SMALL = 1e-6
"""Sides this much smaller than −c/Q may be rounding, and no measure of x."""


@dataclass(frozen=True)
class Scaling:
    """x = D x̂, y = E_A ŷ/σ, z = E_G ẑ/σ: the variables of a program by those of its scaled form."""

    D: Tensor
    E_A: Tensor
    E_G: Tensor
    sigma: Tensor

    def inequalities(self, bounded: bool) -> Tensor:
        """The factors of all inequalities; a bound's is that of its variable, inverted."""
        inverse = 1 / self.D
        return torch.cat([self.E_G, inverse, inverse], -1) if bounded else self.E_G

    def duals(self, y: Tensor, z: Tensor, bounded: bool) -> tuple[Tensor, Tensor]:
        """Multipliers of the program itself."""
        sigma = self.sigma.unsqueeze(-1)
        return self.E_A * y / sigma, self.inequalities(bounded) * z / sigma


def norms(matrix: Tensor | SparseMatrix, axis: int) -> Tensor:
    """The largest entry of every row (axis −1) or column (−2)."""
    if not isinstance(matrix, Tensor):
        return matrix.norms(axis)
    if 0 in matrix.shape:
        shape = list(matrix.shape)
        shape.pop(axis)
        return matrix.new_zeros(shape)
    return torch.linalg.vector_norm(matrix, torch.inf, axis)


def _root(norms: Tensor) -> Tensor:
    """1/√norm, and 1 for what is empty."""
    return torch.where(norms > 0, norms, 1.0).rsqrt()


def _length(sides: Tensor, bounds: Tensor) -> Tensor:
    """About the size of x: the largest right-hand side, or a bound of middling size if larger.

    Bounds may be huge and mean nothing, right-hand sides may be rounding where zero is meant.
    """
    size = bounds.abs()
    counted = torch.isfinite(size) & (size > 0)
    count = counted.sum(-1)
    middling = (torch.where(counted, size, 1.0).log().sum(-1) / count.clamp(min=1)).exp()
    largest_side = largest(torch.where(torch.isfinite(sides), sides, 0.0))
    unit = torch.maximum(largest_side, torch.where(count > 0, middling, 0.0))
    return torch.where(unit > 0, unit, 1.0).unsqueeze(-1)


def _far(P: Program, E: tuple[Tensor, Tensor, Tensor]) -> tuple[list[Tensor], Tensor]:
    """Which of h, lo and hi are so large that they can hardly bind, and the length −c/Q."""
    D, E_A, E_G = E
    stiff, pull = largest(norms(P.Q, -1)), largest(P.c)
    bend = torch.where((stiff > 0) & (pull > 0), pull / stiff, torch.inf)
    sides = [(P.h * E_G).abs(), (P.lo / D).abs(), (P.hi / D).abs()]
    every = torch.cat(sides, -1)
    counted = torch.isfinite(every) & (every > 0)
    least = torch.where(counted, every, torch.inf).amin(-1)
    reach = _FAR * torch.maximum(torch.minimum(least, bend), largest(P.b * E_A)).unsqueeze(-1)
    return [torch.isfinite(v) & (v > reach) for v in sides], bend


def scaled(program: Program, turn: Tensor | None = None) -> tuple[Program, Scaling, Tensor]:
    """The program in better units, after Ruiz (2001); data that are even already stay so.

    Sides that are far are left out at first: a solution that respects them all the same is that of
    the whole program. Where sides are of the size of rounding, the length −c/Q is the next unit to
    be tried. The last turn takes everything as it is.

    Args:
        program (Program): the programs.
        turn (Tensor, optional): (B,) 0, 1 or 2, which of these to do. Default: 0 for all

    Returns:
        tuple: the scaled programs, how they were scaled, and the turn that is left for each one
        that is not solved, or the same where there is none.
    """
    P = program
    D, E_A, E_G = torch.ones_like(P.c), torch.ones_like(P.b), torch.ones_like(P.h)
    Q, A, G = P.Q, P.A, P.G
    for _ in range(_PASSES):
        columns = torch.maximum(norms(Q, -2), torch.maximum(norms(A, -2), norms(G, -2)))
        rows_A, rows_G = norms(A, -1), norms(G, -1)
        every = torch.cat([columns, rows_A, rows_G], -1)
        every = torch.where(every > 0, every, 1.0)
        if bool((every.amax() <= _EVEN) & (every.amin() >= 1 / _EVEN)):
            break
        d, e_A, e_G = _root(columns), _root(rows_A), _root(rows_G)
        Q = Q * d.unsqueeze(-1) * d.unsqueeze(-2)
        A, G = A * e_A.unsqueeze(-1) * d.unsqueeze(-2), G * e_G.unsqueeze(-1) * d.unsqueeze(-2)
        D, E_A, E_G = D * d, E_A * e_A, E_G * e_G
    turn = torch.zeros(P.size, dtype=torch.long, device=P.c.device) if turn is None else turn
    (far_h, far_lo, far_hi), bend = _far(replace(P, Q=Q, c=P.c * D), (D, E_A, E_G))
    first = (turn < 2).unsqueeze(-1)
    h = torch.where(far_h & first, torch.inf, P.h)
    lo = torch.where(far_lo & first, -torch.inf, P.lo)
    hi = torch.where(far_hi & first, torch.inf, P.hi)
    unit = _length(torch.cat([P.b * E_A, h * E_G], -1), torch.cat([lo / D, hi / D], -1))
    bend = torch.where(torch.isfinite(bend), bend, 0.0).unsqueeze(-1)
    small = unit < _SMALL * bend
    unit = torch.where((turn == 1).unsqueeze(-1) & small, bend, unit)
    left = (far_h.any(-1) | far_lo.any(-1) | far_hi.any(-1)) * 2
    left = torch.where((turn == 0) & small[:, 0], 1, torch.where(turn == 1, 2, left))
    left = torch.maximum(left, turn)
    D, E_A, E_G, Q = D * unit, E_A / unit, E_G / unit, Q * (unit**2).unsqueeze(-1)
    c = P.c * D
    size = torch.maximum(norms(Q, -1).mean(-1), largest(c))
    sigma = 1 / torch.where(size > 0, size, 1.0)
    program = Program(
        Q * sigma[:, None, None],
        c * sigma[:, None],
        A,
        P.b * E_A,
        G,
        h * E_G,
        lo / D,
        hi / D,
        P.bounded,
        P.absent,
    )
    return program, Scaling(D, E_A, E_G, sigma), left
