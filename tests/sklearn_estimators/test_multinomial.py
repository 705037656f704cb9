"""More than two classes: scikit-learn's multinomial models, and slopes against differences."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from legato.errors import InexactGradientWarning
from legato.sklearn import LogisticBilevel
from legato.sklearn.base import FeaturePenalties
from legato.sklearn.criterion import Criterion
from legato.sklearn.multinomial import MultinomialLevel

RATIOS = [1.0, 0.5, 0.0]


def data(name="wine"):
    X, y = (load_wine if name == "wine" else load_iris)(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def four_classes(n=160, p=6):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, p))
    scores = X @ rng.standard_normal((p, 4)) + rng.gumbel(size=(n, 4))
    return X, scores.argmax(1)


def theirs(X, y, alpha, ratio, weights=None, intercept=True):
    """scikit-learn's own, to the accuracy that it reaches."""
    C = 1 / (alpha * (len(y) if weights is None else weights.sum()))
    how = {"solver": "saga", "l1_ratio": ratio} if ratio else {"solver": "newton-cg"}
    model = LogisticRegression(C=C, tol=1e-12, max_iter=200_000, fit_intercept=intercept, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, sample_weight=weights)


def objective(model, X, y, alpha, ratio):
    penalty = ratio * np.abs(model.coef_).sum() + 0.5 * (1 - ratio) * (model.coef_**2).sum()
    return log_loss(y, model.predict_proba(X)) + alpha * penalty


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_given_penalties_are_scikit_learns(ratio, intercept, convert):
    X, y = data()
    for alpha in (0.2, 0.02):
        model = LogisticBilevel(alpha=alpha, l1_ratio=ratio, fit_intercept=intercept)
        ours, right = model.fit(convert(X), y), theirs(X, y, alpha, ratio, intercept=intercept)
        np.testing.assert_allclose(ours.coef_, right.coef_, rtol=0, atol=1e-8)
        moved = right.intercept_ - right.intercept_.mean()
        np.testing.assert_allclose(ours.intercept_, moved, rtol=0, atol=1e-8)
        np.testing.assert_allclose(ours.predict_proba(X), right.predict_proba(X), atol=1e-8)
        np.testing.assert_allclose(
            ours.predict_log_proba(X), np.log(ours.predict_proba(X)), atol=1e-9
        )
        np.testing.assert_array_equal(ours.predict(X), right.predict(X))
        assert ours.decision_function(X).shape == (len(y), 3)


def test_weights_of_samples_and_classes():
    X, y = data("iris")
    weights = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    ours = LogisticBilevel(alpha=0.03).fit(X, y, sample_weight=weights)
    right = theirs(X, y, 0.03, 1.0, weights)
    np.testing.assert_allclose(ours.coef_, right.coef_, rtol=0, atol=1e-8)
    by_class = LogisticBilevel(alpha=0.03, class_weight={0: 1.0, 1: 3.0, 2: 0.5}).fit(X, y)
    by_sample = LogisticBilevel(alpha=0.03)
    by_sample.fit(X, y, sample_weight=np.array([1.0, 3.0, 0.5])[y])
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, rtol=0, atol=1e-10)


def test_an_even_number_of_classes():
    """With an L1 penalty alone coefficients are not unique, but predictions are: no warning."""
    X, y = four_classes()
    for alpha in (0.03, 0.003):
        ours, right = LogisticBilevel(alpha=alpha).fit(X, y), theirs(X, y, alpha, 1.0)
        np.testing.assert_allclose(ours.predict_proba(X), right.predict_proba(X), atol=1e-6)
        found, best = (objective(m, X, y, alpha, 1.0) for m in (ours, right))
        assert found <= best + 1e-12
        assert (ours.coef_ == 0).any(0).all()
    tuned = LogisticBilevel(cv=3).fit(X, y)
    assert 0 < tuned.alpha_ < 1
    ours, right = (m.coef_ for m in (LogisticBilevel(alpha=0.01, l1_ratio=0.5).fit(X, y),
                                     theirs(X, y, 0.01, 0.5)))  # fmt: skip
    np.testing.assert_allclose(ours, right, rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore:The best penalty found")  # the walk is a short one
@pytest.mark.parametrize("ratio", RATIOS)
def test_slopes_against_differences(ratio):
    X, y = data("iris")
    folds = list(StratifiedKFold(3).split(X, y))
    path = LogisticBilevel(cv=folds, l1_ratio=ratio, alpha_min_ratio=0.05).fit(X, y).path_

    def loss(alpha):
        return np.mean(
            [
                log_loss(y[test], theirs(X[train], y[train], alpha, ratio).predict_proba(X[test]))
                for train, test in folds
            ]
        )

    for k in range(3, len(path), max(len(path) // 3, 1)):
        alpha, h = path.alpha[k, 0], 1e-4
        np.testing.assert_allclose(path.loss[k], loss(alpha), rtol=1e-7)
        change = (loss(alpha * np.exp(h)) - loss(alpha * np.exp(-h))) / (2 * h)
        np.testing.assert_allclose(path.slope[k], change, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The best penalty found")
@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("ratio", [1.0, None])
def test_gradients_in_many_penalties_against_differences(classes, ratio, monkeypatch):
    X, y = data("iris") if classes == 3 else four_classes()
    kept = {}
    begin = FeaturePenalties._search

    def spied(self, criterion, *rest):
        kept["criterion"] = criterion
        return begin(self, criterion, *rest)

    monkeypatch.setattr(FeaturePenalties, "_search", spied)
    short = {"cv": 3, "alpha_min_ratio": 0.3, "max_iter": 1}
    LogisticBilevel(per_feature=True, l1_ratio=ratio, **short).fit(X, y)
    criterion = kept["criterion"]
    assert isinstance(criterion, Criterion)
    assert isinstance(criterion.folds[0].level, MultinomialLevel)
    theta = np.log(np.linspace(0.01, 0.03, X.shape[1]))
    if ratio is None:
        theta = np.append(theta, 0.4)
    _, gradient, _ = criterion(theta)
    for j in range(len(theta)):
        unit = np.zeros_like(theta)
        unit[j] = 1e-4
        change = (criterion(theta + unit)[0] - criterion(theta - unit)[0]) / 2e-4
        np.testing.assert_allclose(gradient[j], change, rtol=1e-5, atol=1e-8)


def test_repeated_features_are_told():
    X, y = data("iris")
    with pytest.warns(InexactGradientWarning, match="more than one solution"):
        LogisticBilevel(cv=3).fit(np.column_stack([X, X[:, 2:]]), y)


def test_labels_precision_scores_and_many_penalties():
    X, y = data("iris")
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = LogisticBilevel(cv=3, scoring="accuracy").fit(X, names)
    assert model.score(X, names) > 0.9
    assert set(model.predict(X)) == set(names)
    single = LogisticBilevel(cv=3).fit(X.astype(np.float32), y)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    early = LogisticBilevel(cv=3, per_feature=True, early_stopping=0.2, max_iter=5, random_state=0)
    assert early.fit(X, y).alpha_.shape == (4,)
    above = LogisticBilevel(alpha=0.01, positive=True).fit(X, y)
    assert above.coef_.min() == 0
    assert above.score(X, y) > 0.8


def test_a_ridge_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("legato.sklearn.multinomial.MOST_UNKNOWNS", 11)
    X, y = data("iris")
    with pytest.raises(ValueError, match="12 coefficients here"):
        LogisticBilevel(alpha=0.1, l1_ratio=0.0).fit(X, y)
