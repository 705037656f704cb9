"""Hypergradients: the derivative of a validation loss in the penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from legato.sklearn.groups import Vector
from legato.sklearn.lower_level import Fitted, LowerLevel, Weights, centred_products
from legato.sklearn.quadratic import Matrix, curvature, factorise

SINGULAR = 1e-11
"""A relative squared pivot below which features count as linearly dependent."""


@dataclass(frozen=True)
class Hypergradient:
    """dL/da for every group and dL/db for every feature; ``pivot`` tells how regular K was."""

    a: Vector
    b: Vector
    pivot: float


@dataclass(frozen=True)
class Held:
    """Held-out rows, with weights that sum to 1."""

    X: Any
    y: Vector
    weights: Vector


def hessian(level: LowerLevel, at: Fitted, features: Any) -> tuple[Matrix, Vector]:
    """∇²f on some features with the intercept eliminated, and how the intercept follows them."""
    if level.loss.quadratic:
        return level.columns.gram_of(features), np.zeros(len(features))
    D = level.design.weights * level.loss.bend(at.z, level.y)
    return centred_products(level.columns.of(features), D, centre=level.fit_intercept)


def predict(level: LowerLevel, at: Fitted, held: Held) -> tuple[Vector, Matrix]:
    """Predictions for held-out rows, and those rows on the support."""
    rows = level.design.rows(held.X, at.support)
    return at.intercept + rows @ at.w[at.support], rows


def validation_loss(level: LowerLevel, at: Fitted, held: Held) -> float:
    """The mean loss on held-out rows."""
    z, _ = predict(level, at, held)
    return level.loss.validation_factor * float(held.weights @ level.loss.value(z, held.y))


def hypergradient(
    level: LowerLevel, at: Fitted, weights: Weights, held: Held
) -> tuple[float, Hypergradient]:
    r"""The validation loss, and its derivative by implicit differentiation on the support A.

    .. math:: K v = ∇_A L, \qquad \frac{dL}{da_g} = −⟨v_g, w_g/‖w_g‖⟩, \qquad
              \frac{dL}{db_j} = −v_j w_j, \qquad K = ∇^2_{AA} E(w)

    Exact where the support does not change with the penalties to first order, that is, where no
    inactive group satisfies its optimality condition with equality; at such a kink it is a
    one-sided derivative.
    Reference: Bertrand, Klopfenstein, Massias, Blondel, Vaiter, Gramfort, Salmon (2022),
    *Implicit differentiation for fast hyperparameter selection in non-smooth convex learning*.
    """
    z, rows = predict(level, at, held)
    factor, A = level.loss.validation_factor, at.support
    value = factor * float(held.weights @ level.loss.value(z, held.y))
    da, db = np.zeros(level.groups.count), np.zeros(len(at.w))
    if len(A) == 0:
        return value, Hypergradient(da, db, 1.0)
    q = factor * held.weights * level.loss.slope(z, held.y)
    H, mean = hessian(level, at, A)
    scaled = level.scaled(weights)
    groups, old = level.groups.among(A)
    w = at.w[A]
    K = H + np.diag(scaled.b[A]) + curvature(w, scaled.a[old], groups)
    solved = factorise(K)
    v = solved.solve(rows.T @ q - mean * q.sum())
    da[old] = -groups.dots(v, groups.directions(w)) / level.design.group_scale[old]
    db[A] = -v * w / level.design.scale[A] ** 2
    return value, Hypergradient(da, db, solved.pivot)


@dataclass(frozen=True)
class Uniqueness:
    """How many groups satisfy optimality with equality, and the smallest pivot among them."""

    tied: int
    pivot: float

    @property
    def unique(self) -> bool:
        return self.pivot > SINGULAR


def uniqueness(level: LowerLevel, at: Fitted, weights: Weights) -> Uniqueness:
    r"""Whether the solution is the only one.

    It is if X restricted to E = {g : ‖∇f_g‖ = a_g} has independent columns; E holds the support.
    Reference: Tibshirani (2013), *The lasso problem and uniqueness*.
    """
    scaled = level.scaled(weights)
    data = at.gradient - scaled.b * at.w
    slack = scaled.a - level.groups.norms(data + scaled.b * at.w)
    active = level.groups.norms(at.w) > 0
    tied = active | (slack <= 1e-9 * level.size)
    tied &= level.groups.norms(level.design.live) > 0  # constant features are 0 in any case
    E = level.groups.features(tied)
    if len(E) == 0:
        return Uniqueness(0, 1.0)
    if len(E) > 4 * len(level.y):  # more columns than rows; only a ridge keeps them apart
        return Uniqueness(int((tied & ~active).sum()), float((scaled.b[E] > 0).all()))
    H, _ = hessian(level, at, E)
    return Uniqueness(int((tied & ~active).sum()), factorise(H + np.diag(scaled.b[E])).pivot)
