"""Bad input: clear errors, or a behaviour that is defined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from legato.errors import InexactGradientWarning
from legato.sklearn import ElasticNetBilevel, GroupLassoBilevel, LassoBilevel, LogisticBilevel

EVERY = [LassoBilevel, ElasticNetBilevel, GroupLassoBilevel, LogisticBilevel]


def draw(make, n=60, p=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = X[:, 0] - X[:, 1] + rng.standard_normal(n)
    return X, (y > 0).astype(int) if make is LogisticBilevel else y


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("make", EVERY)
def test_nan_and_infinity(make, bad):
    X, y = draw(make)
    X[3, 2] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        make().fit(X, y)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        make().fit(sparse.csr_array(X), y)
    if make is not LogisticBilevel:
        y[0] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            make().fit(np.zeros_like(X), y)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("make", EVERY)
def test_a_constant_feature_gets_zero(make, form):
    X, y = draw(make)
    plain = make(cv=3, alpha_min_ratio=0.005).fit(form(X), y)
    X = np.column_stack([X, np.full(len(y), 0.1)])
    model = make(cv=3, alpha_min_ratio=0.005).fit(form(X), y)
    assert np.ravel(model.coef_)[-1] == 0
    np.testing.assert_allclose(np.ravel(model.coef_)[:-1], np.ravel(plain.coef_), atol=1e-7)


@pytest.mark.parametrize("make", EVERY)
def test_more_folds_than_samples(make):
    X, y = draw(make)
    with pytest.raises(ValueError, match="n_splits"):
        make(cv=7).fit(X[:6], y[:6])


def test_an_empty_class():
    X, y = draw(LogisticBilevel)
    with pytest.raises(ValueError, match="only one class is present"):
        LogisticBilevel().fit(X, np.ones(len(y)))
    with pytest.raises(ValueError, match="whose weight is not zero"):
        LogisticBilevel().fit(X, y, sample_weight=(y == 1).astype(float))
    with pytest.raises(ValueError, match="trains on 1 of 2 classes"):
        LogisticBilevel(cv=y == 1).fit(X, y)
    three = np.arange(len(y)) % 3
    with pytest.raises(ValueError, match="trains on 2 of 3 classes"):
        LogisticBilevel(cv=three == 1).fit(X, three)
    with pytest.raises(ValueError, match="1 of 3 classes have no sample"):
        LogisticBilevel().fit(X, three, sample_weight=(three < 2).astype(float))


@pytest.mark.parametrize("make", EVERY[:3])
def test_a_constant_target_is_predicted(make):
    X, _ = draw(make)
    model = make().fit(X, np.full(len(X), 3.5))
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(3.5, rel=1e-14)
    assert "no feature has any relation" in model.path_.reason


def test_noise_gets_the_null_model_or_close_to_it():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 10)), rng.standard_normal(80)
    model = LassoBilevel(per_feature=True, max_iter=5).fit(X, y)
    assert np.abs(model.coef_).max() < 0.2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"groups": [0, 1]}, "one label to each of the 6 features"),
        ({"groups": [0, 1, 2, 0, 1, np.nan]}, "every feature needs a label"),
        ({"groups": [0] * 6, "per_feature": True}, "not both"),
        ({"alpha_init": -1.0}, "positive"),
        ({"alpha_init": [0.1, 0.2]}, "one number or 1"),
        ({"per_feature": True, "alpha_init": [0.1, 0.1, 0.1, 0.1, 0.1, -0.1]}, "positive"),
        ({"alpha_min_ratio": 0.0}, "alpha_min_ratio"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1e-3}, "tol"),
        ({"early_stopping": 1.5}, "early_stopping"),
        ({"cv": 1.5}, r"\(0, 1\)"),
        ({"cv": True}, "not a bool"),
        ({"cv": np.zeros(60, dtype=bool)}, "leaves no row"),
        ({"cv": np.arange(59) % 2 == 0}, "mask of length 59"),
        ({"cv": [(np.arange(30), np.arange(0))]}, "leaves no row"),
    ],
)
def test_arguments_that_make_no_sense(options, says):
    X, y = draw(LassoBilevel)
    with pytest.raises(ValueError, match=says):
        LassoBilevel(**options).fit(X, y)


def test_arguments_of_the_others():
    X, y = draw(LassoBilevel)
    with pytest.raises(ValueError, match="l1_ratio"):
        ElasticNetBilevel(l1_ratio=0.0).fit(X, y)
    with pytest.raises(ValueError, match="groups"):
        GroupLassoBilevel(groups=[0, 1, 2]).fit(X, y)
    with pytest.raises(ValueError, match="sample_weight"):
        LassoBilevel().fit(X, y, sample_weight=-np.ones(60))
    with pytest.raises(ValueError, match="zero"):
        LassoBilevel().fit(X, y, sample_weight=np.zeros(60))


def test_perfect_separation_is_said_and_finite():
    X, _ = draw(LogisticBilevel)
    X = X[np.abs(X[:, 0]) > 0.5]
    y = X[:, 0] > 0
    with pytest.warns(ConvergenceWarning, match="smallest one looked at"):
        model = LogisticBilevel().fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) == 1.0
    assert np.isfinite(model.predict_log_proba(1e6 * X)).all()


def test_a_search_that_ran_out_of_cuts_says_so():
    X, y = draw(LassoBilevel)
    with pytest.warns(ConvergenceWarning, match="could not be excluded"):
        model = LassoBilevel(max_iter=1, tol=1e-12).fit(X, y)
    assert model.path_.reason == "all 1 cuts of brackets are done"
    several = LassoBilevel(per_feature=True, max_iter=1, cv=3, tol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert several.fit(X, y).path_.reason == "all 1 steps are done"


def test_repeated_features_are_said_with_numbers():
    X, y = draw(LassoBilevel, n=40)
    with pytest.warns(InexactGradientWarning, match=r"more than one solution in [1-5] of 5 folds"):
        LassoBilevel().fit(np.column_stack([X, X]), y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ElasticNetBilevel(alpha_min_ratio=1e-4).fit(np.column_stack([X, X]), y)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_do_not_matter(scale):
    X, y = draw(LassoBilevel)
    plain, other = LassoBilevel().fit(X, y), LassoBilevel().fit(scale * X, y)
    np.testing.assert_allclose(other.coef_ * scale, plain.coef_, rtol=1e-5, atol=1e-8)


def test_more_features_than_samples_and_a_large_mean():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 200)) + 1e5
    y = X[:, 0] - X[:, 1] + 0.1 * rng.standard_normal(30)
    model, centred = LassoBilevel(cv=3).fit(X, y), LassoBilevel(cv=3).fit(X - 1e5, y)
    assert model.alpha_ == pytest.approx(centred.alpha_, rel=1e-4)
    np.testing.assert_allclose(model.coef_, centred.coef_, atol=1e-4)


def test_a_sparse_column_of_large_mean_is_not_constant():
    """Time stamps vary little beside their size."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    y = 3 * X[:, 0] + rng.standard_normal(80)
    X[:, 0] += 1e6
    dense, thin = LassoBilevel(cv=3).fit(X, y), LassoBilevel(cv=3).fit(sparse.csr_array(X), y)
    assert thin.score(sparse.csr_array(X), y) > 0.8
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-4, atol=1e-4)
