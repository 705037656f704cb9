"""The upper level: folds, the mean validation loss over them, and its gradient."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import check_cv, train_test_split

from legato.errors import InexactGradientWarning, InputError
from legato.sklearn.lower_level import (
    ACCEPTED_RESIDUAL,
    Fitted,
    LowerLevel,
    centred_products,
    centred_rows,
)
from legato.sklearn.penalties import Indices, Matrix, Penalties, Vector, Weights
from legato.sklearn.quadratic import Solver, curvature, factorise, ridge_system

# --- rows -----------------------------------------------------------------------------------------

Split = tuple[Indices, Indices]


def splits(cv: Any, X: Any, y: NDArray[Any], *, classifier: bool, random_state: Any) -> list[Split]:
    """Rows to train on and to validate on, for every fold.

    ``cv`` is a number of folds, a scikit-learn splitter or a list of splits; a share in (0, 1) of
    the rows to hold out, drawn with ``random_state``; or a mask, True for the rows to hold out.
    """
    rows = np.arange(len(y))
    if isinstance(cv, (float, np.floating)):
        return [held_out(float(cv), y, classifier=classifier, random_state=random_state)]
    if _is_mask(cv):
        mask = np.asarray(cv)
        if len(mask) != len(y):
            raise InputError(f"cv is a mask of length {len(mask)}, but there are {len(y)} samples.")
        if mask.all() or not mask.any():
            raise InputError("cv is a mask that leaves no row to train on, or none to validate on.")
        return [(rows[~mask], rows[mask])]
    if isinstance(cv, (bool, np.bool_)):
        raise InputError("cv must be a number of folds, a splitter, a share or a mask, not a bool.")
    found = [
        (np.asarray(train, dtype=np.intp), np.asarray(test, dtype=np.intp))
        for train, test in check_cv(cv, y, classifier=classifier).split(X, y)
    ]
    if any(len(train) == 0 or len(test) == 0 for train, test in found):
        raise InputError("A split of cv leaves no row to train on, or none to validate on.")
    return found


def _is_mask(cv: Any) -> bool:
    if isinstance(cv, np.ndarray):
        return bool(cv.dtype == np.bool_ and cv.ndim == 1)
    return isinstance(cv, list) and all(isinstance(x, (bool, np.bool_)) for x in cv)


def held_out(share: float, y: NDArray[Any], *, classifier: bool, random_state: Any) -> Split:
    """A random part of the rows held out; by class where every class has two or more rows."""
    if not 0 < share < 1:
        raise InputError(f"The share of rows to hold out must lie in (0, 1), not {share!r}.")
    by_class = classifier and np.unique(y, return_counts=True)[1].min() > 1
    rest, held = train_test_split(
        np.arange(len(y)),
        test_size=share,
        random_state=random_state,
        stratify=y if by_class else None,
    )
    return np.sort(rest), np.sort(held)


@dataclass(frozen=True)
class ValidationRows:
    """Held-out rows, with weights that sum to 1; ``count`` is what they summed to before."""

    X: Any
    y: Vector
    weights: Vector
    count: float


# --- hypergradients -------------------------------------------------------------------------------

SINGULAR_PIVOT = 1e-11
"""A relative squared pivot below which features count as linearly dependent."""


@dataclass(frozen=True)
class Hypergradient:
    """dL/da for every group and dL/db for every feature; ``pivot`` tells how regular K was."""

    a: Vector
    b: Vector
    pivot: float


def hessian(level: LowerLevel, at: Fitted, features: Any) -> tuple[Matrix, Vector]:
    """∇²f on some features with the intercept eliminated, and how the intercept follows them."""
    if level.loss.quadratic:
        return level.columns.gram_of(features), np.zeros(len(features))
    D = level.design.weights * level.loss.second_derivative(at.z, level.y)
    return centred_products(level.columns.of(features), D, centre=level.fit_intercept)


def weighted_rows(level: LowerLevel, at: Fitted, features: Any) -> tuple[Matrix, Vector]:
    """Z with ∇²f = ZᵀZ, and how the intercept follows."""
    X, weights = level.columns.of(features), level.design.weights
    if level.loss.quadratic:
        return np.sqrt(weights)[:, None] * X, np.zeros(len(features))
    D = weights * level.loss.second_derivative(at.z, level.y)
    return centred_rows(X, D, centre=level.fit_intercept)


def predict(level: LowerLevel, at: Fitted, held: ValidationRows) -> tuple[Vector, Matrix]:
    """Predictions for held-out rows, and those rows on the support."""
    rows = level.design.rows(held.X, at.support)
    return at.intercept + rows @ at.w[at.support], rows


def validation_loss(level: LowerLevel, at: Fitted, held: ValidationRows) -> float:
    """The mean loss on held-out rows."""
    z, _ = predict(level, at, held)
    return level.loss.validation_factor * float(held.weights @ level.loss.value(z, held.y))


def hypergradient(
    level: LowerLevel, at: Fitted, weights: Weights, held: ValidationRows
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
    q = factor * held.weights * level.loss.derivative(z, held.y)
    scaled = level.scaled(weights)
    groups, old = level.groups.among(A)
    w = at.w[A]
    solved: Solver
    regular = False
    if level.dense(scaled):
        Z, mean = weighted_rows(level, at, A)
        solved = ridge_system(Z, scaled.b[A])
        regular = bool((scaled.b[A] > 0).all())
    else:
        H, mean = hessian(level, at, A)
        solved = factorise(H + np.diag(scaled.b[A]) + curvature(w, scaled.a[old], groups))
    v = solved.solve(rows.T @ q - mean * q.sum())
    da[old] = -groups.dots(v, groups.directions(w)) / level.design.group_scale[old]
    db[A] = -v * w / level.design.scale[A] ** 2
    return value, Hypergradient(da, db, 1.0 if regular else solved.pivot)


@dataclass(frozen=True)
class Uniqueness:
    """How many groups satisfy optimality with equality, and the smallest pivot among them."""

    tied: int
    pivot: float

    @property
    def unique(self) -> bool:
        return self.pivot > SINGULAR_PIVOT


def uniqueness(level: LowerLevel, at: Fitted, weights: Weights) -> Uniqueness:
    r"""Whether the solution is the only one.

    It is if X restricted to E = {g : ‖∇f_g‖ = a_g} has independent columns; E holds the support.
    Reference: Tibshirani (2013), *The lasso problem and uniqueness*.
    """
    scaled = level.scaled(weights)
    if level.dense(scaled) and (scaled.b[level.design.live > 0] > 0).all():
        return Uniqueness(0, 1.0)
    slack = scaled.a - level.groups.pulls(at.gradient)
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


# --- the mean over folds --------------------------------------------------------------------------


@dataclass
class Fold:
    """A fold: training rows as a lower level, held-out rows, and rows to stop early by."""

    level: LowerLevel
    held: ValidationRows
    early_stopping: ValidationRows | None = None

    def loss(self, at: Fitted, held: ValidationRows) -> float:
        """The mean loss of a solution on some rows."""
        return validation_loss(self.level, at, held)

    def hypergradient(self, at: Fitted, weights: Weights) -> tuple[float, Hypergradient]:
        """The loss on held-out rows, and its derivative."""
        return hypergradient(self.level, at, weights, self.held)

    def uniqueness(self, at: Fitted, weights: Weights) -> Uniqueness:
        """Whether there is no other solution."""
        return uniqueness(self.level, at, weights)


@dataclass
class SolveStats:
    """How solves went, counted, so that trouble is said once and not at every evaluation."""

    evaluations: int = 0
    unsolved: int = 0
    residual: float = 0.0
    singular: int = 0
    pivot: float = 1.0

    def note(self, residual: float, pivot: float) -> None:
        self.evaluations += 1
        self.unsolved += residual > ACCEPTED_RESIDUAL
        self.residual = max(self.residual, residual)
        self.singular += pivot <= SINGULAR_PIVOT
        self.pivot = min(self.pivot, pivot)


@dataclass
class Criterion:
    r"""The mean over folds of the validation loss of the model fitted on the other rows.

    .. math:: C(θ) = \frac1K \sum_k L_k\big(w_k^*(θ)\big)
    """

    folds: list[Fold]
    penalties: Penalties
    stats: SolveStats = field(default_factory=SolveStats)
    last: tuple[Vector, tuple[float, Vector, list[Fitted]]] | None = None

    def __call__(
        self, theta: Vector, starts: list[Fitted] | None = None
    ) -> tuple[float, Vector, list[Fitted]]:
        """C(θ), ∇C(θ) and the solutions, from the given starts or the last solutions."""
        if self.last is not None and np.array_equal(self.last[0], theta):
            return self.last[1]
        weights = self.penalties.weights(theta)
        total, gradient, solutions = 0.0, np.zeros(self.penalties.size), []
        for k, fold in enumerate(self.folds):
            found = fold.level.solve(weights, None if starts is None else starts[k])
            value, slope = fold.hypergradient(found, weights)
            self.stats.note(found.residual, slope.pivot)
            total += value / len(self.folds)
            gradient += self.penalties.pull_back(theta, slope.a, slope.b) / len(self.folds)
            solutions.append(found)
        self.last = (np.array(theta), (total, gradient, solutions))
        return total, gradient, solutions

    def early_stopping_loss(self) -> float | None:
        """The mean loss of the last solutions on the rows kept for early stopping."""
        losses = [
            fold.loss(fold.level.last, fold.early_stopping)
            for fold in self.folds
            if fold.early_stopping is not None and fold.level.last is not None
        ]
        return float(np.mean(losses)) if losses else None

    def report(self, theta: Vector) -> None:
        """Warn about what went wrong, in words and numbers."""
        seen = self.stats
        if seen.unsolved:
            warnings.warn(
                f"{seen.unsolved} of {seen.evaluations} lower-level solves ended with a relative "
                f"residual above {ACCEPTED_RESIDUAL:.0e} (the largest: {seen.residual:.1e}): the "
                "validation loss and its gradient are that inexact. Raise alpha_min_ratio, or "
                "remove features that nearly repeat each other.",
                ConvergenceWarning,
                stacklevel=5,
            )
        weights = self.penalties.weights(theta)
        checks = [fold.uniqueness(fold.level.solve(weights), weights) for fold in self.folds]
        bad = [c for c in checks if not c.unique]
        if bad or seen.singular:
            pivot = min([c.pivot for c in bad] + ([seen.pivot] if seen.singular else []))
            warnings.warn(
                f"The lower level has more than one solution in {len(bad)} of {len(self.folds)} "
                f"folds at the chosen penalties, and had in {seen.singular} of {seen.evaluations} "
                "evaluations: features that satisfy the optimality condition with equality are "
                f"linearly dependent (relative squared pivot {pivot:.1e} ≤ {SINGULAR_PIVOT:.0e}; "
                f"{max((c.tied for c in bad), default=0)} of them inactive). Predictions are not "
                "affected by the choice, but coef_ is one of many, and derivatives in single "
                "penalties are one-sided. Remove repeated features, share their penalty by "
                "groups=, or use ElasticNetBilevel.",
                InexactGradientWarning,
                stacklevel=5,
            )
