"""The estimators are scikit-learn's in every respect that it checks, and then some."""

from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from legato.sklearn import (
    ElasticNetBilevel,
    GroupLassoBilevel,
    LassoBilevel,
    LogisticBilevel,
    RidgeBilevel,
)

EVERY = [LassoBilevel, ElasticNetBilevel, RidgeBilevel, GroupLassoBilevel, LogisticBilevel]
# A short walk keeps hundreds of fits short; nothing that is checked depends on it.
SHORT = {"cv": 3, "alpha_min_ratio": 0.2, "tol": 1e-3, "max_iter": 3}
VARIANTS = [*(make(**SHORT) for make in EVERY), LassoBilevel(per_feature=True, **SHORT)]


# The checks fit noise, repeated rows and separable classes; test_bad_input.py has what we say then.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(VARIANTS)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def data(name):
    X, y = (load_breast_cancer if name == "cancer" else load_diabetes)(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def quietly(estimator, X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X, y, **options)


@pytest.mark.parametrize("make", EVERY)
def test_clone_pickle_pipeline_and_search(make):
    X, y = data("cancer" if make is LogisticBilevel else "diabetes")
    X, y, short = X[:150], y[:150], {"cv": 3, "alpha_min_ratio": 0.05}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = make_pipeline(StandardScaler(), make(**short)).fit(X, y)
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(fitted.predict(X), again.predict(X))
        np.testing.assert_array_equal(clone(fitted).fit(X, y).predict(X), fitted.predict(X))
        assert np.isfinite(cross_val_score(make(**short), X, y, cv=3)).all()
        search = GridSearchCV(make(**short), {"fit_intercept": [True, False]}, cv=2).fit(X, y)
    assert search.best_params_ == {"fit_intercept": True}


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_array, sparse.csr_matrix])
@pytest.mark.parametrize(
    "estimator",
    [
        LassoBilevel(cv=3, alpha_min_ratio=0.05),
        GroupLassoBilevel(cv=3, alpha_min_ratio=0.05, groups=np.arange(20) // 4),
        LogisticBilevel(cv=3, alpha_min_ratio=0.05),
    ],
)
def test_sparse_and_dense_agree(estimator, form):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 20)) * (rng.random((120, 20)) < 0.3) + 0.0
    y = X[:, 0] - X[:, 5] + 0.5 * rng.standard_normal(120)
    y = (y > 0) if isinstance(estimator, LogisticBilevel) else y
    dense = quietly(clone(estimator), X, y)
    thin = quietly(clone(estimator), form(X), y)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(thin.intercept_, dense.intercept_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(thin.predict(form(X)), dense.predict(X), rtol=1e-7, atol=1e-9)


def test_attributes_say_what_was_done():
    X, y = data("diabetes")
    labels = ["b", "a"] * 5
    one, shared = LassoBilevel().fit(X, y), LassoBilevel(groups=labels, max_iter=5).fit(X, y)
    assert isinstance(one.alpha_, float)
    assert one.coef_.shape == (10,)
    assert one.n_iter_ == len(one.path_) == len(one.path_.loss) == len(one.path_.seconds)
    assert one.path_.loss[one.path_.chosen] == one.path_.loss.min()
    assert one.path_.alpha[one.path_.chosen, 0] == pytest.approx(one.alpha_)
    assert list(shared.groups_) == ["a", "b"]
    assert shared.alpha_.shape == (2,)
    assert shared.path_.loss[shared.path_.chosen] < one.path_.loss.min()
    assert (np.diff(one.path_.seconds) >= 0).all()


def test_every_kind_of_cv_reaches_the_same_folds():
    X, y = data("diabetes")
    mask = np.arange(len(y)) % 4 == 0
    by_mask = LassoBilevel(cv=mask).fit(X, y)
    by_split = LassoBilevel(cv=[(np.flatnonzero(~mask), np.flatnonzero(mask))]).fit(X, y)
    assert by_mask.alpha_ == by_split.alpha_
    assert LassoBilevel(cv=5).fit(X, y).alpha_ == LassoBilevel(cv=KFold(5)).fit(X, y).alpha_
    share = LassoBilevel(cv=0.25, random_state=3).fit(X, y)
    assert share.alpha_ == LassoBilevel(cv=0.25, random_state=3).fit(X, y).alpha_
    assert share.alpha_ != LassoBilevel(cv=0.25, random_state=4).fit(X, y).alpha_


def test_without_a_seed_random_splits_are_random():
    X, y = data("diabetes")
    for options in ({"cv": 0.25}, {"early_stopping": 0.3, "per_feature": True, "max_iter": 3}):
        fits = [quietly(LassoBilevel(**options), X, y).path_.loss[0] for _ in range(4)]
        assert len(set(fits)) > 1
        one, other = (quietly(LassoBilevel(random_state=0, **options), X, y) for _ in range(2))
        assert one.path_.loss[0] == other.path_.loss[0]


def test_early_stopping_takes_the_best_on_its_own_rows():
    X, y = data("diabetes")
    model = LassoBilevel(per_feature=True, early_stopping=0.3, max_iter=6, random_state=0)
    path = model.fit(X, y).path_
    tuned = np.flatnonzero(np.isfinite(path.early_stopping_loss))
    assert len(tuned) > 1
    assert path.chosen == tuned[np.argmin(path.early_stopping_loss[tuned])]


@pytest.mark.parametrize("make", EVERY)
def test_every_parameter_is_documented_with_type_and_default(make):
    for name, value in make().get_params().items():
        default = "1e-3" if value == 1e-3 else "1e-7" if value == 1e-7 else value
        assert re.search(rf"    {name} : .*default={default}\n", make.__doc__), name
    parameters = make.__doc__.split("Parameters")[1].split("Examples")[0]
    assert "[" not in parameters


def test_a_warm_start_ends_where_a_cold_one_does_and_is_shorter():
    X, y = data("diabetes")
    model = LassoBilevel(warm_start=True).fit(X, y)
    cold, points = model.path_.loss.min(), model.n_iter_
    model.fit(X, y)
    assert model.path_.loss.min() == pytest.approx(cold, rel=1e-6)
    assert model.n_iter_ < points / 2
    near = LassoBilevel(alpha_init=1.1 * model.alpha_).fit(X, y)
    assert near.path_.loss.min() == pytest.approx(cold, rel=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1e9])
