"""Strictly convex programs: the solution and its linear system from the active ends.

What is not clear here, a Q that is nearly singular, constraints that depend on one another, ties,
no solution at all, is left to the interior point, which can tell.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from legato._support.lazy import lazy
from legato.nn.programs.active_set import Candidate, judge, margin
from legato.nn.programs.dual import Dual, active_ends, active_part, gathered
from legato.nn.programs.inverses import compiled_for, inverses
from legato.nn.programs.program import Program, largest, times

_SOUND = 1e5
"""Entries of inverses up to here, in scaled units, leave a gradient its digits."""
_EXACT = 1e-12
_REFINEMENTS = 2
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


class StrictSystem:
    """The KKT system on active ends, solved by inverses of its parts and refined."""

    def __init__(self, P: Program, base: Base, D: Tensor, ends: Tensor) -> None:
        self.Q, self.A, self.base = P.Q, P.A.clone(), base
        self.m, self.M = P.h.shape[-1], ends.shape[-1]
        self.order, self.valid = gathered(ends != 0)
        self.W = self._rows(P.G)
        part = active_part(D, self.order, self.valid)
        self.Z, regular = inverses(part) if part.shape[-1] else (part, base.sound)
        self.sound = base.sound & regular & (_size(self.Z) <= _SOUND)

    def _rows(self, G: Tensor) -> Tensor:
        """The active rows: of G, or of the identity."""
        n, k = self.Q.shape[-1], self.order.shape[-1]
        if self.m == self.M:
            picked = G.gather(1, self.order.unsqueeze(-1).expand(-1, -1, n))
            return picked * self.valid.unsqueeze(-1)
        W = self.Q.new_zeros(G.shape[0], k, n)
        variable = (self.order - self.m).clamp(min=0).unsqueeze(-1)
        of_G = self.order < self.m
        W.scatter_(-1, variable, (self.valid & ~of_G).to(W).unsqueeze(-1))
        if self.m:
            at = self.order.clamp(max=self.m - 1).unsqueeze(-1).expand(-1, -1, n)
            W += G.gather(1, at) * (self.valid & of_G).unsqueeze(-1)
        return W

    @lazy
    def _matrices(self) -> tuple[Tensor, Tensor]:
        """The whole matrix and its inverse, put together from their parts: products are few."""
        n, p, k = self.Q.shape[-1], self.A.shape[-2], self.order.shape[-1]
        H, Y, S = self.base.H, self.base.Y, self.base.S
        K = self.Q.new_zeros(len(self.Q), n + p + k, n + p + k)
        K[:, :n, :n] = self.Q
        K[:, n:, :n] = torch.cat([self.A, self.W], 1) if p else self.W
        K[:, :n, n:] = K[:, n:, :n].mT
        base = torch.cat([torch.cat([H, Y], -1), torch.cat([Y.mT, -S], -1)], 1) if p else H
        X = base[:, :, :n] @ self.W.mT
        XZ = X @ self.Z
        V = torch.empty_like(K)
        V[:, : n + p, : n + p] = torch.baddbmm(base, XZ, X.mT, alpha=-1)
        V[:, : n + p, n + p :] = XZ
        V[:, n + p :, : n + p] = XZ.mT
        V[:, n + p :, n + p :] = -self.Z
        return K, V

    def solve(self, r_x: Tensor, r_y: Tensor, r_w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, y, z for right-hand sides, and what their equations miss."""
        right = torch.cat([r_x, r_y, r_w], -1)
        if compiled_for(r_x):
            from legato.nn.programs import numba

            H, Y, S = self.base.H, self.base.Y, self.base.S
            parts = (self.Q, self.A, self.W, H, Y, S, self.Z)
            found, missing = numba.refined(parts, self.valid.sum(-1), right, _REFINEMENTS)
        else:
            K, V = self._matrices
            column = right.unsqueeze(-1)
            solution = V @ column
            for _ in range(_REFINEMENTS):
                error = torch.baddbmm(column, K, solution, alpha=-1)
                solution = torch.baddbmm(solution, V, error)
            error = torch.baddbmm(column, K, solution, alpha=-1)
            found, missing = solution.squeeze(-1), largest(error.squeeze(-1))
        n, p = r_x.shape[-1], r_y.shape[-1]
        return found[:, :n], found[:, n : n + p], found[:, n + p :], missing

    def take(self, which: Tensor) -> StrictSystem:
        """Of some of the instances."""
        some = copy(self)
        for name in ("Q", "A", "W", "Z", "order", "valid"):
            setattr(some, name, getattr(self, name)[which])
        if "_matrices" in vars(self):
            vars(some)["_matrices"] = tuple(M[which] for M in self._matrices)
        H, Y, S, sound = (getattr(self.base, f.name)[which] for f in fields(Base))
        some.base = Base(H, Y, S, sound)
        return some

    def scatter(self, z: Tensor) -> Tensor:
        """Multipliers at their places among all rows."""
        return z.new_zeros(z.shape[0], self.M).scatter(-1, self.order, z * self.valid)

    def adjoint(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The solution (v_x, v_y, v_z) for (right, 0, 0), v_z over rows of G; what it misses."""
        nothing = right.new_zeros(right.shape[0], self.A.shape[-2])
        x, y, z, missing = self.solve(
            right, nothing, torch.zeros_like(self.order, dtype=right.dtype)
        )
        return x, y, self.scatter(z)[:, : self.m], missing


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
    base = base_of(P)
    if not bool(base.sound.any()):
        return None
    dual = dual_of(P, base)
    first = None
    if begin is not None:
        rows, lower, upper = (v.to(P.c) for v in P.split(begin))
        first = torch.cat([rows, upper - lower], -1) if P.bounded else rows
    ends, arrived, steps = active_ends(dual, limit, first)
    system = StrictSystem(P, base, dual.D, ends)
    upper, lower = ends > 0, ends < 0
    end = torch.where(upper, dual.upper, torch.where(lower, dual.lower, 0.0))
    x, y, some, _ = system.solve(-P.c, P.b, end.gather(-1, system.order) * system.valid)
    zeta, m = system.scatter(some), system.m
    sides = [zeta[:, :m], -zeta[:, m:], zeta[:, m:]] if P.bounded else [zeta]
    held = [upper[:, :m], lower[:, m:], upper[:, m:]] if P.bounded else [upper]
    active = torch.cat(held, -1)
    z = torch.where(active, torch.cat(sides, -1), 0.0)  # a product would leave −0
    residual = judge(P, x, y, z)
    clear = arrived & system.sound & (residual <= _EXACT) & (margin(P, x, z) > tie)
    return (
        Candidate(x, y, z.clamp(min=0), active, torch.where(clear, residual, torch.inf)),
        steps,
        system,
    )
