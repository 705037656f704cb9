"""What the four estimators share: tuning the penalties, then fitting all rows with them."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from legato.errors import InputError
from legato.sklearn.criterion import Criterion, Fold, ValidationRows, held_out, splits
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import ACCEPTED_RESIDUAL, Fitted, LinearLoss, LowerLevel
from legato.sklearn.penalties import Groups, Indices, Penalties, Vector
from legato.sklearn.search import CurveSearch, OuterPath, Point, Prior, descend, log_grid, turns

GRID_SPACING = 1.2
"""The factor between the penalties of the first walk, at most."""
RIDGE_SPACING = 2.0
"""The same for a ridge, whose curve has no kinks."""
RIDGE_ENOUGH = 1e-3
"""The share of the loss that a smaller ridge must promise to be worth a word."""
TOP_OF_RIDGE = 10.0
"""The largest ridge looked at, in units of the largest sum of squares along any direction."""
SCORE_HALVINGS = 3
"""How often a grid is refined around its best score."""
PRIOR_A_FEATURE = 0.5
"""The default ``prior`` of one penalty for each feature: of seven ways the one with the lowest test
loss on twelve data sets (benchmarks/results/penalty_defaults_cpu.json)."""
START_RATIOS = (0.95, 0.5, 0.1)
"""The L1 shares from which a tuned share may start."""

Score = Callable[[list[Fitted]], float]
"""Solutions of all folds ↦ their mean score."""

SHARED_DOCUMENTATION = {
    "[positive]": """positive : bool, default=False
        Whether coefficients are at least zero.""",
    "[one penalty or many]": """per_feature : bool, default=False
        Tune one penalty for each feature. Seldom better than one for all, and with many features
        they overfit the folds: see ``prior``.
    groups : array-like of shape (n_features,), default=None
        A label for each feature; features with the same label share a penalty.""",
    "[tuning]": """cv : int, float, splitter, iterable or mask, default=5
        Number of folds, splitter or list of splits as in scikit-learn; a float holds out that
        share of the rows (drawn with ``random_state``), a mask the rows where it is True.
    early_stopping : float, default=None
        A share of the rows that neither trains nor validates while many penalties are tuned; the
        outer iterate best on it is taken. Not used if None, or with one penalty.
    prior : float, default=None
        The standard deviation of many log penalties around the single one that is best, as a
        normal prior; np.inf is none. None is 0.5 with one penalty for each feature, unless
        ``early_stopping`` is given, and no prior for groups.
    alpha : float or array-like of shape (n_penalties,), default=None
        Penalties to fit with, as scikit-learn's estimators do; None tunes them.
    scoring : str or callable, default=None
        A score on held-out rows by which one penalty is chosen, as in scikit-learn; it has no
        derivative, and many penalties are tuned by the loss only. None is the loss of the model.
    alpha_init : float or array-like of shape (n_penalties,), default=None
        Penalties to start from; None starts from a walk over one penalty, as does a single one
        that is far from the best.
    alpha_min_ratio : float, default=1e-3
        The smallest penalty looked at, relative to the largest useful one; its square for a ridge.
    max_iter : int, default=100
        For one penalty, cuts of brackets (a warning says if they did not suffice); for many, outer
        steps, of which fewer also mean less overfitting (``path_.reason`` says why they end).
    tol : float, default=1e-7
        Relative accuracy in the validation loss.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    warm_start : bool, default=False
        Start from the penalties of the last fit.
    random_state : int, RandomState instance or None, default=None
        The seed of random splits; None draws other rows in every fit.""",
    "[coefficients]": """coef_ : ndarray of shape (n_features,)
        The model, fitted to all rows with the chosen penalties.
    intercept_ : float
        Its intercept.""",
    "[attributes]": """alpha_ : float or ndarray of shape (n_penalties,)
        The chosen penalties, in the order of ``groups_`` or of features.
    groups_ : ndarray or None
        The labels in ``groups``, sorted.
    path_ : OuterPath
        The outer loop: loss, alpha, slope, seconds, early_stopping_loss. Its loss is what was
        minimised, and hence lower than that on new data.
    n_iter_ : int
        The number of points on it.
    n_features_in_ : int
        The number of features seen in ``fit``.""",
}


@dataclass(kw_only=True, eq=False, repr=False)  # for its constructor, which scikit-learn reads
class BilevelLinearModel(BaseEstimator):  # type: ignore[misc]
    """A sparse linear model whose penalties are tuned by hypergradient; see its subclasses."""

    groups: Any = None
    cv: Any = 5
    alpha: Any = None
    scoring: Any = None
    early_stopping: float | None = None
    prior: float | None = None
    alpha_init: Any = None
    alpha_min_ratio: float = 1e-3
    max_iter: int = 100
    tol: float = 1e-7
    fit_intercept: bool = True
    warm_start: bool = False
    random_state: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Write out what the docstrings of all estimators share."""
        super().__init_subclass__(**options)
        for mark, text in SHARED_DOCUMENTATION.items():
            cls.__doc__ = (cls.__doc__ or "").replace(mark, text)

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

    # The matrices here are small, and several threads on them cost more than they bring.
    @threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
    def _tune(self, X: Any, y: NDArray[Any], sample_weight: Any, labels: NDArray[Any]) -> None:
        self._require_parameters()
        _require_squares(X, "X")
        _require_squares(y, "y")
        penalties = self._penalties(X.shape[1])
        weights = np.ones(len(y))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
            if (weights < 0).any() or not weights.sum() > 0:
                raise InputError("Every sample_weight is zero, or one is negative.")
        whole = self._levels(X, y, weights, np.arange(len(y)), penalties.groups)
        design, size = whole[0].design, max(level.size for level in whole)
        given = self._given(penalties)

        def reach(levels: list[LowerLevel]) -> float:
            return max(
                float((level.null_gradient() / penalties.factor).max(initial=0.0))
                for level in levels
            )

        largest = reach(whole)
        path = OuterPath(penalties.count)
        if given is not None:
            theta, path.reason = given, "alpha was given: nothing was tuned"
            fitted = [level.solve(penalties.weights(theta)) for level in whole]
        elif largest <= 1e2 * np.finfo(float).eps * size * float(design.scale.max()):
            # A constant target, or features without any relation to it: nothing to tune.
            theta = penalties.common(np.log(np.finfo(float).eps))
            path.add(0.0, theta, 0.0)
            path.reason = "no feature has any relation to the target: all coefficients are zero"
            fitted = [level.without_features() for level in whole]
        else:
            criterion = Criterion(self._folds(X, y, weights, labels, penalties.groups), penalties)
            if penalties.l1_ratio == 0:
                largest = TOP_OF_RIDGE * design.largest_square()
            # So that the model without features is on every walk.
            largest = max(largest, reach([fold.level for fold in criterion.folds]))
            score = None if self.scoring is None else self._scored(criterion, sample_weight)
            theta = self._search(criterion, path, largest, score)
            criterion.report(theta)
            fitted = [level.solve(penalties.weights(theta)) for level in whole]
        residual = max(found.residual for found in fitted)
        if residual > ACCEPTED_RESIDUAL:
            warnings.warn(
                f"The last fit on all rows ended with a relative residual of {residual:.1e} "
                f"> {ACCEPTED_RESIDUAL:.0e}. Raise alpha_min_ratio or remove features that nearly "
                "repeat each other.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self._theta = theta
        self.path_ = path
        self.n_iter_ = len(path)
        alpha = penalties.alpha(theta)
        if given is not None:  # not the exponential of its logarithm
            alpha = np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), len(alpha)).copy()
        self.alpha_ = float(alpha[0]) if penalties.count == 1 else alpha
        if penalties.l1_ratio is None:
            self.l1_ratio_ = penalties.ratio(theta)
        found = [level.coefficients(one) for level, one in zip(whole, fitted, strict=True)]
        self.coef_, self.intercept_ = (
            np.array(values) if y.ndim > 1 else values[0] for values in zip(*found, strict=True)
        )

    def _in_precision(self, given: Any) -> None:
        """Coefficients in float32 where the data were; all of the fit is done in float64."""
        if getattr(given, "dtype", None) == np.float32:
            self.coef_ = self.coef_.astype(np.float32)
            self.intercept_ = np.asarray(self.intercept_, dtype=np.float32)[()]

    def _levels(
        self, X: Any, y: NDArray[Any], weights: Vector, rows: Indices, groups: Groups
    ) -> list[LowerLevel]:
        """The lower level of every target; they share the design and its products."""
        share = weights[rows] / weights[rows].sum()
        kept = rows[share > 0]  # a weight of 0 means that the row is not there
        share = share[share > 0]
        design = Design(X[kept], share, groups, centre=self.fit_intercept)
        columns = Columns(design)
        return [
            self._lower_level(columns, target, groups)
            for target in y[kept].reshape(len(kept), -1).T
        ]

    def _lower_level(self, columns: Columns, y: Vector, groups: Groups) -> LowerLevel:
        return LowerLevel(columns, y, self._loss(), groups, intercept=self.fit_intercept)

    def _fold(self, *parts: Any) -> Fold:
        return Fold(*parts)

    def _folds(
        self, X: Any, y: NDArray[Any], weights: Vector, labels: NDArray[Any], groups: Groups
    ) -> list[Fold]:
        """The folds of all targets."""
        options = {"classifier": self._classifies(), "random_state": self.random_state}
        found = splits(self.cv, X, labels, **options)
        early_stopping_rows = np.empty(0, dtype=np.intp)
        if self.early_stopping is not None:
            _, early_stopping_rows = held_out(self.early_stopping, labels, **options)
        columns = y.reshape(len(y), -1)
        folds = []
        for train, test in found:
            train = np.setdiff1d(train, early_stopping_rows)
            test = np.setdiff1d(test, early_stopping_rows)
            train, test = train[weights[train] > 0], test[weights[test] > 0]
            if len(test) == 0 or len(train) == 0:
                continue
            if self._classifies() and len(np.unique(y[train])) < len(np.unique(y)):
                raise InputError(
                    f"A fold of cv trains on {len(np.unique(y[train]))} of "
                    f"{len(np.unique(y))} classes ({len(train)} rows): use fewer folds, or a "
                    "splitter that keeps all classes in every training part."
                )
            for level, target in zip(
                self._levels(X, y, weights, train, groups), columns.T, strict=True
            ):
                held = _rows(X, target, weights, test)
                stop = early_stopping_rows
                stopping = _rows(X, target, weights, stop) if len(stop) else None
                folds.append(self._fold(level, held, stopping))
        if not folds:
            raise InputError("No fold of cv has rows of positive weight on both sides.")
        return folds

    # --- the upper level --------------------------------------------------------------------------

    def _search(
        self, criterion: Criterion, path: OuterPath, largest: float, score: Score | None
    ) -> Vector:
        """θ, given the largest L1 penalty for which any feature matters."""
        penalties = criterion.penalties
        start = self._start(penalties)
        if score is not None:
            return self._best_score(criterion, path, largest, score)
        if penalties.size == 1 or start is None:
            ratios = START_RATIOS if penalties.l1_ratio is None else (penalties.l1_ratio,)
            for ratio in ratios:
                self._walk(criterion, path, largest / (ratio or 1.0), ratio, start)
            path.chosen = int(np.argmin(path.loss))
            start = path.theta[path.chosen]
        if penalties.size == 1:
            return start
        top = np.log(largest / (penalties.ratio(start) or 1.0))
        lowest = np.full(penalties.size, top + np.log(self._least_ratio(penalties)))
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
            prior=self._prior(criterion, theta),
        )
        return path.theta[path.chosen]

    def _prior(self, criterion: Criterion, theta: Vector) -> Prior:
        strength = np.zeros(len(theta))
        width = np.inf if self.prior is None else float(self.prior)
        if (
            self.prior is None
            and self.early_stopping is None
            and getattr(self, "per_feature", False)
        ):
            width = PRIOR_A_FEATURE
        if np.isfinite(width):
            # A unit of the log likelihood of squares is a mean loss of twice the variance.
            squares = criterion.folds[0].level.loss.quadratic
            unit = 2 * criterion(theta)[0] if squares else 1.0
            rows = sum(fold.held.count for fold in criterion.folds)  # a weight of two is two rows
            strength[: criterion.penalties.count] = unit / (2 * rows * width**2)
        return Prior(theta.copy(), strength)

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
        points: list[Point] = []
        if start is not None:  # near the given penalty only
            grid = [float(start[0]) + d for d in (0.7, 0.35, 0.0, -0.35, -0.7)]
            points = search.coarse(grid)
        # A start that is far away is none: where the loss falls at an end, walk the grid.
        everywhere = not turns(points)
        if everywhere:
            grid = self._grid(penalties, largest)
            points = search.coarse(grid)
        best = search.refine(points)
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
        # A ridge tends to least squares, and what its loss may still fall by is about its slope.
        enough = RIDGE_ENOUGH * abs(best.f) if penalties.l1_ratio == 0 else 0.0
        if alone and everywhere and best.x <= grid[-1] and best.slope > enough:
            warnings.warn(
                f"The best penalty found, {np.exp(best.x):.3g}, is the smallest one looked at, and "
                f"the validation loss still falls: lower alpha_min_ratio = "
                f"{self.alpha_min_ratio:g} (data without noise, or classes that can be separated, "
                "ask for ever smaller penalties).",
                ConvergenceWarning,
                stacklevel=6,
            )

    def _grid(self, penalties: Penalties, largest: float) -> list[float]:
        spacing = RIDGE_SPACING if penalties.l1_ratio == 0 else GRID_SPACING
        return log_grid(largest, self._least_ratio(penalties), spacing)

    def _least_ratio(self, penalties: Penalties) -> float:
        return float(self.alpha_min_ratio) ** (2 if penalties.l1_ratio == 0 else 1)

    # --- by a score -------------------------------------------------------------------------------

    def _scored(self, criterion: Criterion, sample_weight: Any) -> Score:
        """The mean of ``scoring`` over folds, for models with given solutions."""
        if criterion.penalties.size > 1:
            raise InputError(
                "scoring chooses one penalty; many, or a tuned l1_ratio, are tuned by derivatives "
                "of the loss. Leave scoring None, or tune one penalty with a given l1_ratio."
            )
        scorer = check_scoring(self, scoring=self.scoring)

        def score(solutions: list[Fitted]) -> float:
            found = []
            for fold, at in zip(criterion.folds, solutions, strict=True):
                model = clone(self)
                model._take(*fold.level.coefficients(at), self)
                held, more = fold.held, {}
                if sample_weight is not None:
                    more["sample_weight"] = held.weights * held.count
                found.append(scorer(model, held.X, self._labels(held.y), **more))
            return float(np.mean(found))

        return score

    def _take(self, coef: Vector, intercept: Any, fitted: Any) -> None:
        """Coefficients of a fold, with what ``fitted`` knows of the data."""
        self.coef_ = coef
        self.intercept_ = intercept
        self.n_features_in_ = fitted.n_features_in_

    def _labels(self, y: Vector) -> Any:
        """The target as the user gave it."""
        return y

    def _best_score(
        self, criterion: Criterion, path: OuterPath, largest: float, score: Score
    ) -> Vector:
        """The penalty of the best score: all of a grid, then between its best neighbours."""
        penalties = criterion.penalties
        ratio = penalties.l1_ratio
        assert ratio is not None
        grid, state = self._grid(penalties, largest / (ratio or 1.0)), None
        spacing = grid[0] - grid[1]
        for x in grid:
            state = self._note_score(criterion, path, x, score, state)
        for _ in range(SCORE_HALVINGS):
            spacing *= 0.5
            middle = float(path.theta[int(np.argmin(path.loss))][0])
            for x in (middle + spacing, middle - spacing):
                self._note_score(criterion, path, x, score, state)
        if np.isnan(path.loss).any():
            raise InputError(
                f"scoring = {self.scoring!r} gave NaN on held-out rows: there is no best penalty."
            )
        path.chosen = int(np.argmin(path.loss))
        path.reason = "the best score of a grid, and of points between its best neighbours"
        return path.theta[path.chosen]

    def _note_score(
        self, criterion: Criterion, path: OuterPath, x: float, score: Score, state: Any
    ) -> Any:
        theta = criterion.penalties.common(x)
        _, _, state = criterion(theta, state)
        path.add(-score(state), theta, np.nan)
        return state

    # --- what is given ----------------------------------------------------------------------------

    def _given(self, penalties: Penalties) -> Vector | None:
        """θ of the penalties to fit with, or None where they are tuned."""
        if self.alpha is None:
            return None
        if penalties.l1_ratio is None:
            raise InputError("alpha is given, so nothing is tuned: give l1_ratio as well.")
        alpha = self._penalties_in("alpha", penalties)
        with np.errstate(divide="ignore"):
            return np.log(np.broadcast_to(alpha, penalties.count))

    def _penalties_in(self, name: str, penalties: Penalties) -> Vector:
        given = np.asarray(getattr(self, name), dtype=np.float64)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != penalties.count):
            raise InputError(
                f"{name} must be one number or {penalties.count} of them (one a penalty), not "
                f"of shape {given.shape}."
            )
        least = "zero or positive" if name == "alpha" else "positive"
        sound = (given >= 0) if name == "alpha" else (given > 0)
        if not (np.isfinite(given).all() and sound.all()):
            raise InputError(f"{name} must hold {least} finite penalties.")
        return given

    def _start(self, penalties: Penalties) -> Vector | None:
        """θ to start from: that of the last fit, or the one given, or None."""
        last = getattr(self, "_theta", None)
        if self.warm_start and last is not None and len(last) == penalties.size:
            finite = bool(np.isfinite(last).all())  # a given penalty of 0 has no logarithm
            last = np.array(last) if finite else None
        else:
            last = None
        if last is not None:
            return last
        if self.alpha_init is None:
            return None
        theta = penalties.common(0.0)
        theta[: penalties.count] = np.log(self._penalties_in("alpha_init", penalties))
        return theta

    # --- arguments --------------------------------------------------------------------------------

    def _require_parameters(self) -> None:
        if not (_is_number(self.max_iter) and self.max_iter >= 1 and self.max_iter % 1 == 0):
            raise InputError(f"max_iter must be a positive integer, not {self.max_iter!r}.")
        if self.prior is not None and not (_is_number(self.prior) and self.prior > 0):
            raise InputError(f"prior must be a positive number or None, not {self.prior!r}.")
        for name in ("tol", "alpha_min_ratio", "early_stopping"):
            value = getattr(self, name)
            unused = name == "early_stopping" and value is None
            if not unused and not (_is_number(value) and 0 < value < 1):
                raise InputError(f"{name} must lie in (0, 1), not {value!r}.")

    def _linear(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], reset=False)
        return np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True)) + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _require_squares(values: Any, name: str) -> None:
    """Refuse numbers whose squares are none: they would count as constant features."""
    stored = np.abs(values.data if sparse.issparse(values) else values)
    largest = float(stored.max(initial=0.0))
    if largest > 1e150 / np.sqrt(values.shape[0]) or 0 < largest < 1e-150:
        raise InputError(
            f"{name} has entries up to {largest:.3g}, whose squares over- or underflow in float64. "
            "Scale the data, e.g. with sklearn.preprocessing.StandardScaler."
        )


