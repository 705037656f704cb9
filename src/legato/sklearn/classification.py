"""Classification: sparse logistic regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from legato.errors import InputError
from legato.sklearn.base import BilevelLinearModel, penalties_of
from legato.sklearn.groups import Vector
from legato.sklearn.losses import LinearLoss, LogLoss
from legato.sklearn.penalties import Penalties


class LogisticBilevel(ClassifierMixin, BilevelLinearModel):  # type: ignore[misc]
    r"""Logistic regression with one L1 penalty, or one for each feature or group, tuned on folds.

    .. math:: \frac1n \sum_i \log\big(1 + e^{−y_i(x_i^⊤ w + b)}\big) + \sum_j α_j |w_j|, \qquad
              y_i ∈ \{−1, 1\}

    Validated by the mean log loss. With one penalty this is scikit-learn's
    ``LogisticRegression(l1_ratio=1, solver="saga", C=1/(n·α))``; the intercept is not penalised
    (liblinear penalises it). Two classes; for more, wrap it in ``OneVsRestClassifier``. Newton
    models of the loss are minimised on working sets, so that classes that can be separated, where
    first-order methods crawl, cost no more. ``coef_`` and ``intercept_`` have scikit-learn's shapes
    (1, p) and (1,). Reference: Bertrand et al. (2022).

    Args:
        others: as in :class:`LassoBilevel`.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Tune the penalties on the folds of ``cv``, and fit all rows with them."""
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], dtype=np.float64, ensure_min_samples=2
        )
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise InputError(
                f"Only binary classification is supported. The type of the target is {kind}. Wrap "
                "the estimator in sklearn.multiclass.OneVsRestClassifier for more classes."
            )
        self.classes_, number = np.unique(y, return_inverse=True)
        present = number
        if sample_weight is not None:
            given = np.asarray(sample_weight)
            present = number[given > 0] if given.shape == number.shape else number
        if len(np.unique(present)) < 2:
            raise InputError(
                "Classifier can't train when only one class is present: 2 are needed among the "
                f"samples whose weight is not zero, and there are {len(np.unique(present))}."
            )
        self._tune(X, number.astype(np.float64), sample_weight, y)
        self.coef_ = self.coef_.reshape(1, -1)
        self.intercept_ = np.array([self.intercept_])
        return self

    def decision_function(self, X: Any) -> Vector:
        """Xw + b, positive for the second class."""
        return self._linear(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable class."""
        check_is_fitted(self)
        return self.classes_[(self._linear(X) > 0).astype(int)]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probabilities of both classes."""
        z = self._linear(X)
        return np.column_stack([expit(-z), expit(z)])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Their logarithms, finite where the probabilities round to 0."""
        z = self._linear(X)
        return np.column_stack([log_expit(-z), log_expit(z)])

    def _loss(self) -> LinearLoss:
        return LogLoss()

    def _classifies(self) -> bool:
        return True

    def _penalties(self, features: int) -> Penalties:
        penalties, self.groups_ = penalties_of(self.groups, self.per_feature, features)
        return penalties

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
