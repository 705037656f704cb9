"""Which constraints of a strictly convex program hold as equations, found in its multipliers.

With H the inverse of Q, on the null space of A where there are equations, and t = Cx₀ at the point
that minimises without inequalities, the program is small: Cx = t − Dζ with D = CHCᵀ and ζ_i > 0
only at an upper, < 0 only at a lower end. A row that violates its end becomes active, one whose
multiplier has the wrong sign leaves: all at once while that makes fewer wrong rows, then one by
one, which ends. A guess costs a factorisation of the active part of D.
Reference: Júdice and Pires (1992); Kim and Park (2011); for rows that enter one by one, in compiled
loops, Goldfarb and Idnani (1983).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.nn.fused.choice import available
from legato.nn.programs.inverses import compiled_for, fused_for
from legato.nn.programs.program import times

_PATIENCE = 3
"""Blocks that may fail to make fewer wrong rows before single ones are exchanged."""
_TURNS = (5, 25, 25)
"""Exchanges in a turn; before the next, a better guess is made. Compiled loops need one turn."""
_WRONG = 1e-11
"""What counts as violated, relative to the row's size."""
_DEPENDENT = 1e-10
"""A row of which no more than this share is left beside the active ones depends on them."""
_SWEEPS = (24, 120, 600)
"""Steps of the projected gradient before each turn of exchanges."""
_FEW = 256
"""So many instances on a GPU are rather sent to the CPU."""


@dataclass(frozen=True)
class Dual:
    """Ends lower ≤ t − Dζ ≤ upper of all rows: those of G, then the variables, if bounded."""

    D: Tensor
    t: Tensor
    lower: Tensor
    upper: Tensor

    def take(self, which: Tensor) -> Dual:
        if which.shape[0] == self.t.shape[0]:
            return self
        return Dual(self.D[which], self.t[which], self.lower[which], self.upper[which])

    def on(self, device: str) -> Dual:
        return Dual(*(v.to(device) for v in (self.D, self.t, self.lower, self.upper)))


