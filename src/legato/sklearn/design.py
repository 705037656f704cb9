"""The rows of a design matrix, dense or sparse, centred and scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from legato.sklearn.penalties import Groups, Indices, Matrix, Vector

CONSTANT_SPREAD = 1e-13
"""A feature whose deviations are this small beside its size is constant, but for rounding."""


class Design:
    r"""X̃ = (X − 1x̄ᵀ)/s with weighted means x̄ (0 without intercept) and one scale s a group.

    .. math:: s_g^2 = \sum_{j ∈ g} \sum_i ω_i (x_{ij} − \bar x_j)^2, \qquad \sum_i ω_i = 1

    The penalty is scaled back, so that the solution is that of the data as given; only the
    conditioning changes. A sparse X stays sparse: centring is done on products, and only columns of
    features that enter a working set are ever written out. Constant features get a column of zeros,
    and hence the coefficient 0.
    """

    def __init__(self, X: Any, weights: Vector, groups: Groups, *, centre: bool) -> None:
        self.weights = weights
        self.sparse = bool(sparse.issparse(X))
        self.shape: tuple[int, int] = X.shape
        features = X.shape[1]
        if self.sparse:
            self.X = sparse.csc_array(X, dtype=np.float64)
            self.X.sum_duplicates()
            self.mean = self.X.T @ weights if centre else np.zeros(features)
            largest = np.maximum(self.X.max(0).toarray(), -self.X.min(0).toarray()).reshape(-1)
            spread = self._sparse_spread()
        else:
            self.X = np.array(X, dtype=np.float64, order="F")
            largest = np.abs(self.X).max(0, initial=0.0)
            self.mean = weights @ self.X if centre else np.zeros(features)
            self.X -= self.mean
            spread = np.einsum("i,ij,ij->j", weights, self.X, self.X)
        spread[spread <= (CONSTANT_SPREAD * largest) ** 2] = 0.0
        constant = spread == 0
        total = spread if groups.single else np.bincount(groups.of, spread, groups.count)
        self.group_scale = np.sqrt(np.where(total > 0, total, 1.0))
        self.scale = groups.spread(self.group_scale).copy()
        self.live = np.where(constant, 0.0, 1.0)
        if not self.sparse:
            self.X *= self.live / self.scale

    def _sparse_spread(self) -> Vector:
        """Σ_i ω_i (x_ij − x̄_j)², not as a difference of squares: means may be large beside it."""
        rows, features = self.shape
        stored = np.diff(self.X.indptr)
        column = np.repeat(np.arange(features), stored)
        weights = self.weights[self.X.indices]
        spread = np.bincount(column, weights * (self.X.data - self.mean[column]) ** 2, features)
        absent = 1 - np.bincount(column, weights, features)  # the weight of entries that are zero
        return spread + np.where(stored < rows, np.maximum(absent, 0.0), 0.0) * self.mean**2

    def largest_square(self) -> float:
        """max Σ_i ω_i ((x_i − x̄)ᵀv)² over ‖v‖ = 1, in the scale of the data as given."""
        v = np.sqrt(np.maximum(self.scale * self.live, 0.0))
        for _ in range(30):
            size = float(np.linalg.norm(v))
            if size == 0:
                return 0.0
            v = v / size
            forward = self.times(v * self.scale)
            v = self.correlate(self.weights * forward) * self.scale
        return float(np.linalg.norm(v))

    def times(self, w: Vector) -> Vector:
        """X̃w."""
        if not self.sparse:
            return self.X @ w
        scaled = w * self.live / self.scale
        return self.X @ scaled - float(self.mean @ scaled)

    def correlate(self, r: Vector) -> Vector:
        """X̃ᵀr."""
        if not self.sparse:
            return self.X.T @ r
        return (self.X.T @ r - self.mean * r.sum()) * (self.live / self.scale)

    def columns(self, features: Indices) -> Matrix:
        """Columns of X̃, dense."""
        if not self.sparse:
            return self.X[:, features]
        return self._transformed(self.X[:, features].toarray(), features)

    def rows(self, X: Any, features: Indices) -> Matrix:
        """The same columns for other rows, transformed as these rows are."""
        part = X[:, features]
        return self._transformed(part.toarray() if sparse.issparse(X) else part, features)

    def _transformed(self, part: Matrix, features: Indices) -> Matrix:
        return (part - self.mean[features]) * (self.live[features] / self.scale[features])

    def coefficients(self, w: Vector, intercept: float) -> tuple[Vector, float]:
        """w and intercept for the data as given."""
        coef = w * self.live / self.scale
        return coef, intercept - float(self.mean @ coef)


class Columns:
    """Columns of X̃ written out as they are needed, with X̃ᵀΩX̃ kept where it does not change."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.place = np.full(design.shape[1], -1, dtype=np.intp)
        self.known = np.empty(0, dtype=np.intp)
        self.block = np.empty((design.shape[0], 0), order="F")
        self.gram = np.empty((0, 0))
        self.multiplied = 0
        """So many of the known columns are in the gram matrix: a ridge never asks for it."""

    def _require(self, features: Indices) -> Indices:
        new = features[self.place[features] < 0]
        if len(new):
            old, size = len(self.known), len(self.known) + len(new)
            self._reserve(size)
            self.block[:, old:size] = self.design.columns(new)
            self.place[new] = np.arange(old, size)
            self.known = np.concatenate([self.known, new])
        return self.place[features]

    def _reserve(self, size: int) -> None:
        """Room for columns, doubled when it runs out, so that growing costs little."""
        room = self.block.shape[1]
        if size <= room:
            return
        more, old = min(max(2 * room, size, 64), self.design.shape[1]), len(self.known)
        block = np.empty((self.design.shape[0], more), order="F")
        block[:, :old] = self.block[:, :old]
        self.block = block

    def _multiply(self) -> None:
        """Bring the gram matrix up to the known columns."""
        old, size = self.multiplied, len(self.known)
        if old == size:
            return
        if len(self.gram) < size:
            gram = np.empty((self.block.shape[1], self.block.shape[1]))
            gram[:old, :old] = self.gram[:old, :old]
            self.gram = gram
        weighted = self.design.weights[:, None] * self.block[:, old:size]
        self.gram[:size, old:size] = self.block[:, :size].T @ weighted
        self.gram[old:size, :old] = self.gram[:old, old:size].T
        self.multiplied = size

    def times(self, w: Vector, support: Indices) -> Vector:
        """X̃w for a w that is zero off its support."""
        if self.design.sparse:
            return self.design.times(w)
        return self.of(support) @ w[support]

    def of(self, features: Indices) -> Matrix:
        """X̃ restricted to some features."""
        place = self._require(features)  # may replace the block
        return self.block[:, place]

    def gram_of(self, features: Indices) -> Matrix:
        """X̃ᵀΩX̃ restricted to some features."""
        place = self._require(features)
        self._multiply()
        return self.gram[np.ix_(place, place)]
