"""Equilibration: rows and columns of the KKT matrix are brought to the size of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times
from legato.nn.programs.replayed import replayed

if TYPE_CHECKING:
    from legato.nn.programs.sparse_matrix import SparseMatrix

_PASSES = 11
"""Where norms are wide apart, the first brings geometric means to one, not largest entries."""
_MEANS = 20
"""Steps towards even geometric means; each leaves half of what is missing, or less."""
_EVEN = 4.0
"""Norms within this factor of one need no further pass."""
_WIDE = 100.0
"""Norms beyond this factor of one: the largest entries of what remains could be even by chance."""
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
    return largest(matrix, axis)


def _norms(Q: Any, A: Any, G: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The largest entry of every column and row of the KKT matrix, one where all are zero; how far
    they are from one in an instance, and in any.
    """
    columns, rows = norms(Q, -2), []
    for matrix in (A, G):
        if 0 not in matrix.shape:
            columns = torch.maximum(columns, norms(matrix, -2))
            rows.append(norms(matrix, -1))
        else:
            rows.append(columns.new_ones(matrix.shape[:2]))
    every = torch.cat([columns, *rows], -1)
    every = every.masked_fill(every == 0, 1.0)
    least, most = torch.aminmax(every, dim=-1, keepdim=True)
    spread = torch.maximum(most, 1 / least)
    return every, spread, spread.amax()


def _multiplied(Q: Any, A: Any, G: Any, s: Tensor, factors: Tensor) -> tuple[Any, Any, Any, Tensor]:
    """The matrices and s by such factors of columns and rows."""
    n, p = Q.shape[-1], A.shape[-2]
    d, e_A, e_G = factors.split([n, p, s.shape[-1] - n - p], -1)
    row = d.unsqueeze(-2)
    Q = Q * d.unsqueeze(-1) * row
    A, G = (M * e.unsqueeze(-1) * row if e.shape[-1] else M for M, e in ((A, e_A), (G, e_G)))
    return Q, A, G, s * factors


def _logs(matrix: Tensor | SparseMatrix) -> tuple[Any, Any]:
    """log |M| where M is not zero, zero elsewhere, and a one where M is not."""
    if not isinstance(matrix, Tensor):
        return matrix.logs()
    there = matrix != 0
    return torch.where(there, matrix.abs().log(), 0.0), there.to(matrix)


def _middling(P: Program) -> Tensor:
    """Factors of columns and rows that bring the geometric means of their entries to one.

    They minimise Σ (log |k_ij| + s_i + s_j)² over the entries of the KKT matrix, so that units of
    the data drop out, as they do not from largest entries: those can be even in many ways.
    """
    n, p = P.n, P.b.shape[-1]
    blocks = [_logs(matrix) for matrix in (P.Q, P.A, P.G)]
    one = torch.ones_like(P.c)
    sums, counts = ([times(block[k], one) for block in blocks] for k in (0, 1))
    for L, there in blocks[1:]:
        every = one.new_ones(P.size, L.shape[1])
        sums[0] = sums[0] + times(L.mT, every)
        counts[0] = counts[0] + times(there.mT, every)
    total, count = torch.cat(sums, -1), torch.cat(counts, -1).clamp(min=1)
    Q, A, G = (there for _, there in blocks)
    s = torch.zeros_like(total)
    for _ in range(_MEANS):
        d, e_A, e_G = s[:, :n], s[:, n : n + p], s[:, n + p :]
        columns = times(Q, d) + times(A.mT, e_A) + times(G.mT, e_G)
        others = torch.cat([columns, times(A, d), times(G, d)], -1)
        s = 0.5 * (s - (total + others) / count)
    return s.exp()


def _length(sides: Tensor, bounds: Tensor | None) -> Tensor:
    """About the size of x: the largest right-hand side, or a bound of middling size if larger.

    Bounds may be huge and mean nothing, right-hand sides may be rounding where zero is meant.
    """
    unit = largest(sides.masked_fill(sides.abs() == torch.inf, 0.0))
    if bounds is not None:
        size = bounds.abs()
        counted = (size < torch.inf) & (size > 0)
        count = counted.sum(-1)
        middling = (torch.where(counted, size, 1.0).log().sum(-1) / count.clamp(min=1)).exp()
        unit = torch.maximum(unit, torch.where(count > 0, middling, 0.0))
    return unit.masked_fill(unit == 0, 1.0).unsqueeze(-1)


