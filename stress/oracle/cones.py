"""A convex program written row by row, and its solution by Clarabel.

    minimise  ½ Σ w (Mz + v)² + ⟨q, z⟩   such that   M_j z + v_j ∈ cone_j

Nothing here knows legato. Sizes are small, so that matrices are dense until the last moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Affine functions of the variables, z ↦ Mz + v."""

    M: Array
    v: Array

    def __len__(self) -> int:
        return len(self.v)

    def __getitem__(self, index: Any) -> Rows:
        index = np.atleast_1d(np.arange(len(self))[index])
        return Rows(self.M[index], self.v[index])

    def padded(self, columns: int) -> Array:
        known = self.M.shape[1]
        if columns == known:
            return self.M
        wide = np.zeros((len(self.M), columns))  # np.pad takes ten times as long
        wide[:, :known] = self.M
        return wide

    def through(self, L: Array) -> Rows:
        """L(Mz + v)."""
        return Rows(L @ self.M, L @ self.v)

    def times(self, factor: Any) -> Rows:
        factor = np.broadcast_to(np.asarray(factor, float), self.v.shape)
        return Rows(factor[:, None] * self.M, factor * self.v)

    def plus(self, other: Rows | Array | float) -> Rows:
        if not isinstance(other, Rows):
            return Rows(self.M, self.v + np.broadcast_to(other, self.v.shape))
        columns = max(self.M.shape[1], other.M.shape[1])
        return Rows(self.padded(columns) + other.padded(columns), self.v + other.v)

    def minus(self, other: Rows | Array | float) -> Rows:
        return self.plus(other.times(-1.0) if isinstance(other, Rows) else -np.asarray(other))


def joined(*parts: Rows) -> Rows:
    columns = max(p.M.shape[1] for p in parts)
    return Rows(
        np.concatenate([p.padded(columns) for p in parts]), np.concatenate([p.v for p in parts])
    )


def constant(values: Any) -> Rows:
    v = np.atleast_1d(np.asarray(values, float)).ravel()
    return Rows(np.zeros((len(v), 0)), v)


@dataclass
class Found:
    """What the solver returned: z, the primal and the dual value, and whether to believe it."""

    z: Array
    value: float
    dual: float
    solved: bool
    infeasible: bool

    @property
    def gap(self) -> float:
        return abs(self.value - self.dual)


