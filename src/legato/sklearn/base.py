"""What the four estimators share: tuning the penalties, then fitting all rows with them."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from legato.errors import InputError
from legato.sklearn.adjoint import Held
from legato.sklearn.criterion import Criterion, Fold
from legato.sklearn.design import Design
from legato.sklearn.folds import Split, held_out, splits
from legato.sklearn.groups import Groups, Indices, Vector
from legato.sklearn.losses import LinearLoss
from legato.sklearn.lower_level import ACCEPTED, Fitted, LowerLevel
from legato.sklearn.many_penalties import descend
from legato.sklearn.one_penalty import CurveSearch, log_grid
from legato.sklearn.path import OuterPath
from legato.sklearn.penalties import Penalties

SPACING = 1.2
"""The factor between the penalties of the first walk, at most."""
RATIOS = (0.95, 0.5, 0.1)
"""The L1 shares from which a tuned share may start."""


class BilevelLinearModel(BaseEstimator):  # type: ignore[misc]
    """A sparse linear model whose penalties are tuned by hypergradient; see its subclasses."""

    # --- what a subclass says ---------------------------------------------------------------------

    @abstractmethod
    def _loss(self) -> LinearLoss:
        """The loss of the lower level."""

    @abstractmethod
    def _penalties(self, features: int) -> Penalties:
        """Which features share a penalty."""

    def _classifies(self) -> bool:
        return False

    # --- fitting ----------------------------------------------------------------------------------

    def _tune(self, X: Any, y: Vector, sample_weight: Any, labels: NDArray[Any]) -> None:
        self._require_parameters()
        penalties = self._penalties(X.shape[1])
        weights = np.ones(len(y))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
            if (weights < 0).any() or not weights.sum() > 0:
                raise InputError("Every sample_weight is zero, or one is negative.")
        # The matrices here are small, and several threads on them cost more than they bring.
        with threadpool_limits(limits=1, user_api="blas"):
            self._tune_with_one_thread(X, y, weights, labels, penalties)

    def _tune_with_one_thread(
        self, X: Any, y: Vector, weights: Vector, labels: NDArray[Any], penalties: Penalties
    ) -> None:
        whole = self._level(X, y, weights, np.arange(len(y)), penalties.groups)
        largest = float((whole.null_gradient() / penalties.factor).max(initial=0.0))
        path = OuterPath(penalties.count)
        if largest <= 1e2 * np.finfo(float).eps * whole.size * float(whole.design.scale.max()):
            # A constant target, or features without any relation to it: nothing to tune.
            theta = penalties.common(np.log(np.finfo(float).eps))
            path.add(0.0, theta, 0.0)
            path.reason = "no feature has any relation to the target: all coefficients are zero"
            fitted = whole.without_features()
        else:
            criterion = Criterion(self._folds(X, y, weights, labels, penalties.groups), penalties)
            for fold in criterion.folds:  # so that the model without features is on every walk
                reach = fold.level.null_gradient() / penalties.factor
                largest = max(largest, float(reach.max()))
            theta = self._search(criterion, path, largest)
            criterion.report(theta)
            fitted = whole.solve(penalties.weights(theta))
        if fitted.residual > ACCEPTED:
            warnings.warn(
                f"The last fit on all rows ended with a relative residual of {fitted.residual:.1e} "
                f"> {ACCEPTED:.0e}. Raise alpha_min_ratio or remove features that nearly repeat "
                "each other.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self._conclude(whole, fitted, penalties, theta, path)

    def _conclude(
        self,
        whole: LowerLevel,
        fitted: Fitted,
        penalties: Penalties,
        theta: Vector,
        path: OuterPath,
    ) -> None:
        self._theta = theta
        self.path_ = path
        self.n_iter_ = len(path)
        alpha = penalties.alpha(theta)
        self.alpha_ = float(alpha[0]) if penalties.count == 1 else alpha
        if penalties.l1_ratio is None:
            self.l1_ratio_ = penalties.ratio(theta)
        coef, intercept = whole.design.coefficients(fitted.w, fitted.intercept)
        self.coef_: Vector = coef
        self.intercept_: Any = intercept

    def _level(
        self, X: Any, y: Vector, weights: Vector, rows: Indices, groups: Groups
    ) -> LowerLevel:
        share = weights[rows] / weights[rows].sum()
        kept = rows[share > 0]  # a weight of 0 means that the row is not there
        share = share[share > 0]
        design = Design(X[kept], share, groups, centre=self.fit_intercept)
        return LowerLevel(design, y[kept], self._loss(), groups, intercept=self.fit_intercept)

    def _folds(
        self, X: Any, y: Vector, weights: Vector, labels: NDArray[Any], groups: Groups
    ) -> list[Fold]:
        options = {"classifier": self._classifies(), "random_state": self.random_state}
        found: list[Split] = splits(self.cv, X, labels, **options)
        judges = np.empty(0, dtype=np.intp)
        if self._early_stopping() is not None:
            rows = np.arange(len(y))
            _, judges = held_out(self._early_stopping(), rows, labels, **options)
        folds = []
        for train, test in found:
            train, test = np.setdiff1d(train, judges), np.setdiff1d(test, judges)
            train, test = train[weights[train] > 0], test[weights[test] > 0]
            if len(test) == 0 or len(train) == 0:
                continue
            if self._classifies() and len(np.unique(y[train])) < 2:
                raise InputError(
                    f"A fold of cv trains on one class only ({len(train)} rows): use fewer folds, "
                    "or a splitter that keeps both classes in every training part."
                )
            level = self._level(X, y, weights, train, groups)
            judge = _held(X, y, weights, judges) if len(judges) else None
            folds.append(Fold(level, _held(X, y, weights, test), judge))
        if not folds:
            raise InputError("No fold of cv has rows of positive weight on both sides.")
        return folds

    # --- the upper level --------------------------------------------------------------------------

    def _early_stopping(self) -> Any:
        return getattr(self, "early_stopping", None)

    def _search(self, criterion: Criterion, path: OuterPath, largest: float) -> Vector:
        """θ, given the largest L1 penalty for which any feature matters."""
        penalties = criterion.penalties
        start = self._start(penalties)
        if penalties.size == 1 or start is None:
            ratios = RATIOS if penalties.l1_ratio is None else (penalties.l1_ratio,)
            for ratio in ratios:
                self._walk(criterion, path, largest / ratio, ratio, start)
            path.chosen = int(np.argmin(path.loss))
            start = path.thetas[path.chosen]
        if penalties.size == 1:
            return start
        top = np.log(largest / penalties.ratio(start))
        lowest = np.full(penalties.size, top + np.log(self.alpha_min_ratio))
        highest = np.full(penalties.size, top + 2)
        if penalties.l1_ratio is None:
            lowest[-1], highest[-1] = -4.0, 7.0  # an L1 share between 0.02 and 0.999
        theta = np.clip(start, lowest, highest)
        descend(
            criterion,
            theta,
            path,
            lowest=lowest,
            highest=highest,
            steps=int(self.max_iter),
            tol=float(self.tol),
        )
        return path.thetas[path.chosen]

    def _walk(
        self,
        criterion: Criterion,
        path: OuterPath,
        largest: float,
        ratio: float,
        start: Vector | None,
    ) -> None:
        """Look for the best common penalty, and write every point to the path."""
        penalties = criterion.penalties
        alone = penalties.size == 1
        samples = min(len(fold.level.y) for fold in criterion.folds)

        def curve(x: float, state: Any) -> tuple[float, float, Any, bool]:
            theta = penalties.common(x, ratio)
            value, gradient, state = criterion(theta, state)
            slope = float(gradient[: penalties.count].sum())
            path.add(value, theta, slope)
            hard = max(len(s.support) for s in state) > max(0.3 * samples, 100)
            return value, slope, state, hard

        # As a start for many penalties, the best single one need not be exact.
        tol = float(self.tol) if alone else max(float(self.tol), 1e-4)
        search = CurveSearch(curve, tol, most=int(self.max_iter))
        if start is None:
            grid = log_grid(largest, self.alpha_min_ratio, SPACING)
        else:  # near the given penalty only
            grid = [float(start[0]) + d for d in (0.7, 0.35, 0.0, -0.35, -0.7)]
        best = search.refine(search.coarse(grid))
        path.reason = f"no bracket promises a loss lower by more than {tol:.0e} (relative)"
        if search.promise > tol:
            path.reason = f"all {self.max_iter} cuts of brackets are done"
        if alone and search.promise > tol:
            warnings.warn(
                f"The search for the penalty ended after max_iter = {self.max_iter} cuts of "
                f"brackets; a loss lower by {search.promise:.1e} (relative) could not be excluded. "
                f"Raise max_iter or tol = {tol:g}.",
                ConvergenceWarning,
                stacklevel=6,
            )
        if alone and start is None and best.x <= grid[-1] and best.slope > 0:
            warnings.warn(
                f"The best penalty found, {np.exp(best.x):.3g}, is the smallest one looked at, and "
                f"the validation loss still falls: lower alpha_min_ratio = "
                f"{self.alpha_min_ratio:g} (data without noise, or classes that can be separated, "
                "ask for ever smaller penalties).",
                ConvergenceWarning,
                stacklevel=6,
            )

    def _start(self, penalties: Penalties) -> Vector | None:
        """θ to start from: that of the last fit, or the one given, or None."""
        last = getattr(self, "_theta", None)
        if self.warm_start and last is not None and len(last) == penalties.size:
            return last.copy()
        if self.alpha_init is None:
            return None
        given = np.asarray(self.alpha_init, dtype=np.float64)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != penalties.count):
            raise InputError(
                f"alpha_init must be one number or {penalties.count} of them (one a penalty), not "
                f"of shape {given.shape}."
            )
        if not (np.isfinite(given).all() and (given > 0).all()):
            raise InputError("alpha_init must hold positive finite penalties.")
        theta = penalties.common(0.0)
        theta[: penalties.count] = np.log(given)
        return theta

    # --- arguments --------------------------------------------------------------------------------

    def _require_parameters(self) -> None:
        if not (_is_number(self.max_iter) and self.max_iter >= 1 and self.max_iter % 1 == 0):
            raise InputError(f"max_iter must be a positive integer, not {self.max_iter!r}.")
        if not (_is_number(self.tol) and 0 < self.tol < 1):
            raise InputError(f"tol must lie in (0, 1), not {self.tol!r}.")
        if not (_is_number(self.alpha_min_ratio) and 0 < self.alpha_min_ratio < 1):
            raise InputError(f"alpha_min_ratio must lie in (0, 1), not {self.alpha_min_ratio!r}.")
        stop = self._early_stopping()
        if stop is not None and not (_is_number(stop) and 0 < stop < 1):
            raise InputError(f"early_stopping must be None or lie in (0, 1), not {stop!r}.")

    def _linear(self, X: Any) -> Vector:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], reset=False)
        coef = self.coef_.reshape(-1)
        return np.asarray(safe_sparse_dot(X, coef, dense_output=True)) + np.reshape(
            self.intercept_, -1
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _held(X: Any, y: Vector, weights: Vector, rows: Indices) -> Held:
    share = weights[rows]
    return Held(X[rows], y[rows], share / share.sum())


def labels_of(groups: Any, features: int, what: str = "groups") -> tuple[NDArray[Any], Indices]:
    """The different labels, sorted, and for every feature the place of its own."""
    given = np.asarray(groups)
    if given.ndim != 1 or len(given) != features:
        raise InputError(
            f"{what} must give one label to each of the {features} features, not be of shape "
            f"{given.shape}."
        )
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError(f"{what} holds NaN or infinity: every feature needs a label.")
    names, index = np.unique(given, return_inverse=True)
    return names, index.astype(np.intp)


def penalties_of(
    groups: Any, per_feature: bool, features: int, l1_ratio: float | None = 1.0
) -> tuple[Penalties, NDArray[Any] | None]:
    """One penalty, one for each label in ``groups``, or one for each feature; and the labels."""
    if groups is not None and per_feature:
        raise InputError("Give groups or per_feature=True, not both.")
    single, ones = Groups.singletons(features), np.ones(features)
    if per_feature:
        return Penalties(single, np.arange(features), features, ones, l1_ratio), None
    if groups is None:
        index = np.zeros(features, dtype=np.intp)
        return Penalties(single, index, 1, ones, l1_ratio), None
    names, index = labels_of(groups, features)
    return Penalties(single, index, len(names), ones, l1_ratio), names
