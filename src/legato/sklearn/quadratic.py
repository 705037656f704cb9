"""Small dense quadratics with a sparse penalty, to machine precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from legato._support.momentum import next_t
from legato.sklearn.penalties import Groups, Matrix, Vector


class Solver(Protocol):
    """A system that can be solved; ``pivot`` tells how regular it is."""

    @property
    def pivot(self) -> float: ...

    def solve(self, right: Vector) -> Vector: ...


@dataclass(frozen=True)
class Factor:
    """A Cholesky factor; ``pivot`` is its smallest squared pivot relative to the largest."""

    factor: tuple[Matrix, bool]
    pivot: float

    def solve(self, right: Vector) -> Vector:
        return cho_solve(self.factor, right, check_finite=False)


def factorise(H: Matrix) -> Factor:
    """Cholesky of a positive semidefinite H, lifted by as little as makes it definite."""
    size = max(float(np.diagonal(H).max(initial=0.0)), np.finfo(float).tiny)
    lift = 0.0
    while True:
        try:
            lifted = H + lift * np.eye(len(H)) if lift else H
            factor = cho_factor(lifted, lower=True, check_finite=False)
        except LinAlgError:
            lift = 100 * lift if lift else 1e-14 * size
            continue
        pivots = np.diagonal(factor[0]) ** 2
        return Factor(factor, 0.0 if lift else float(pivots.min() / pivots.max()))


@dataclass(frozen=True)
class Woodbury:
    r"""(ZᵀZ + diag(b))⁻¹ for more columns than rows, by a system of as many equations as rows.

    .. math:: (Z^⊤Z + B)^{-1} = B^{-1} − B^{-1} Z^⊤ (I + Z B^{-1} Z^⊤)^{-1} Z B^{-1}
    """

    Z: Matrix
    b: Vector
    inner: Factor

    @property
    def pivot(self) -> float:
        """Of Z, whose columns are dependent, nothing: b > 0 makes the system regular."""
        return 1.0

    def solve(self, right: Vector) -> Vector:
        """The solution, and one correction of what rounding left of the right-hand side."""
        x = self._once(right)
        return x + self._once(right - self.Z.T @ (self.Z @ x) - self.b * x)

    def _once(self, right: Vector) -> Vector:
        part = right / self.b
        return part - (self.Z.T @ self.inner.solve(self.Z @ part)) / self.b


def ridge_system(Z: Matrix, b: Vector) -> Solver:
    """ZᵀZ + diag(b), factorised on the side of Z that is shorter."""
    rows, columns = Z.shape
    if columns <= rows or not (b > 0).all():
        P = Z.T @ Z
        P[np.diag_indices_from(P)] += b
        return factorise(P)
    return Woodbury(Z, b, factorise(np.eye(rows) + (Z / b) @ Z.T))


@dataclass(frozen=True)
class SparseQuadratic:
    r"""A quadratic with a group penalty, on the few features of a working set.

    .. math:: F(w) = \tfrac12 w^⊤ P w − c^⊤ w + \sum_g a_g ‖w_g‖

    Proximal gradient steps find out which groups are zero; Newton steps on those that are not then
    end at machine precision, where a first-order method would crawl.
    Reference: Lee, Battle, Raina, Ng (2007), *Efficient sparse coding algorithms*; Bareilles,
    Iutzeler, Malick (2022), *Newton acceleration on manifolds identified by proximal gradient*.
    """

    P: Matrix
    c: Vector
    a: Vector
    groups: Groups

    def value(self, w: Vector, Pw: Vector) -> float:
        return float(w @ (0.5 * Pw - self.c) + self.a @ self.groups.norms(w))

    def residual(self, w: Vector, gradient: Vector) -> float:
        """How far 0 is from the subdifferential, in the largest group."""
        return float(violations(gradient, w, self.a, self.groups).max(initial=0.0))

    def minimise(self, w: Vector, tol: float, iterations: int = 60) -> tuple[Vector, float]:
        """The minimiser from a start, and the residual that it reached."""
        if len(w) == 0:
            return w, 0.0
        L = float(np.abs(self.P).sum(1).max()) or 1.0  # a bound; good enough for one step
        best, found, idle = w, np.inf, 0
        for k in range(iterations):
            residual = self.residual(w, self.P @ w - self.c)
            idle = 0 if residual < 0.5 * found else idle + 1
            if residual < found:
                best, found = w, residual
            if found <= tol or (idle > 5 and found <= 1e3 * tol):
                break
            if k == 1:
                L = largest_eigenvalue(self.P)
            # A warm start is mostly one Newton step away. Where it is not, gradient steps, which
            # are cheap, find the support, and ever more of them are taken before the next attempt.
            w = self._newton(self._accelerated(w, L, 1 if k == 0 else 20 * 2 ** min(k - 1, 5)))
        return best, found

    def _accelerated(self, w: Vector, L: float, steps: int) -> Vector:
        """Nesterov's steps with restarts; never higher than where they began."""
        begin = self.value(w, self.P @ w)
        x, y, t = w, w, 1.0
        for _ in range(steps):
            new = self._proximal(y, self.P @ y - self.c, L)
            if float((y - new) @ (new - x)) > 0:
                t, y = 1.0, new
            else:
                later = next_t(t)
                y, t = new + (t - 1) / later * (new - x), later
            x = new
        lower = self.value(x, self.P @ x) <= begin
        return x if lower else self._proximal(w, self.P @ w - self.c, L)

    def _proximal(self, w: Vector, gradient: Vector, L: float) -> Vector:
        u = w - gradient / L
        if self.groups.positive:
            return np.maximum(u - self.a / L, 0.0)
        norms = self.groups.norms(u)
        kept = np.divide(norms - self.a / L, norms, out=np.zeros_like(norms), where=norms > 0)
        return u * self.groups.spread(np.maximum(kept, 0.0))

    def _newton(self, w: Vector) -> Vector:
        """Newton steps on the support, until one is taken whole or the support has shrunk away."""
        here = self.value(w, self.P @ w)
        for _ in range(5 if self.groups.single else 15):
            if not w.any():
                return w
            step = self._step(w)
            candidates = [self._kept_side(w, w + step), *self._along(w, step)]
            values = [self.value(u, self.P @ u) for u in candidates]
            lowest = int(np.argmin(values))
            if not values[lowest] < here:
                return self._polished(w, step)
            whole = lowest == 0 and bool(np.all(candidates[0] == w + step))
            w, here = candidates[lowest], values[lowest]
            if whole and self.groups.single:
                return w
        return w

    def _polished(self, w: Vector, step: Vector) -> Vector:
        """Near the minimum F is flat to rounding, and its gradient decides about the last steps."""
        residual = self.residual(w, self.P @ w - self.c)
        for _ in range(4):
            new = w + step
            if self.groups.positive and (new < 0).any():
                break
            left = self.residual(new, self.P @ new - self.c)
            if not left < 0.5 * residual:
                break
            w, residual, step = new, left, self._step(new)
        return w

    def _step(self, w: Vector) -> Vector:
        """Newton's step on the features that are not zero."""
        active, step = np.flatnonzero(w), np.zeros_like(w)
        groups, old = self.groups.among(active)
        a, part = self.a[old], w[active]
        P = self.P if len(active) == len(w) else self.P[np.ix_(active, active)]
        slope = P @ part - self.c[active] + groups.spread(a) * groups.directions(part)
        step[active] = -factorise(P + curvature(part, a, groups)).solve(slope)
        return step

    def _kept_side(self, w: Vector, target: Vector) -> Vector:
        """The target, with 0 for every group that would pass to the other side of 0."""
        return target * self.groups.spread((self.groups.dots(w, target) > 0).astype(float))

    def _along(self, w: Vector, step: Vector) -> list[Vector]:
        if self.groups.single:
            return [self._exact_search(w, step)]
        return [w + t * step for t in (1.0, 0.5, 0.1, 0.01)]

    def _exact_search(self, w: Vector, step: Vector) -> Vector:
        """The minimum of F on {w + t·step, t ≥ 0}; a feature where F has its kink becomes 0."""
        curve = float(step @ (self.P @ step))
        slope = float(step @ (self.P @ w - self.c))
        moving = step != 0
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = np.where(moving & (w * step < 0), -w / step, np.inf)
        slope += float((self.a * step * np.sign(w))[moving].sum())
        order = np.argsort(kinks)[: int(np.isfinite(kinks).sum())]
        jumps = 2 * (self.a * np.abs(step))[order]
        if self.groups.positive:  # beyond a kink there is nothing
            jumps = np.full_like(jumps, np.inf)
        after = slope + curve * kinks[order] + np.cumsum(jumps)  # F′ just behind every kink
        behind = np.flatnonzero(after >= 0)
        if len(behind) == 0:
            passed = float(jumps.sum())
            return w + (-(slope + passed) / curve if curve > 0 else 1.0) * step
        k = int(behind[0])
        passed = float(jumps[:k].sum())
        t = kinks[order[k]]
        before = slope + curve * t + passed
        if before > 0 and curve > 0:
            return w + (-(slope + passed) / curve) * step
        moved = w + t * step
        moved[order[k]] = 0.0
        return moved


