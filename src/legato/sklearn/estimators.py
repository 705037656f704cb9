"""The estimators: lasso, elastic net, ridge, group lasso and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from legato.errors import InputError
from legato.sklearn.base import BilevelLinearModel, FeaturePenalties, labels_of
from legato.sklearn.criterion import Fold
from legato.sklearn.design import Columns
from legato.sklearn.lower_level import LinearLoss, LogLoss, LowerLevel, Squares
from legato.sklearn.multinomial import MultinomialFold, MultinomialLevel
from legato.sklearn.penalties import Groups, Penalties, Vector


class _Regression(RegressorMixin):  # type: ignore[misc]
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Tune the penalties on the folds of ``cv``, and fit all rows with them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Several targets share the penalties, which are best for the mean of their losses, and
            nothing else, as in scikit-learn's ``Lasso``: which features are zero is for each
            target to say. ``MultiTaskLasso``, where that is common to all, is another model.
        sample_weight : array-like of shape (n_samples,), default=None
        """
        given = X
        options = {"dtype": np.float64, "y_numeric": True, "ensure_min_samples": 2}
        options["multi_output"] = True
        X, y = validate_data(self, X, y, accept_sparse=["csr", "csc"], **options)
        y = np.asarray(y, dtype=np.float64)
        self._tune(X, y, sample_weight, y)
        self._in_precision(given)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Xw + b, of shape (n_samples,) or (n_samples, n_targets)."""
        return self._linear(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _loss(self) -> LinearLoss:
        return Squares()


@dataclass(kw_only=True, eq=False, repr=False)
class LassoBilevel(_Regression, FeaturePenalties):
    r"""The lasso with one penalty, or one for each feature or group of features, tuned on folds.

    .. math:: \min_α\, \frac1K \sum_k \mathrm{MSE}_k\big(w_k^*(α)\big), \qquad
              w_k^*(α) = \arg\min_{w,b} \frac{1}{2n_k}‖y_k − X_k w − b‖^2 + \sum_j α_j |w_j|

    The scaling is that of scikit-learn's ``Lasso``; the intercept is not penalised. The lower level
    is solved to machine precision by Newton steps on working sets, and differentiated by one linear
    system on the support (``legato.sklearn.lower_level`` and ``.criterion`` say how, and why not by
    ``legato.solve``). One penalty is found by a coarse walk and a search with slopes, many by
    ``legato.fit`` with IPiano on log α from the best single one. A sparse X is not densified.
    Reference: Bertrand et al. (2022), *Implicit differentiation for fast hyperparameter selection
    in non-smooth convex learning*.

    Parameters
    ----------
    [positive]
    [one penalty or many]
    [tuning]

    Attributes
    ----------
    [coefficients]
    [attributes]

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(80)
    >>> model = LassoBilevel(cv=3).fit(X, y)
    >>> model.alpha_ > 0, model.score(X, y) > 0.9
    (True, True)
    """


@dataclass(kw_only=True, eq=False, repr=False)
class ElasticNetBilevel(_Regression, FeaturePenalties):
    r"""The elastic net with one penalty or many, and its L1 share given or tuned.

    .. math:: \frac{1}{2n}‖y − Xw − b‖^2
              + \sum_j α_j \big(r |w_j| + \tfrac{1 − r}{2} w_j^2\big)

    The scaling is that of scikit-learn's ``ElasticNet``; solved and tuned as :class:`LassoBilevel`.
    Reference: Zou and Hastie (2005); Bertrand et al. (2022).

    Parameters
    ----------
    l1_ratio : float, default=0.5
        r in (0, 1]; None tunes it as well, by hypergradient from the best of 0.95, 0.5 and 0.1.
    [positive]
    [one penalty or many]
    [tuning]

    Attributes
    ----------
    [coefficients]
    l1_ratio_ : float
        The chosen share, where it is tuned.
    [attributes]

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(80)
    >>> model = ElasticNetBilevel(l1_ratio=0.9, cv=3).fit(X, y)
    >>> model.coef_.shape, model.score(X, y) > 0.9
    ((6,), True)
    """

    l1_ratio: float | None = 0.5

    def _l1_ratio(self) -> float | None:
        r = self.l1_ratio
        if r is not None and not (isinstance(r, Real) and 0 < r <= 1):
            raise InputError(
                f"l1_ratio must be None or lie in (0, 1], not {r!r}; for r = 0 use RidgeBilevel."
            )
        return None if r is None else float(r)


@dataclass(kw_only=True, eq=False, repr=False)
class RidgeBilevel(_Regression, FeaturePenalties):
    r"""Ridge regression with one penalty, or one for each feature or group of features, tuned.

    .. math:: \frac{1}{2n}‖y − Xw − b‖^2 + \tfrac12 \sum_j α_j w_j^2

    With one penalty this is scikit-learn's ``Ridge(n * alpha)``. One for each feature can switch
    features off: α_j → ∞ makes w_j = 0, as in automatic relevance determination. Solved by one
    factorisation, of as many equations as there are rows or features, whichever are fewer; tuned as
    :class:`LassoBilevel`. Reference: Hoerl and Kennard (1970), *Ridge regression: biased estimation
    for nonorthogonal problems*; MacKay (1992) for one penalty each.

    Parameters
    ----------
    [positive]
    [one penalty or many]
    [tuning]

    Attributes
    ----------
    [coefficients]
    [attributes]

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(80)
    >>> model = RidgeBilevel(cv=3).fit(X, y)
    >>> model.alpha_ > 0, model.score(X, y) > 0.9
    (True, True)
    """

    def _l1_ratio(self) -> float | None:
        return 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class GroupLassoBilevel(_Regression, BilevelLinearModel):
    r"""The group lasso with one penalty, or one for each group.

    .. math:: \frac{1}{2n}‖y − Xw − b‖^2 + \sum_g α_g \sqrt{p_g}\, ‖w_g‖_2

    Features of a group, of which there are p_g, are zero together; solved and tuned as
    :class:`LassoBilevel`. Reference: Yuan and Lin (2006); Bertrand et al. (2022).

    Parameters
    ----------
    groups : array-like of shape (n_features,), default=None
        A label for each feature; None makes every feature its own group, which is the lasso.
    per_group : bool, default=False
        Tune one penalty for each group.
    [tuning]

    Attributes
    ----------
    [coefficients]
    [attributes]

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(80)
    >>> model = GroupLassoBilevel(groups=[0, 0, 1, 1, 2, 2], cv=3).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    per_group: bool = False

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


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticBilevel(ClassifierMixin, FeaturePenalties):  # type: ignore[misc]
    r"""Logistic regression with one penalty, or one for each feature or group, tuned on folds.

    .. math:: \frac1n \sum_i \log\big(1 + e^{−y_i(x_i^⊤ w + b)}\big)
              + \sum_j α_j \big(r |w_j| + \tfrac{1 − r}{2} w_j^2\big), \qquad y_i ∈ \{−1, 1\}

    Validated by the mean log loss. With one penalty this is scikit-learn's
    ``LogisticRegression(l1_ratio=r, solver="saga", C=1/(n·α))``; the intercept is not penalised
    (liblinear penalises it). More than two classes have a vector w each, and the loss is the
    multinomial one, as there; an L1 penalty and an even number of classes may leave open by how
    much the coefficients of a feature move together, of which predictions say nothing. Newton
    models of the loss are minimised on working sets, so that classes that can be separated, where
    first-order methods crawl, cost no more. Reference: Bertrand et al. (2022).

    Parameters
    ----------
    l1_ratio : float, default=1.0
        r between 0 and 1, the share of the L1 penalty: 1 is sparse, 0 a ridge; None tunes it.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, which multiply ``sample_weight`` in training and validation.
    [positive]
    [one penalty or many]
    [tuning]

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels of all classes, sorted.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        The model, fitted to all rows with the chosen penalties; one row for two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Its intercepts.
    [attributes]

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(80) > 0
    >>> model = LogisticBilevel(cv=3).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    l1_ratio: float | None = 1.0
    class_weight: Any = None

    def _l1_ratio(self) -> float | None:
        r = self.l1_ratio
        if r is not None and not (isinstance(r, Real) and 0 <= r <= 1):
            raise InputError(f"l1_ratio must be None or lie in [0, 1], not {r!r}.")
        return None if r is None else float(r)

    def _take(self, coef: Vector, intercept: Any, fitted: Any) -> None:
        super()._take(np.atleast_2d(coef), np.atleast_1d(intercept), fitted)
        self.classes_ = fitted.classes_

    def _labels(self, y: Vector) -> Any:
        return self.classes_[y.astype(int)]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Tune the penalties on the folds of ``cv``, and fit all rows with them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), of two or more different labels
        sample_weight : array-like of shape (n_samples,), default=None
        """
        given = X
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], dtype=np.float64, ensure_min_samples=2
        )
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, number = np.unique(y, return_inverse=True)
        present = number
        if sample_weight is not None:
            weights = np.asarray(sample_weight)
            present = number[weights > 0] if weights.shape == number.shape else number
        found = len(np.unique(present))
        if found < 2:
            raise InputError(
                "Classifier can't train when only one class is present: 2 are needed among the "
                f"samples whose weight is not zero, and there are {found}."
            )
        if found < len(self.classes_):
            raise InputError(
                f"{len(self.classes_) - found} of {len(self.classes_)} classes have no sample "
                "whose weight is not zero: leave those samples out."
            )
        if self.class_weight is not None:
            balance = compute_sample_weight(self.class_weight, y)
            sample_weight = balance if sample_weight is None else balance * sample_weight
        self._tune(X, number.astype(np.float64), sample_weight, y)
        self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        self._in_precision(given)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Xw + b: positive for the second of two classes, (n_samples,); else one for each class."""
        scores = self._linear(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class, of shape (n_samples,)."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probabilities of all classes, of shape (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Their logarithms, finite where the probabilities round to 0."""
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.column_stack([log_expit(-z), log_expit(z)])
        return np.asarray(log_softmax(z, axis=1))

    def _loss(self) -> LinearLoss:
        return LogLoss()

    def _lower_level(self, columns: Columns, y: Vector, groups: Groups) -> LowerLevel:
        classes = len(self.classes_)
        if classes == 2:
            return super()._lower_level(columns, y, groups)
        return MultinomialLevel(columns, y, classes, groups, intercept=self.fit_intercept)

    def _fold(self, *parts: Any) -> Fold:
        return super()._fold(*parts) if len(self.classes_) == 2 else MultinomialFold(*parts)

    def _classifies(self) -> bool:
        return True
