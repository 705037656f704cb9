"""The rows of a design matrix, dense or sparse, centred and scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from legato.sklearn.groups import Groups, Indices, Vector
from legato.sklearn.quadratic import Matrix

CONSTANT = 1e-13
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
            self.mean = self.X.T @ weights if centre else np.zeros(features)
            squares = (self.X * self.X).T @ weights
            spread = np.maximum(squares - self.mean**2, 0.0)
            spread[spread <= 1e2 * CONSTANT * squares] = 0.0
        else:
            self.X = np.array(X, dtype=np.float64, order="F")
            largest = np.abs(self.X).max(0, initial=0.0)
            self.mean = weights @ self.X if centre else np.zeros(features)
            self.X -= self.mean
            spread = np.einsum("i,ij,ij->j", weights, self.X, self.X)
            spread[spread <= (CONSTANT * largest) ** 2] = 0.0
        constant = spread == 0
        total = spread if groups.single else np.bincount(groups.of, spread, groups.count)
        self.group_scale = np.sqrt(np.where(total > 0, total, 1.0))
        self.scale = groups.spread(self.group_scale).copy()
        self.live = np.where(constant, 0.0, 1.0)
        if not self.sparse:
            self.X *= self.live / self.scale

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