def active_ends(
    dual: Dual, limit: int, begin: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """−1, 0 or 1 for every row at the solution; where that was found; guesses that it took.

    ``begin`` are ends to try first.
    """
    if compiled_for(dual.t):
        return _compiled(dual, limit, begin)
    if fused_for(dual.t):
        return _fused(dual, limit, begin)
    first = guess(dual, _SWEEPS[0]) if begin is None else begin
    ends, arrived, steps = exchanged(dual, first, min(limit, _TURNS[0]))
    rounds = list(zip(_TURNS, _SWEEPS, strict=True))
    for turn, sweeps in rounds[1:] if begin is None else rounds:
        left = (~arrived).nonzero().squeeze(-1)
        if left.shape[0] == 0:
            break
        some = dual.take(left)
        if left.shape[0] <= _FEW and available("numba"):
            # On a GPU the last few cost as much as all: their steps follow one another.
            found = [out.to(left.device) for out in _compiled(some.on("cpu"), limit)]
            ends[left], arrived[left], more = found
            steps[left] += more
            break
        ends[left], arrived[left], more = exchanged(some, guess(some, sweeps), min(limit, turn))
        steps[left] += more
    return ends, arrived, steps


def _compiled(dual: Dual, limit: int, begin: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    from legato.nn.programs import numba

    parts = (dual.D, dual.t, dual.lower, dual.upper)
    ends, steps = numba.active_ends(parts, begin, limit, _WRONG, _DEPENDENT, _PATIENCE)
    return ends, steps > 0, steps.abs()


def _fused(dual: Dual, limit: int, begin: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from legato.nn.programs import triton

    parts = (dual.D, dual.t, dual.lower, dual.upper)
    ends, steps = triton.active_ends(parts, begin, limit, _WRONG, _DEPENDENT, _PATIENCE)
    return ends, steps > 0, steps.abs()


def guess(dual: Dual, steps: int) -> Tensor:
    """The signs of ζ after so many accelerated steps of the projected gradient.

    Where more rows seem active than can be at once, only more steps make them fewer.
    """
    diagonal = dual.D.diagonal(dim1=-2, dim2=-1)
    root = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    # Rows of length one: then the largest row sum bounds the largest eigenvalue.
    E = dual.D * root.unsqueeze(-1) * root.unsqueeze(-2)
    step = 1 / E.abs().sum(-1).amax(-1, keepdim=True).clamp(min=1.0)
    F = torch.eye(E.shape[-1], dtype=E.dtype, device=E.device) - E * step.unsqueeze(-1)
    t, lower, upper = ((v * root * step).unsqueeze(-1) for v in (dual.t, dual.lower, dual.upper))
    zeta = before = torch.zeros_like(t)
    for k in range(steps):
        ahead = torch.lerp(before, zeta, 1 + k / (k + 3))
        value = torch.baddbmm(t, F, ahead)
        before = zeta  # and ζ⁺ = v − Π(v), with the projection on [lower, upper]
        zeta = value - value.clamp(lower, upper)
    return zeta.squeeze(-1).sign()


def gathered(active: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the active rows, padded to the largest number in the batch, and which are real."""
    k = int(active.sum(-1).amax()) if active.shape[-1] else 0
    order = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :k]
    return order, active.gather(-1, order)


def active_part(D: Tensor, order: Tensor, valid: Tensor) -> Tensor:
    """Rows and columns of D that are active, with an identity in the padding."""
    at = torch.arange(D.shape[0], device=D.device)[:, None, None]
    part = D[at, order.unsqueeze(-1), order.unsqueeze(-2)]
    part = part * (valid.unsqueeze(-1) & valid.unsqueeze(-2))
    part.diagonal(dim1=-2, dim2=-1).add_((~valid).to(part))
    return part


def exchanged(dual: Dual, start: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """From a guess to the right ends, by exchange of wrong rows."""
    B, M = dual.t.shape
    device = start.device
    found, steps = start.clone(), torch.zeros(B, dtype=torch.long, device=device)
    arrived = torch.zeros(B, dtype=torch.bool, device=device)
    left, part, ends = torch.arange(B, device=device), dual, start
    fewest = torch.full((B,), M + 1, device=device)
    patience = torch.full((B,), _PATIENCE, device=device)
    numbers = torch.arange(M, device=device)
    for step in range(1, limit + 1):
        order, valid = gathered(ends != 0)
        inner = active_part(part.D, order, valid)
        L, info = torch.linalg.cholesky_ex(inner)
        left_over = L.diagonal(dim1=-2, dim2=-1).square()
        independent = left_over > _DEPENDENT * inner.diagonal(dim1=-2, dim2=-1)
        sound = (info == 0) & independent.all(-1)
        end = torch.where(ends > 0, part.upper, part.lower).gather(-1, order)
        right = torch.where(valid, part.t.gather(-1, order) - end, 0.0)
        active = torch.cholesky_solve(right.unsqueeze(-1), L).squeeze(-1)
        zeta = torch.zeros_like(ends).scatter(-1, order, active * valid)
        row = part.t - times(part.D, zeta)
        size = _WRONG * (1 + row.abs())
        entering = (row > part.upper + size).to(ends) - (row < part.lower - size).to(ends)
        wrong = torch.where(ends == 0, entering != 0, ends * zeta < 0)
        count = wrong.sum(-1)
        fewer = count < fewest
        fewest = torch.minimum(count, fewest)
        patience = torch.where(fewer, _PATIENCE, patience - 1)
        last = torch.where(wrong, numbers, -1).amax(-1, keepdim=True)
        moving = wrong & ((patience >= 0).unsqueeze(-1) | (numbers == last))
        done = (count == 0) & sound
        ended = done | ~sound
        steps[left] = step
        if bool(ended.any()):
            which = left[done]
            found[which], arrived[which] = ends[done], True
            stay = (~ended).nonzero().squeeze(-1)
            if stay.shape[0] == 0:
                break
            left, part, ends = left[stay], part.take(stay), ends[stay]
            entering, moving = entering[stay], moving[stay]
            fewest, patience = fewest[stay], patience[stay]
        ends = torch.where(moving, torch.where(ends == 0, entering, 0.0), ends)
    return found, arrived, steps
