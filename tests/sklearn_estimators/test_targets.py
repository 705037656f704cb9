"""Several targets: independent models with common penalties, as in scikit-learn's Lasso."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import ElasticNet, Lasso, Ridge
from sklearn.model_selection import KFold

from legato.sklearn import ElasticNetBilevel, GroupLassoBilevel, LassoBilevel, RidgeBilevel

RNG = np.random.default_rng(3)
X = RNG.standard_normal((70, 9))
Y = X @ RNG.standard_normal((9, 3)) * [1.0, 4.0, 0.2] + RNG.standard_normal((70, 3))
EVERY = [LassoBilevel, ElasticNetBilevel, RidgeBilevel, GroupLassoBilevel]
FOLDS = KFold(3)


def validation_loss(alpha, targets=Y):
    """The mean squared error over folds and targets of scikit-learn's own lasso."""
    errors = []
    for train, test in FOLDS.split(X):
        model = Lasso(alpha=alpha, tol=1e-13, max_iter=100_000).fit(X[train], targets[train])
        errors.append(np.mean((model.predict(X[test]) - targets[test]) ** 2))
    return float(np.mean(errors))


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_given_penalties_are_scikit_learns(convert):
    data, options = convert(X), {"tol": 1e-13, "max_iter": 100_000}
    pairs = [
        (LassoBilevel(alpha=0.1), Lasso(alpha=0.1, **options)),
        (
            ElasticNetBilevel(alpha=0.1, l1_ratio=0.3),
            ElasticNet(alpha=0.1, l1_ratio=0.3, **options),
        ),
        (RidgeBilevel(alpha=0.1), Ridge(alpha=0.1 * len(X))),
    ]
    for ours, theirs in pairs:
        ours.fit(data, Y)
        theirs.fit(X, Y)  # densely: sparse data make its tolerance a looser one
        assert ours.coef_.shape == (3, 9)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours.predict(data), theirs.predict(X), atol=1e-8)
        np.testing.assert_allclose(ours.score(data, Y), theirs.score(X, Y), atol=1e-9)


def test_the_best_penalty_for_the_mean_of_their_losses():
    model = LassoBilevel(cv=FOLDS).fit(X, Y)
    found = validation_loss(model.alpha_)
    np.testing.assert_allclose(found, model.path_.loss[model.path_.chosen], rtol=1e-8)
    grid = model.alpha_ * np.exp(np.linspace(-3, 3, 121))
    assert found <= min(map(validation_loss, grid)) * (1 + 1e-7)


def test_slopes_against_differences():
    path = LassoBilevel(cv=FOLDS).fit(X, Y).path_
    for k in range(2, len(path), 7):
        alpha, h = path.alpha[k, 0], 1e-5
        change = validation_loss(alpha * np.exp(h)) - validation_loss(alpha * np.exp(-h))
        np.testing.assert_allclose(path.slope[k], change / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", EVERY)
def test_one_target_with_an_axis(make):
    flat = make(cv=3).fit(X, Y[:, 0])
    column = make(cv=3).fit(X, Y[:, :1])
    assert column.coef_.shape == (1, 9)
    assert column.predict(X).shape == (70, 1)
    np.testing.assert_array_equal(column.coef_[0], flat.coef_)
    assert column.alpha_ == flat.alpha_


def test_many_penalties_weights_scores_and_precision():
    weights = RNG.integers(0, 3, 70).astype(float)
    many = LassoBilevel(cv=3, per_feature=True, max_iter=10).fit(X, Y, sample_weight=weights)
    assert many.alpha_.shape == (9,)
    for t in range(3):  # each target is the weighted lasso with these penalties
        alone = LassoBilevel(per_feature=True, alpha=many.alpha_)
        alone.fit(X, Y[:, t], sample_weight=weights)
        np.testing.assert_allclose(many.coef_[t], alone.coef_, rtol=0, atol=1e-10)
    scored = LassoBilevel(cv=3, scoring="neg_mean_squared_error").fit(X, Y)
    np.testing.assert_allclose(scored.alpha_, LassoBilevel(cv=3).fit(X, Y).alpha_, rtol=0.2)
    early = LassoBilevel(cv=3, per_feature=True, early_stopping=0.2, max_iter=5, random_state=0)
    assert early.fit(X, Y).coef_.shape == (3, 9)
    single = LassoBilevel(alpha=0.1).fit(X.astype(np.float32), Y.astype(np.float32))
    assert single.coef_.dtype == single.predict(X.astype(np.float32)).dtype == np.float32


def test_a_constant_target_beside_others():
    targets = np.column_stack([Y[:, 0], np.full(70, 2.0)])
    model = LassoBilevel(cv=3).fit(X, targets)
    assert not model.coef_[1].any()
    np.testing.assert_allclose(model.intercept_[1], 2.0)
    np.testing.assert_allclose(model.alpha_, LassoBilevel(cv=3).fit(X, Y[:, 0]).alpha_, rtol=1e-6)
