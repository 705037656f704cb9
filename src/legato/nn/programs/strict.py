"""Strictly convex programs: the solution and its linear system from the active ends.

What is not clear here, a Q that is nearly singular, constraints that depend on one another, ties,
no solution at all, is left to the interior point, which can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from legato.nn.programs.active_set import Candidate, judge, margin
from legato.nn.programs.dual import Dual, active_ends, active_part
from legato.nn.programs.inverses import compiled_for, inverses
from legato.nn.programs.program import Program, largest, times
from legato.nn.programs.replayed import replayed

_SOUND = 1e5
"""Entries of inverses up to here, in scaled units, leave a gradient its digits."""
_EXACT = 1e-12
_REFINEMENTS = 2
_ROUND = 8
"""On a GPU the number of active rows is rounded up to a multiple of this."""
_ROWS = 16
"""Rows for each variable, at most: with more, D is larger than what the interior point factors."""
_ENTRIES = 2**27
"""Entries of D in a batch, at most: a gigabyte."""


@dataclass(frozen=True)
class Base:
    """The inverse (H Y; Yᵀ −S) of the KKT matrix without inequalities, and where it is sound."""

    H: Tensor
    Y: Tensor
    S: Tensor
    sound: Tensor

    def __call__(self, r_x: Tensor, r_y: Tensor) -> tuple[Tensor, Tensor]:
        return (
            times(self.H, r_x) + times(self.Y, r_y),
            times(self.Y.mT, r_x) - times(self.S, r_y),
        )


def base_of(P: Program) -> Base:
    """H = Q⁻¹ without equations, and its projection on the null space of A with them."""
    H, sound = inverses(P.Q)
    sound = sound & (_size(H) <= _SOUND)
    AH = P.A @ H
    if P.b.shape[-1] == 0:
        return Base(H, AH.mT, AH @ P.A.mT, sound)
    S, regular = inverses(AH @ P.A.mT + torch.diag_embed(P.absent.to(P.c)))
    Y = AH.mT @ S
    return Base(H - Y @ AH, Y, S, sound & regular & (_size(S) <= _SOUND))


def _size(inverse: Tensor) -> Tensor:
    """The largest entry of a positive definite matrix is on its diagonal."""
    return largest(inverse.diagonal(dim1=-2, dim2=-1))


def dual_of(P: Program, base: Base) -> Dual:
    """The program in its multipliers."""
    x, _ = base(-P.c, P.b)
    GH = P.G @ base.H
    D, t, lower, upper = GH @ P.G.mT, times(P.G, x), torch.full_like(P.h, -torch.inf), P.h
    if P.bounded:
        D = torch.cat([torch.cat([D, GH], -1), torch.cat([GH.mT, base.H], -1)], -2)
        t, lower, upper = (torch.cat(v, -1) for v in ((t, x), (lower, P.lo), (upper, P.hi)))
    return Dual(D, t, lower, upper)


@dataclass(frozen=True)
class StrictSystem:
    """The KKT system on active ends, solved by inverses of its parts and refined.

    ``W`` are the active rows, padded to the largest number in the batch, at the places ``order``
    where ``valid``; ``Z`` is the inverse of what is active in D. ``K`` and ``V`` are the whole
    matrix and its inverse, where products are few; they are empty where loops are compiled.
    """

    Q: Tensor
    A: Tensor
    W: Tensor
    Z: Tensor
    K: Tensor
    V: Tensor
    base: Base
    order: Tensor
    valid: Tensor
    sound: Tensor
    rows: int
    """How many rows of G there are."""
    every: int
    """The same with the variables, where they have bounds."""

    def solve(self, r_x: Tensor, r_y: Tensor, r_w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, y, z for right-hand sides, and what their equations miss."""
        right = torch.cat([r_x, r_y, r_w], -1)
        if compiled_for(r_x):
            from legato.nn.programs import numba

            H, Y, S = self.base.H, self.base.Y, self.base.S
            parts = (self.Q, self.A, self.W, H, Y, S, self.Z)
            found, missing = numba.refined(parts, self.valid.sum(-1), right, _REFINEMENTS)
        else:
            column = right.unsqueeze(-1)
            solution = self.V @ column
            for _ in range(_REFINEMENTS):
                error = torch.baddbmm(column, self.K, solution, alpha=-1)
                solution = torch.baddbmm(solution, self.V, error)
            error = torch.baddbmm(column, self.K, solution, alpha=-1)
            found, missing = solution.squeeze(-1), largest(error.squeeze(-1))
        n, p = r_x.shape[-1], r_y.shape[-1]
        return found[:, :n], found[:, n : n + p], found[:, n + p :], missing

    def take(self, which: Tensor) -> StrictSystem:
        """Of some of the instances."""
        picked = {
            f.name: getattr(self, f.name)[which]
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        base = Base(*(getattr(self.base, f.name)[which] for f in fields(Base)))
        return replace(self, **picked, base=base)

    def scatter(self, z: Tensor) -> Tensor:
        """Multipliers at their places among all rows."""
        return z.new_zeros(z.shape[0], self.every).scatter(-1, self.order, z * self.valid)

    def adjoint(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The solution (v_x, v_y, v_z) for (right, 0, 0), v_z over rows of G; what it misses."""
        nothing = right.new_zeros(right.shape[0], self.A.shape[-2])
        x, y, z, missing = self.solve(
            right, nothing, torch.zeros_like(self.order, dtype=right.dtype)
        )
        return x, y, self.scatter(z)[:, : self.rows], missing


def system_of(P: Program, base: Base, D: Tensor, order: Tensor, valid: Tensor) -> StrictSystem:
    """The system whose active ends are in these places."""
    n, p, m, k = P.n, P.b.shape[-1], P.h.shape[-1], order.shape[-1]
    W, A = _active_rows(P, order, valid), P.A.clone()
    part = active_part(D, order, valid)
    Z, regular = inverses(part) if k else (part, base.sound)
    sound = base.sound & regular & (_size(Z) <= _SOUND)
    if compiled_for(P.c):
        K = V = P.c.new_empty(P.size, 0)
        return StrictSystem(P.Q, A, W, Z, K, V, base, order, valid, sound, m, D.shape[-1])
    K = P.c.new_zeros(P.size, n + p + k, n + p + k)
    K[:, :n, :n] = P.Q
    K[:, n:, :n] = torch.cat([A, W], 1) if p else W
    K[:, :n, n:] = K[:, n:, :n].mT
    H, Y, S = base.H, base.Y, base.S
    inner = torch.cat([torch.cat([H, Y], -1), torch.cat([Y.mT, -S], -1)], 1) if p else H
    X = inner[:, :, :n] @ W.mT
    XZ = X @ Z
    V = torch.empty_like(K)
    V[:, : n + p, : n + p] = torch.baddbmm(inner, XZ, X.mT, alpha=-1)
    V[:, : n + p, n + p :] = XZ
    V[:, n + p :, : n + p] = XZ.mT
    V[:, n + p :, n + p :] = -Z
    return StrictSystem(P.Q, A, W, Z, K, V, base, order, valid, sound, m, D.shape[-1])


def _active_rows(P: Program, order: Tensor, valid: Tensor) -> Tensor:
    """The active rows: of G, or of the identity."""
    n, m, k = P.n, P.h.shape[-1], order.shape[-1]
    if not P.bounded:
        picked = P.G.gather(1, order.unsqueeze(-1).expand(-1, -1, n))
        return picked * valid.unsqueeze(-1)
    W = P.c.new_zeros(P.size, k, n)
    variable = (order - m).clamp(min=0).unsqueeze(-1)
    of_G = order < m
    W.scatter_(-1, variable, (valid & ~of_G).to(W).unsqueeze(-1))
    if m:
        at = order.clamp(max=m - 1).unsqueeze(-1).expand(-1, -1, n)
        W += P.G.gather(1, at) * (valid & of_G).unsqueeze(-1)
    return W


def solve_strictly(
    P: Program, limit: int, tie: float, begin: Tensor | None = None
) -> tuple[Candidate, Tensor, StrictSystem] | None:
    """Solutions, where they are beyond doubt, and the system of each; None where there are none.

    Args:
        P (Program): folded and scaled.
        limit (int): guesses of the active ends, at most.
        tie (float): margins below this are left to the interior point.
        begin (Tensor, optional): inequalities that may be active, to be tried first.

    Returns:
        tuple: the points, their residual infinite where there is a doubt; guesses; the system.
    """
    M = P.h.shape[-1] + (P.n if P.bounded else 0)
    if _ROWS * P.n < M or P.size * M * M > _ENTRIES:
        return None
    H, Y, S, sound, D, t, low, high, any_sound = replayed(_in_multipliers, P)
    if not bool(any_sound):
        return None
    base, dual = Base(H, Y, S, sound), Dual(D, t, low, high)
    first = None
    if begin is not None:
        rows, lower, upper = (v.to(P.c) for v in P.split(begin))
        first = torch.cat([rows, upper - lower], -1) if P.bounded else rows
    ends, arrived, steps = active_ends(dual, limit, first)
    order, valid, counts = replayed(_ordered, ends)
    k = int(counts) if M else 0
    if not compiled_for(P.c):  # another number would be another graph
        k = min(-(-k // _ROUND) * _ROUND, M)
    x, y, z, active, residual, *system = replayed(
        _solved_on, P, base, dual, ends, arrived, order[:, :k], valid[:, :k], tie
    )
    A, W, Z, K, V, sound = system
    order, valid = order[:, :k], valid[:, :k]
    found = StrictSystem(P.Q, A, W, Z, K, V, base, order, valid, sound, P.h.shape[-1], M)
    return Candidate(x, y, z, active, residual), steps, found


def _in_multipliers(P: Program) -> tuple[Tensor, ...]:
    base = base_of(P)
    dual = dual_of(P, base)
    return (
        base.H, base.Y, base.S, base.sound, dual.D, dual.t, dual.lower, dual.upper,
        base.sound.any(),
    )  # fmt: skip


def _ordered(ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places of all rows, active ones first; which are; the largest number of those."""
    active = ends != 0
    if not active.shape[-1]:
        return torch.zeros_like(active, dtype=torch.long), active, active.new_zeros(())
    order = active.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return order, active.gather(-1, order), active.sum(-1).amax()


def _solved_on(
    P: Program,
    base: Base,
    dual: Dual,
    ends: Tensor,
    arrived: Tensor,
    order: Tensor,
    valid: Tensor,
    tie: float,
) -> tuple[Tensor, ...]:
    """The point on these ends, its residual, infinite where there is a doubt, and the system."""
    system = system_of(P, base, dual.D, order, valid)
    upper, lower = ends > 0, ends < 0
    end = torch.where(lower, dual.lower, dual.upper).masked_fill(ends == 0, 0.0)
    x, y, some, _ = system.solve(-P.c, P.b, end.gather(-1, order) * valid)
    zeta, m = system.scatter(some), system.rows
    sides = [zeta[:, :m], -zeta[:, m:], zeta[:, m:]] if P.bounded else [zeta]
    held = [upper[:, :m], lower[:, m:], upper[:, m:]] if P.bounded else [upper]
    active = torch.cat(held, -1)
    z = torch.cat(sides, -1).masked_fill(~active, 0.0)  # a product would leave −0
    residual = judge(P, x, y, z)
    clear = arrived & system.sound & (residual <= _EXACT) & (margin(P, x, z) > tie)
    residual = residual.masked_fill(~clear, torch.inf)
    made = system.A, system.W, system.Z, system.K, system.V, system.sound
    return x, y, z.clamp(min=0), active, residual, *made