def test_a_start_far_from_the_best_penalty_does_not_keep_it(alpha):
    """The loss is that of scikit-learn's models on a grid of penalties, or lower."""
    X, y = data("diabetes")
    cuts = list(KFold(3).split(X))

    def loss(penalty):
        errors = []
        for train, test in cuts:
            theirs = Ridge(penalty * len(train)).fit(X[train], y[train])
            errors.append(np.mean((theirs.predict(X[test]) - y[test]) ** 2))
        return np.mean(errors)

    best = min(map(loss, np.geomspace(1e-5, 10, 31)))
    model = RidgeBilevel(cv=cuts, alpha_init=alpha).fit(X, y)
    assert loss(model.alpha_) <= best
    model = RidgeBilevel(cv=cuts, alpha=alpha, warm_start=True).fit(X, y)
    assert loss(model.set_params(alpha=None).fit(X, y).alpha_) <= best


def test_weights_are_repetitions():
    X, y = data("diabetes")
    X, y = X[:90], y[:90]
    weights = np.random.default_rng(0).integers(0, 4, 90)
    rows, fold = np.repeat(np.arange(90), weights), np.arange(90) % 3
    cuts = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(3)]
    again = [(np.flatnonzero(fold[rows] != k), np.flatnonzero(fold[rows] == k)) for k in range(3)]
    weighted = LassoBilevel(cv=cuts).fit(X, y, sample_weight=weights)
    repeated = LassoBilevel(cv=again).fit(X[rows], y[rows])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    assert weighted.path_.loss.min() == pytest.approx(repeated.path_.loss.min(), rel=1e-10)


def test_more_classes_through_one_against_the_rest():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    y = np.argmax(X[:, :3] + 0.5 * rng.standard_normal((120, 3)), 1)
    model = quietly(OneVsRestClassifier(LogisticBilevel(cv=3)), X, y)
    assert model.score(X, y) > 0.7
