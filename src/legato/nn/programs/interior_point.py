"""The way to the neighbourhood of the solution: Mehrotra's predictor and corrector, batched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from legato.nn.programs.program import Program, largest, times

if TYPE_CHECKING:
    from legato.nn.programs.sparse_systems import SparseNewton

PROXIMAL = 1e-8
"""Weight of ½‖x − xᵏ‖², and for y and z: systems stay regular, and the limit is not moved."""
LIGHT = 1e-10
"""That of y once a step came no nearer: it has a long way to go if equations nearly depend."""
_FRACTION = 0.995
"""How far towards the boundary a step may go."""


@dataclass
class Point:
    """Primal x, multipliers y of equalities, slacks s > 0 and multipliers z > 0 of inequalities."""

    x: Tensor
    y: Tensor
    s: Tensor
    z: Tensor

    def take(self, which: Tensor) -> Point:
        if which.shape[0] == self.x.shape[0]:
            return self
        return Point(self.x[which], self.y[which], self.s[which], self.z[which])


@dataclass
class Progress:
    """What one step found out about the point it started from, per instance."""

    distance: Tensor
    step: Tensor


class _System:
    """(Q + ρ + CᵀWC) dx + Aᵀdy = r, A dx − ρ dy = q: Cholesky without equalities, LU with them."""

    def __init__(self, P: Program, w: Tensor, weight: Tensor) -> None:
        self.P = P
        w_G, w_lo, w_hi = P.split(w)
        H = torch.baddbmm(P.Q, P.G.mT * w_G.unsqueeze(-2), P.G) if P.G.shape[1] else P.Q.clone()
        H.diagonal(dim1=-2, dim2=-1).add_(w_lo + w_hi + PROXIMAL)
        p = P.b.shape[-1]
        if p == 0:
            self.L, info = torch.linalg.cholesky_ex(H)
            if bool(info.any()):  # rounding: a heavier proximal term
                H.diagonal(dim1=-2, dim2=-1).add_(1e-14 * H.abs().amax((-2, -1))[:, None] + 1e-8)
                self.L = torch.linalg.cholesky_ex(H)[0]
            return
        n = P.n
        self.K = H.new_zeros(P.size, n + p, n + p)
        self.K[:, :n, :n] = H
        self.K[:, n:, :n] = P.A
        self.K[:, :n, n:] = P.A.mT
        self.K[:, n:, n:].diagonal(dim1=-2, dim2=-1).copy_(-weight.unsqueeze(-1))
        self.LU, self.pivots, _ = torch.linalg.lu_factor_ex(self.K)

    def solve(self, r: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        if q.shape[-1] == 0:
            return torch.cholesky_solve(r.unsqueeze(-1), self.L).squeeze(-1), q
        right = torch.cat([r, q], -1).unsqueeze(-1)
        found = torch.linalg.lu_solve(self.LU, self.pivots, right)
        missing = right - self.K @ found
        found = (found + torch.linalg.lu_solve(self.LU, self.pivots, missing)).squeeze(-1)
        return found[:, : self.P.n], found[:, self.P.n :]


def _system(P: Program, w: Tensor, weight: Tensor) -> _System | SparseNewton:
    if isinstance(P.Q, Tensor):
        return _System(P, w, weight)
    from legato.nn.programs.sparse_systems import SparseNewton

    return SparseNewton(P, w, PROXIMAL, float(weight))


def start(P: Program) -> Point:
    """The least-squares start of Vandenberghe (2010): s = d − Cx and z, both moved inside."""
    d, on = P.sides
    w = on.to(d)
    weight = torch.full_like(P.c[:, 0], PROXIMAL)
    x, y = _system(P, w, weight).solve(P.pull(w * d) - P.c, P.b)
    gap = torch.where(on, d - P.rows(x), 1.0)
    return Point(x, y, _moved_inside(gap, on), _moved_inside(-gap, on) * w)


def _moved_inside(values: Tensor, on: Tensor) -> Tensor:
    if values.shape[-1] == 0:
        return values
    lowest = torch.where(on, values, torch.inf).amin(-1, keepdim=True)
    lowest = torch.where(torch.isfinite(lowest), lowest, 1.0)
    size = 1e-8 * largest(values).clamp(min=1.0).unsqueeze(-1)
    moved = torch.where(lowest < size, values + 1 - lowest, values)
    return torch.where(on, moved, 1.0)


def _longest(value: Tensor, change: Tensor) -> Tensor:
    """The largest t ≤ 1 with value + t·change ≥ 0, per instance."""
    if value.shape[-1] == 0:
        return value.new_ones(value.shape[0])
    ratio = torch.where(change < 0, -value / change, torch.inf)
    return ratio.amin(-1).clamp(max=1.0)


def step(P: Program, at: Point, weight: Tensor) -> tuple[Point, Progress]:
    """One predictor–corrector step, and how far the point before it was from a solution.

    ``weight`` (B,) is that of the proximal term of y.
    """
    d, on = P.sides
    w_on = on.to(d)
    count = on.sum(-1).clamp(min=1)
    x, y, s, z = at.x, at.y, at.s, at.z
    Qx = times(P.Q, x)
    gradient = Qx + P.c + times(P.A.mT, y)
    dual = gradient + P.pull(z)
    equal = times(P.A, x) - P.b
    slack = (P.rows(x) + s - d) * w_on
    mu = (s * z * w_on).sum(-1) / count
    energy = 1 + (0.5 * x * Qx + P.c * x).sum(-1).abs()
    distance = torch.stack(
        [
            largest(dual) / (1 + largest(P.c)),
            largest(equal) / (1 + largest(P.b)),
            largest(slack) / (1 + largest(d)),
            mu * count / energy,
        ]
    ).amax(0)
    stiff = s + PROXIMAL * z
    w = z / stiff
    system = _system(P, w, weight)

    def direction(complementarity: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pushed = w * slack - complementarity / stiff
        dx, dy = system.solve(-gradient - P.pull(z + pushed), -equal)
        moved = P.rows(dx)
        dz = (w * moved + pushed) * w_on
        ds = (PROXIMAL * dz - slack - moved) * w_on
        return dx, dy, ds, dz

    _, _, ds, dz = direction(s * z)
    t = torch.minimum(_longest(s, ds), _longest(z, dz)).unsqueeze(-1)
    reached = ((s + t * ds) * (z + t * dz) * w_on).sum(-1) / count
    centre = (reached / mu.clamp(min=1e-300)).clamp(max=1.0) ** 3 * mu
    dx, dy, ds, dz = direction((s * z + t * t * ds * dz - centre.unsqueeze(-1)) * w_on)
    t = torch.minimum(_longest(s, ds), _longest(z, dz))
    t = torch.where(t < 1, _FRACTION * t, t)
    t = torch.where(torch.isfinite(t) & torch.isfinite(dx).all(-1), t, 0.0)
    move = t.unsqueeze(-1)
    moved = Point(
        x + move * torch.nan_to_num(dx),
        y + move * torch.nan_to_num(dy),
        torch.where(on, s + move * torch.nan_to_num(ds), 1.0),
        torch.where(on, z + move * torch.nan_to_num(dz), 0.0),
    )
    return moved, Progress(distance, t)
