"""From near the solution to the solution: equality-constrained solves on the active set.

Semismooth Newton on the KKT conditions is the primal–dual active set method: a row enters where it
is violated, and leaves where its multiplier is negative. What satisfies the KKT conditions is a
solution, however its active set was found. Reference: Hintermüller, Ito and Kunisch (2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from legato.nn.programs.program import Program, is_finite, largest, times

if TYPE_CHECKING:
    from legato.nn.programs.sparse_matrix import SparseMatrix

_SHIFT = 1e-9
"""On the diagonal of the system, and taken back by refinement: dependent rows do no harm."""
_REFINEMENTS = 10
_ROUNDING = 1e-14
_PROBES = 4
_SINGULAR = 1e-3 / _SHIFT
"""A response of this size to a unit right-hand side comes from the shift alone."""


@dataclass
class Candidate:
    """A point that satisfies the KKT conditions on an active set, up to ``residual``."""

    x: Tensor
    y: Tensor
    z: Tensor
    active: Tensor
    residual: Tensor


class ActiveSystem:
    """The KKT system with active rows as equations and variables at a bound held fixed.

    Rows of G are gathered and padded to the largest number that is active in the batch.
    """

    def __init__(self, P: Program, active: Tensor) -> None:
        self.P = P
        self.active = active
        rows, lower, upper = P.split(active)
        self.free = (~(lower | upper)).to(P.c) if P.bounded else None
        counts = rows.sum(-1)
        k = int(counts.amax()) if rows.numel() else 0
        self.order = rows.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :k]
        self.valid = rows.gather(-1, self.order)
        n, p = P.n, P.b.shape[-1]
        self.size = n + p + k
        added = P.c.new_zeros(P.size, self.size)
        if self.free is not None:
            added[:, :n] = 1 - self.free
        added[:, n : n + p] = -P.absent.to(P.c)
        added[:, n + p :] = -(~self.valid).to(P.c)
        self.shift = torch.full_like(added, _SHIFT)
        self.shift[:, n:] = -_SHIFT
        self._build(added + self.shift)

    def _build(self, diagonal: Tensor) -> None:
        """The matrix and its factors; ``diagonal`` is added to what the data give."""
        P, n, p = self.P, self.P.n, self.P.b.shape[-1]
        picked = P.G.gather(1, self.order.unsqueeze(-1).expand(-1, -1, n))
        picked = picked * self.valid.unsqueeze(-1)
        M = P.c.new_zeros(P.size, self.size, self.size)
        M[:, :n, :n] = P.Q
        M[:, n : n + p, :n] = P.A
        M[:, n + p :, :n] = picked
        if self.free is not None:
            M[:, :, :n] *= self.free.unsqueeze(-2)
            M[:, :n, :n] *= self.free.unsqueeze(-1)
        M[:, :n, n:] = M[:, n:, :n].mT
        M.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        self.M: Tensor | SparseMatrix = M
        self.LU, self.pivots, _ = torch.linalg.lu_factor_ex(M)

    def _divide(self, right: Tensor) -> Tensor:
        return torch.linalg.lu_solve(self.LU, self.pivots, right)

    def solve(self, right: Tensor) -> Tensor:
        """The solution for right-hand sides (B, size, ·), with the shift taken back."""
        found = self._divide(right)
        # Each instance for itself: units differ within a batch, and one may have no solution.
        size = right.abs().amax((-2, -1)).clamp(min=torch.finfo(right.dtype).tiny)
        error = torch.full_like(size, torch.inf)
        for _ in range(_REFINEMENTS):
            missing = right - self.M @ found + self.shift.unsqueeze(-1) * found
            before, error = error, missing.abs().amax((-2, -1)) / size
            going = (error > _ROUNDING) & (error < 0.5 * before)
            if not bool(going.any()):
                break
            correction = self._divide(missing)
            found = found + torch.where(going[:, None, None], correction, 0.0)
        return found

    def scatter(self, part: Tensor) -> Tensor:
        """Multipliers of gathered rows at their places among all rows of G."""
        m = self.P.h.shape[-1]
        out = part.new_zeros(part.shape[0], m)
        return out.scatter(-1, self.order, part * self.valid)

    def point(self) -> tuple[Tensor, Tensor, Tensor]:
        """x, y, z of the equality-constrained program; multipliers may have any sign."""
        P = self.P
        n, p = P.n, P.b.shape[-1]
        _, lower, upper = P.split(self.active)
        right = torch.cat([-P.c, P.b, P.h.gather(-1, self.order)], -1)
        right[:, n + p :] = torch.where(self.valid, right[:, n + p :], 0.0)
        if self.free is not None:
            held = torch.where(lower, P.lo, torch.where(upper, P.hi, 0.0))
            right[:, :n] = (right[:, :n] - times(P.Q, held)) * self.free + held
            right[:, n : n + p] -= times(P.A, held)
            inner = times(P.G, held).gather(-1, self.order)
            right[:, n + p :] -= inner * self.valid
        found = self.solve(right.unsqueeze(-1)).squeeze(-1)
        x, y = found[:, :n], found[:, n : n + p]
        z = self.scatter(found[:, n + p :])
        if P.bounded:
            force = times(P.Q, x) + P.c + times(P.A.mT, y) + times(P.G.mT, z)
            z = torch.cat([z, torch.where(lower, force, 0.0), torch.where(upper, -force, 0.0)], -1)
        return x, y, z

    def adjoint(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The solution (v_x, v_y, v_z) for (right, 0, 0), v_z over rows of G; what it misses."""
        n, p = self.P.n, self.P.b.shape[-1]
        if self.free is not None:
            right = right * self.free
        full = torch.cat([right, right.new_zeros(self.P.size, self.size - n)], -1).unsqueeze(-1)
        found = self.solve(full)
        missing = (full - self.M @ found + self.shift.unsqueeze(-1) * found).squeeze(-1)
        found = found.squeeze(-1)
        return found[:, :n], found[:, n : n + p], self.scatter(found[:, n + p :]), largest(missing)

    def singular(self) -> tuple[Tensor, Tensor]:
        """Where x is not unique, and where active constraints depend on one another."""
        n = self.P.n
        probes = torch.randn(
            self.size, _PROBES, dtype=self.shift.dtype, device="cpu",
            generator=torch.Generator().manual_seed(0),
        ).to(self.shift.device)  # fmt: skip
        probes = (probes / probes.norm(dim=0)).expand(self.P.size, -1, -1)
        response = self._divide(probes).abs()
        loose = response[:, :n].amax((-2, -1)) > _SINGULAR
        if self.size == n:
            return loose, torch.zeros_like(loose)
        return loose, response[:, n:].amax((-2, -1)) > _SINGULAR


