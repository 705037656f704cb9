"""Regression: lasso, elastic net and group lasso."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from legato.errors import InputError
from legato.sklearn.base import BilevelLinearModel, labels_of, penalties_of
from legato.sklearn.groups import Groups, Vector
from legato.sklearn.losses import LinearLoss, Squares
from legato.sklearn.penalties import Penalties


class _Regression(RegressorMixin, BilevelLinearModel):  # type: ignore[misc]
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Tune the penalties on the folds of ``cv``, and fit all rows with them."""
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse=["csr", "csc"],
            dtype=np.float64,
            y_numeric=True,
            ensure_min_samples=2,
        )
        y = np.asarray(y, dtype=np.float64)
        self._tune(X, y, sample_weight, y)
        return self

    def predict(self, X: Any) -> Vector:
        """Xw + b."""
        return self._linear(X)

    def _loss(self) -> LinearLoss:
        return Squares()

    @abstractmethod
    def _penalties(self, features: int) -> Penalties: ...


class LassoBilevel(_Regression):
    r"""The lasso with one penalty, or one for each feature or group of features, tuned on folds.

    .. math:: \min_α\, \frac1K \sum_k \mathrm{MSE}_k\big(w_k^*(α)\big), \qquad
              w_k^*(α) = \arg\min_{w,b} \frac{1}{2n_k}‖y_k − X_k w − b‖^2 + \sum_j α_j |w_j|

    The scaling is that of scikit-learn's ``Lasso``; the intercept is not penalised. The lower level
    is solved to machine precision by Newton steps on working sets, and differentiated by one linear
    system on the support (``legato.sklearn.lower_level`` and ``.adjoint`` say how, and why not by a
    first-order method). One penalty is found by a coarse walk and a search with slopes, many by
    ``legato.fit`` with IPiano on log α from the best single one. A sparse X is not densified.
    Reference: Bertrand et al. (2022), *Implicit differentiation for fast hyperparameter selection
    in non-smooth convex learning*.

    Args:
        per_feature (bool): one penalty for each feature. With many features these overfit the
            folds: see ``early_stopping``.
        groups (array of n_features, or None): a label for each feature; features with the same
            label share a penalty.
        cv (int, float, mask, splitter or splits): folds as in scikit-learn; a float holds out that
            share of the rows (drawn with ``random_state``), a mask the rows where it is True.
        early_stopping (float or None): a share of the rows that neither trains nor validates while
            many penalties are tuned; the outer iterate best on it is taken. Not used for one.
        alpha_init (float, array or None): penalties to start from; None starts from a walk over
            one penalty.
        alpha_min_ratio (float): the smallest penalty looked at, relative to the largest useful one.
        max_iter (int): for one penalty, cuts of brackets (a warning says if they did not suffice);
            for many, outer steps, of which fewer also mean less overfitting (``path_.reason`` says
            why they end).
        tol (float): relative accuracy in the validation loss.
        fit_intercept (bool): whether to fit an intercept.
        warm_start (bool): start from the penalties of the last fit.
        random_state (int, generator or None): the seed of random splits; None is the seed 0, so
            that fits can be repeated.

    Attributes:
        coef_: w, fitted to all rows with the chosen penalties.
        intercept_: b, not penalised.
        alpha_: the chosen penalties: a number, or an array in the order of ``groups_`` or of
            features.
        groups_: the labels in ``groups``, sorted; None without.
        path_: the outer loop: loss, alpha, slope, seconds, judged (see :class:`OuterPath`).
        n_iter_: the number of points on it.
    """

    def __init__(
        self,
        *,
        per_feature: bool = False,
        groups: Any = None,
        cv: Any = 5,
        early_stopping: float | None = None,
        alpha_init: Any = None,
        alpha_min_ratio: float = 1e-3,
        max_iter: int = 100,
        tol: float = 1e-7,
        fit_intercept: bool = True,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.per_feature = per_feature
        self.groups = groups
        self.cv = cv
        self.early_stopping = early_stopping
        self.alpha_init = alpha_init
        self.alpha_min_ratio = alpha_min_ratio
        self.max_iter = max_iter
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.warm_start = warm_start
        self.random_state = random_state

    def _penalties(self, features: int) -> Penalties:
        penalties, self.groups_ = penalties_of(self.groups, self.per_feature, features)
        return penalties


class ElasticNetBilevel(_Regression):
    r"""The elastic net with one penalty or many, and its L1 share given or tuned.

    .. math:: \frac{1}{2n}‖y − Xw − b‖^2
              + \sum_j α_j \big(r |w_j| + \tfrac{1 − r}{2} w_j^2\big)

    The scaling is that of scikit-learn's ``ElasticNet``.
    Reference: Zou and Hastie (2005); Bertrand et al. (2022).

    Args:
        l1_ratio (float or None): r in (0, 1]; None tunes it as well, by hypergradient from the best
            of 0.95, 0.5 and 0.1, into ``l1_ratio_``.
        others: as in :class:`LassoBilevel`.
    """

    def __init__(
        self,
        *,
        l1_ratio: float | None = 0.5,
        per_feature: bool = False,
        groups: Any = None,
        cv: Any = 5,
        early_stopping: float | None = None,
        alpha_init: Any = None,
        alpha_min_ratio: float = 1e-3,
        max_iter: int = 100,
        tol: float = 1e-7,
        fit_intercept: bool = True,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.l1_ratio = l1_ratio
        self.per_feature = per_feature
        self.groups = groups
        self.cv = cv
        self.early_stopping = early_stopping
        self.alpha_init = alpha_init
        self.alpha_min_ratio = alpha_min_ratio
        self.max_iter = max_iter
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.warm_start = warm_start
        self.random_state = random_state

    def _penalties(self, features: int) -> Penalties:
        r = self.l1_ratio
        if r is not None and not (isinstance(r, Real) and 0 < r <= 1):
            raise InputError(
                f"l1_ratio must be None or lie in (0, 1], not {r!r}; for r = 0 use Ridge."
            )
        ratio = None if r is None else float(r)
        found = penalties_of(self.groups, self.per_feature, features, ratio)
        penalties, self.groups_ = found
        return penalties


class GroupLassoBilevel(_Regression):
    r"""The group lasso with one penalty, or one for each group.

    .. math:: \frac{1}{2n}‖y − Xw − b‖^2 + \sum_g α_g \sqrt{p_g}\, ‖w_g‖_2

    Features of a group, of which there are p_g, are zero together.
    Reference: Yuan and Lin (2006); Bertrand et al. (2022).

    Args:
        groups (array of n_features, or None): a label for each feature; None makes every feature
            its own group, which is the lasso.
        per_group (bool): tune one penalty for each group, in the order of ``groups_``.
        others: as in :class:`LassoBilevel`.
    """

    def __init__(
        self,
        *,
        groups: Any = None,
        per_group: bool = False,
        cv: Any = 5,
        early_stopping: float | None = None,
        alpha_init: Any = None,
        alpha_min_ratio: float = 1e-3,
        max_iter: int = 100,
        tol: float = 1e-7,
        fit_intercept: bool = True,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.groups = groups
        self.per_group = per_group
        self.cv = cv
        self.early_stopping = early_stopping
        self.alpha_init = alpha_init
        self.alpha_min_ratio = alpha_min_ratio
        self.max_iter = max_iter
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.warm_start = warm_start
        self.random_state = random_state

    def _penalties(self, features: int) -> Penalties:
        labels = np.arange(features) if self.groups is None else self.groups
        self.groups_, of = labels_of(labels, features)
        count = len(self.groups_)
        if count == features:  # groups of one feature: group i is feature i
            groups, index, factor = Groups.singletons(features), of, np.ones(features)
        else:
            groups, index = Groups(of, count), np.arange(count)
            factor = np.sqrt(np.bincount(of, minlength=count).astype(np.float64))
        if not self.per_group:
            return Penalties(groups, np.zeros(count, dtype=np.intp), 1, factor)
        return Penalties(groups, index, count, factor)