def largest_eigenvalue(P: Matrix) -> float:
    """λ_max of a positive semidefinite matrix by power iteration, with a margin.

    An estimate that is too low could make steps rise, which :class:`SparseQuadratic` checks.
    """
    v = np.abs(P).sum(1)
    if not v.any():
        return 1.0
    for _ in range(15):
        v = P @ (v / np.linalg.norm(v))
    return 1.05 * float(np.linalg.norm(v))


def curvature(w: Vector, a: Vector, groups: Groups) -> Matrix:
    """The Hessian of Σ a_g‖w_g‖ where no group is 0; it vanishes for single features."""
    size = len(w)
    if groups.single:
        return np.zeros((size, size))
    u, ratio = groups.directions(w), groups.spread(a / groups.norms(w))
    together = groups.of[:, None] == groups.of[None, :]
    return np.where(together, ratio * (np.eye(size) - np.outer(u, u)), 0.0)


def violations(gradient: Vector, w: Vector, a: Vector, groups: Groups) -> Vector:
    """The distance of 0 from ∇f + a_g ∂‖·‖(w_g), for every group."""
    norms = groups.norms(w)
    shifted = groups.norms(gradient + groups.spread(a) * groups.directions(w))
    return np.where(norms > 0, shifted, np.maximum(groups.pulls(gradient) - a, 0.0))