def _far(P: Program, sides: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Which of these sides are so large that they can hardly bind, and the length −c/Q."""
    stiff, pull = largest(norms(P.Q, -1)), largest(P.c)
    bend = torch.where((stiff > 0) & (pull > 0), pull / stiff, torch.inf)
    size = sides.abs()
    counted = size < torch.inf
    least = torch.where(counted & (size > 0), size, torch.inf).amin(-1) if size.shape[-1] else bend
    reach = _FAR * torch.maximum(torch.minimum(least, bend), largest(b))
    return counted & (size > reach.unsqueeze(-1)), bend


def scaled(
    program: Program, turn: Tensor | None = None, pinned: Tensor | None = None
) -> tuple[Program, Scaling, Tensor]:
    """The program in better units, after Ruiz (2001); data that are even already stay so, and those
    that are wide apart come to even geometric means first, after Curtis and Reid (1972).

    Sides that are far are left out at first: a solution that respects them all the same is that of
    the whole program. Where sides are of the size of rounding, the length −c/Q is the next unit to
    be tried. The last turn takes everything as it is.

    Args:
        program (Program): the programs.
        turn (Tensor, optional): (B,) 0, 1 or 2, which of these to do. Default: 0 for all
        pinned (Tensor, optional): (B, n) variables that were folded away, and held at zero by a
            one in Q: in scaled units, for in those of the data it would outweigh the others.

    Returns:
        tuple: the scaled programs, how they were scaled, and the turn that is left for each one
        that is not solved, or the same where there is none.
    """
    P = program
    Q, A, G = P.Q, P.A, P.G
    s = P.c.new_ones(P.size, P.n + P.b.shape[-1] + P.h.shape[-1])
    for number in range(_PASSES):
        every, spread, far = replayed(_norms, Q, A, G)
        widest = float(far)
        if widest <= _EVEN:
            break
        factors = every.rsqrt().masked_fill(spread <= _EVEN, 1.0)
        if number == 0 and widest > _WIDE:
            factors = torch.where(spread > _WIDE, _middling(P), factors)
        Q, A, G, s = replayed(_multiplied, Q, A, G, s, factors)
    turn = torch.zeros(P.size, dtype=torch.long, device=P.c.device) if turn is None else turn
    Q, c, b, h, lo, hi, D, E_A, E_G, sigma, left = replayed(
        _in_units, replace(P, Q=Q, A=A, G=G), s, turn
    )
    if pinned is not None:
        held = pinned.to(c)
        Q = Q + torch.diag_embed(held) if isinstance(Q, Tensor) else Q.plus_diagonal(held)
    inner = Program(Q, c, A, b, G, h, lo, hi, P.bounded, P.absent)
    return inner, Scaling(D, E_A, E_G, sigma), left


def _in_units(P: Program, s: Tensor, turn: Tensor) -> tuple[Any, ...]:
    """What depends on sides and cost, of a program whose matrices alone are multiplied by s."""
    n, m, bounded = P.n, P.h.shape[-1], P.bounded
    D, E_A, E_G = s.split([n, P.b.shape[-1], m], -1)
    b, c = P.b * E_A, P.c * D
    sides = torch.cat([P.h * E_G, P.lo / D, P.hi / D], -1) if bounded else P.h * E_G
    far, bend = _far(replace(P, c=c), sides, b)
    open_end = torch.full_like(sides[0], torch.inf)
    open_end[m : m + n].neg_()
    sides = torch.where(far & (turn < 2).unsqueeze(-1), open_end, sides)
    h, bounds = sides[:, :m], sides[:, m:]
    unit = _length(torch.cat([b, h], -1), bounds if bounded else None)
    bend = bend.masked_fill(bend == torch.inf, 0.0).unsqueeze(-1)
    small = unit < _SMALL * bend
    unit = torch.where((turn == 1).unsqueeze(-1) & small, bend, unit)
    left = torch.where((turn == 0) & small[:, 0], 1, torch.where(turn == 1, 2, far.any(-1) * 2))
    left = torch.maximum(left, turn)
    Q, c = P.Q * (unit**2).unsqueeze(-1), c * unit
    size = torch.maximum(norms(Q, -1).mean(-1), largest(c))
    sigma = 1 / size.masked_fill(size == 0, 1.0)
    lo, hi = (bounds[:, :n] / unit, bounds[:, n:] / unit) if bounded else (P.lo, P.hi)
    cost = sigma.unsqueeze(-1)
    return (
        Q * cost.unsqueeze(-1), c * cost, b / unit, h / unit, lo, hi,
        D * unit, E_A / unit, E_G / unit, sigma, left,
    )  # fmt: skip