def _rows(X: Any, y: Vector, weights: Vector, rows: Indices) -> ValidationRows:
    share = weights[rows]
    return ValidationRows(X[rows], y[rows], share / share.sum(), float(share.sum()))


def labels_of(groups: Any, features: int) -> tuple[NDArray[Any], Indices]:
    """The different labels, sorted, and for every feature the place of its own."""
    given = np.asarray(groups)
    if given.ndim != 1 or len(given) != features:
        raise InputError(
            f"groups must give one label to each of the {features} features, not be of shape "
            f"{given.shape}."
        )
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError("groups holds NaN or infinity: every feature needs a label.")
    names, index = np.unique(given, return_inverse=True)
    return names, index.astype(np.intp)


@dataclass(kw_only=True, eq=False, repr=False)
class FeaturePenalties(BilevelLinearModel):
    """One L1 penalty, one for each label in ``groups``, or one for each feature."""

    per_feature: bool = False
    positive: bool = False

    def _l1_ratio(self) -> float | None:
        return 1.0

    def _penalties(self, features: int) -> Penalties:
        if self.groups is not None and self.per_feature:
            raise InputError("Give groups or per_feature=True, not both.")
        self.groups_, index, count = None, np.zeros(features, dtype=np.intp), 1
        if self.per_feature:
            index, count = np.arange(features), features
        elif self.groups is not None:
            self.groups_, index = labels_of(self.groups, features)
            count = len(self.groups_)
        single = Groups.singletons(features, bool(self.positive))
        return Penalties(single, index, count, np.ones(features), self._l1_ratio())