def active_system(P: Program, active: Tensor) -> ActiveSystem:
    """The system by dense factors, or by sparse ones where the program is sparse."""
    if isinstance(P.Q, Tensor):
        return ActiveSystem(P, active)
    from legato.nn.programs.sparse_systems import SparseActiveSystem

    return SparseActiveSystem(P, active)


def judge(P: Program, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """The largest violation of a KKT condition, relative to the point's size, per instance.

    Complementarity is not looked at: on an active set it holds by construction.
    """
    d, on = P.sides
    violated = torch.where(on, P.rows(x) - d, 0.0).clamp(min=0)
    size_x, size_y = largest(x), torch.maximum(largest(y), largest(z))
    primal = torch.maximum(largest(times(P.A, x) - P.b), largest(violated)) / (1 + size_x)
    dual = torch.maximum(largest(P.force(x, y, z)), largest(z.clamp(max=0)))
    found = torch.maximum(primal, dual / (1 + size_x + size_y))
    return torch.where(is_finite(found), found, torch.inf)


def margin(P: Program, x: Tensor, z: Tensor) -> Tensor:
    """The smallest max(slack, multiplier), each relative to the size of its kind."""
    d, on = P.sides
    if d.shape[-1] == 0:
        return torch.full_like(P.c[:, 0], torch.inf)
    slack = (d - P.rows(x)) / (1 + largest(x)).unsqueeze(-1)
    force = z / (1 + largest(z)).unsqueeze(-1)
    return torch.where(on, torch.maximum(slack, force), torch.inf).amin(-1)


def polish(P: Program, active: Tensor, steps: int, tol: float) -> Candidate:
    """Follow the active sets until the KKT conditions hold; per instance, the best point met.

    An instance that has arrived is not touched again, nor one that meets a set it has seen: it
    would cycle.
    """
    best: Candidate | None = None
    left = torch.arange(P.size, device=P.c.device)
    part = P
    seen: list[Tensor] = []
    d, on = P.sides
    for _ in range(steps):
        x, y, z = active_system(part, active).point()
        residual = judge(part, x, y, z)
        if best is None:
            best = Candidate(x, y, z, active.clone(), residual)
        else:
            better = residual < best.residual[left]
            w = left[better]
            best.x[w], best.y[w], best.z[w] = x[better], y[better], z[better]
            best.active[w], best.residual[w] = active[better], residual[better]
        after = ((z + part.rows(x) - d) > 0) & on
        going = (residual > tol) & torch.isfinite(x).all(-1)
        for earlier in [*seen, active]:
            going &= (earlier != after).any(-1)
        going_at = going.nonzero().squeeze(-1)
        if going_at.shape[0] == 0:
            break
        seen = [earlier[going_at] for earlier in [*seen, active]]
        left, active, d, on = left[going_at], after[going_at], d[going_at], on[going_at]
        part = part.take(going_at)
    assert best is not None
    best.z = best.z.clamp(min=0)
    return best