@dataclass
class Program:
    """A program that grows while terms are added to it.

    ``unit`` is the size of the variables: lengths are handed over in multiples of it, so that a
    problem a million times smaller is solved as accurately.
    """

    unit: float = 1.0
    size: int = 0
    squares: list[tuple[Rows, Array]] = field(default_factory=list)
    linear: list[Rows] = field(default_factory=list)
    cones: list[tuple[Any, Rows]] = field(default_factory=list)

    def variables(self, count: int, unit: float | None = None) -> Rows:
        """New variables: lengths, or multiples of another unit."""
        M = np.zeros((count, self.size + count))
        M[:, self.size :] = (self.unit if unit is None else unit) * np.eye(count)
        self.size += count
        return Rows(M, np.zeros(count))

    def minimise(self, rows: Rows, weight: Any = 1.0) -> None:
        """Add Σ weight·(Mz + v)."""
        self.linear.append(rows.times(weight))

    def minimise_squares(self, rows: Rows, weight: Any = 1.0) -> None:
        """Add ½ Σ weight·(Mz + v)²; ``weight`` may be a symmetric matrix W: ½⟨r, Wr⟩."""
        weight = np.asarray(weight, float)
        if weight.ndim < 2:
            weight = np.diag(np.broadcast_to(weight, rows.v.shape))
        self.squares.append((rows, weight))

    def nonnegative(self, rows: Rows, unit: float | None = None) -> None:
        """rows ≥ 0, for lengths or for multiples of another unit.

        What holds for every z is left out: 0 ≥ 0, as behind the last of some differences, has no
        interior, and the solver may get stuck on it.
        """
        rows = rows[rows.M.any(1) | (rows.v < 0)]
        if not len(rows):
            return
        scale = 1 / (self.unit if unit is None else unit)
        self.cones.append((clarabel.NonnegativeConeT(len(rows)), rows.times(scale)))

    def zero(self, rows: Rows) -> None:
        self.cones.append((clarabel.ZeroConeT(len(rows)), rows.times(1 / self.unit)))

    def norm_below(self, rows: Rows, bound: Rows) -> None:
        """‖rows‖₂ ≤ bound, one row."""
        both = joined(bound, rows).times(1 / self.unit)
        self.cones.append((clarabel.SecondOrderConeT(1 + len(rows)), both))

    def exponential(self, x: Rows, y: Rows, z: Rows) -> None:
        """y_i·exp(x_i/y_i) ≤ z_i with y_i > 0, row by row."""
        for i in range(len(x)):
            self.cones.append((clarabel.ExponentialConeT(), joined(x[i], y[i], z[i])))

    # --- composite pieces that several terms share ------------------------------------------------

    def above_absolute(self, rows: Rows) -> Rows:
        """t ≥ |rows|."""
        t = self.variables(len(rows))
        self.nonnegative(joined(t.minus(rows), t.plus(rows)))
        return t

    def above_square(self, rows: Rows) -> Rows:
        """One t ≥ ‖rows‖², as ‖(2·rows, t − 1)‖ ≤ t + 1 in units."""
        t = self.variables(1)
        self.norm_below(joined(rows.times(2.0), t.minus(self.unit)), t.plus(self.unit))
        return t.times(self.unit)

    def above_entropy(self, rows: Rows) -> Rows:
        """t ≥ r log r, with r ≥ 0."""
        t = self.variables(len(rows), 1.0)
        self.exponential(t.times(-1.0), rows, constant(np.ones(len(rows))))
        return t

    def above_exponential(self, rows: Rows) -> Rows:
        """t ≥ exp(r)."""
        t = self.variables(len(rows), 1.0)
        self.exponential(rows, constant(np.ones(len(rows))), t)
        return t

    def below_logarithm(self, rows: Rows) -> Rows:
        """t ≤ log r."""
        t = self.variables(len(rows), 1.0)
        self.exponential(t, constant(np.ones(len(rows))), rows)
        return t

    # --- the solution -----------------------------------------------------------------------------

    def solve(self, factor: float = 1.0, tol: float = 1e-12) -> Found:
        """The minimiser; the objective is handed over in multiples of ``factor``·unit²."""
        unit = factor * self.unit**2
        n = self.size
        P, q, offset = np.zeros((n, n)), np.zeros(n), 0.0
        for rows, weight in self.squares:
            M = rows.padded(n)
            P += M.T @ weight @ M
            q += M.T @ (weight @ rows.v)
            offset += 0.5 * float(rows.v @ weight @ rows.v)
        for rows in self.linear:
            q += rows.padded(n).sum(0)
            offset += float(rows.v.sum())
        A = np.concatenate([np.zeros((0, n)), *(-rows.padded(n) for _, rows in self.cones)])
        b = np.concatenate([np.zeros(0), *(rows.v for _, rows in self.cones)])
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
        settings.tol_ktratio = 1e-7
        settings.max_iter = 300
        solver = clarabel.DefaultSolver(
            sparse.csc_matrix(np.triu(P) / unit), q / unit, sparse.csc_matrix(A), b,
            [cone for cone, _ in self.cones], settings,
        )  # fmt: skip
        answer = solver.solve()
        status = str(answer.status)
        return Found(
            z=np.asarray(answer.x),
            value=unit * answer.obj_val + offset,
            dual=unit * answer.obj_val_dual + offset,
            solved=status in ("Solved", "AlmostSolved", "InsufficientProgress"),
            infeasible="Infeasible" in status,
        )
