"""A batch of quadratic programs in the one form that every part of the solver reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from legato._support.lazy import lazy

if TYPE_CHECKING:
    from legato.nn.programs.sparse_matrix import SparseMatrix

_ROUNDING = 1e-15


def times(matrix: Tensor | SparseMatrix, vector: Tensor) -> Tensor:
    """Mv for every instance."""
    if 0 in matrix.shape:
        return vector.new_zeros(matrix.shape[:-1])
    if not isinstance(matrix, Tensor):
        return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
    return torch.bmm(matrix, vector.unsqueeze(-1)).squeeze(-1)


def terms(matrix: Tensor | SparseMatrix, vector: Tensor) -> Tensor:
    """Σ_j |M_ij v_j|, what rounding in Mv is relative to."""
    size: Any = abs(matrix)
    return times(size, vector.abs())


def is_finite(values: Tensor) -> Tensor:
    """Where entries are finite numbers, by half of the operations that torch.isfinite takes."""
    return values.abs() < torch.inf


def largest(values: Tensor, axis: int = -1) -> Tensor:
    """max |v_i| for every instance, or along another axis, and 0 where there are no entries."""
    if values.shape[axis] == 0:
        return values.sum(axis)
    if values.is_cuda:  # one kernel; on a CPU torch's loop for it takes ten times as long
        return torch.linalg.vector_norm(values, torch.inf, axis)
    return values.abs().amax(axis)


@dataclass(frozen=True)
class Program:
    """min ½xᵀQx + cᵀx subject to Ax = b, Gx ≤ h, lo ≤ x ≤ hi, for B instances.

    What is absent has no rows, or infinite bounds; an equation that only other instances have is a
    row of zeros, noted in ``absent``. Matrices are dense, or sparse where B = 1. Inequalities are
    counted in one order: the rows of G, then, where there are bounds at all, n lower and n upper
    ones, written −x ≤ −lo, x ≤ hi.
    """

    Q: Any
    c: Tensor
    A: Any
    b: Tensor
    G: Any
    h: Tensor
    lo: Tensor
    hi: Tensor
    bounded: bool
    absent: Tensor

    @property
    def n(self) -> int:
        return self.c.shape[-1]

    @property
    def size(self) -> int:
        """The number of instances."""
        return self.c.shape[0]

    def take(self, which: Tensor) -> Program:
        """Some of the instances, in their order."""
        if which.shape[0] == self.size:
            return self
        # One with sparse matrices is always alone: some of it is all of it.
        picked = {f.name: getattr(self, f.name)[which] for f in fields(self) if f.name != "bounded"}
        return replace(self, **picked)

    @lazy
    def sides(self) -> tuple[Tensor, Tensor]:
        """The right-hand sides d of all inequalities, 0 where infinite, and where they are finite.

        Pinned variables, lo = hi, have no inequalities: :meth:`folded` takes them out.
        """
        parts = [self.h, -self.lo, self.hi] if self.bounded else [self.h]
        d = torch.cat(parts, -1)
        finite = is_finite(d)
        return torch.where(finite, d, 0.0), finite

    def rows(self, x: Tensor) -> Tensor:
        """Cx, the left-hand sides of all inequalities."""
        inner = times(self.G, x)
        return torch.cat([inner, -x, x], -1) if self.bounded else inner

    def pull(self, z: Tensor) -> Tensor:
        """Cᵀz."""
        m = self.h.shape[-1]
        out = times(self.G.mT, z[:, :m])
        if self.bounded:
            out = out - z[:, m : m + self.n] + z[:, m + self.n :]
        return out

    def split(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of a vector over the inequalities: rows of G, lower and upper bounds."""
        m = self.h.shape[-1]
        if not self.bounded:
            empty = torch.zeros_like(self.c, dtype=z.dtype)
            return z, empty, empty
        return z[:, :m], z[:, m : m + self.n], z[:, m + self.n :]

    def force(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Qx + c + Aᵀy + Cᵀz, zero at a solution."""
        return times(self.Q, x) + self.c + times(self.A.mT, y) + self.pull(z)

    def pinned(self) -> Tensor:
        """Which variables have equal ends, (B, n)."""
        return self.lo == self.hi

    def folded(self, pinned: Tensor) -> Program:
        """The same program in x − x_pinned: pinned variables are in no term, and free of bounds.

        An interior point needs an interior, which an interval of length zero does not have.
        """
        value = torch.where(pinned, self.lo, 0.0)
        free = (~pinned).to(self.c)
        infinite = torch.full_like(self.lo, torch.inf)
        sides = []
        for matrix, side in ((self.A, self.b), (self.G, self.h)):
            left = side - times(matrix, value)
            # What is left of a sum in which all cancels is rounding, and would ask for 0 = 1e-17.
            size = torch.where(torch.isfinite(side), side.abs(), 0.0) + terms(matrix, value)
            sides.append(torch.where(left.abs() <= _ROUNDING * size, 0.0, left))
        return replace(
            self,
            Q=self.Q * free.unsqueeze(-1) * free.unsqueeze(-2),
            c=(self.c + times(self.Q, value)) * free,
            A=self.A * free.unsqueeze(-2),
            b=sides[0],
            G=self.G * free.unsqueeze(-2),
            h=sides[1],
            lo=torch.where(pinned, -infinite, self.lo),
            hi=torch.where(pinned, infinite, self.hi),
        )
