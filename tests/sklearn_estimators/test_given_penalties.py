"""Penalties that are given, signs, ridges and scores, against scikit-learn's own estimators."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge, RidgeCV
from sklearn.metrics import mean_absolute_error, roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

from legato.errors import InexactGradientWarning, InputError
from legato.sklearn import ElasticNetBilevel, LassoBilevel, LogisticBilevel, RidgeBilevel
from legato.sklearn.criterion import Criterion, Fold, ValidationRows, hypergradient
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import LogLoss, LowerLevel, Squares
from legato.sklearn.penalties import Groups, Penalties

RECENT = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)


def data(n=60, p=12, classes=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) * rng.uniform(0.2, 3, p) + rng.standard_normal(p)
    y = X[:, 0] - 0.4 * X[:, 1] + 0.5 * X[:, 2] + rng.standard_normal(n)
    return X, np.where(y > np.median(y), "yes", "no") if classes else y


def logistic(C, r, **options):
    more = {"l1_ratio": r} if RECENT else {"l1_ratio": r, "penalty": "elasticnet"}
    solver = "lbfgs" if r == 0 else "saga"
    if r == 0 and not RECENT:
        more = {"penalty": "l2"}
    return LogisticRegression(C=C, solver=solver, tol=1e-12, max_iter=200_000, **more, **options)


def same(ours, peer, accuracy=1e-6):
    size = np.abs(peer.coef_).max()
    np.testing.assert_allclose(ours.coef_, peer.coef_, rtol=0, atol=accuracy * size)
    np.testing.assert_allclose(ours.intercept_, peer.intercept_, rtol=0, atol=1e-6 * max(1, size))


EXACT = {"tol": 1e-13, "max_iter": 1_000_000}
REGRESSIONS = {
    "lasso": (LassoBilevel(alpha=0.1), lambda n: Lasso(0.1, **EXACT)),
    "lasso, positive": (
        LassoBilevel(alpha=0.1, positive=True),
        lambda n: Lasso(0.1, positive=True, **EXACT),
    ),
    "elastic net": (
        ElasticNetBilevel(alpha=0.2, l1_ratio=0.3),
        lambda n: ElasticNet(0.2, l1_ratio=0.3, **EXACT),
    ),
    "elastic net, positive": (
        ElasticNetBilevel(alpha=0.2, l1_ratio=0.3, positive=True),
        lambda n: ElasticNet(0.2, l1_ratio=0.3, positive=True, **EXACT),
    ),
    "ridge": (RidgeBilevel(alpha=0.3), lambda n: Ridge(0.3 * n)),
    "ridge, no intercept": (
        RidgeBilevel(alpha=0.3, fit_intercept=False),
        lambda n: Ridge(0.3 * n, fit_intercept=False),
    ),
    "ridge, positive": (
        RidgeBilevel(alpha=0.3, positive=True),
        lambda n: Ridge(0.3 * n, positive=True, tol=1e-12, max_iter=100_000),
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(60, 12), (25, 40)])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regression_at_a_given_penalty(name, shape, weighted):
    ours, peer = REGRESSIONS[name]
    X, y = data(*shape)
    weights = np.arange(len(y)) % 3 + 0.5 if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coordinate descent cannot reach a gap this small
        other = peer(len(y) if weights is None else weights.sum()).fit(X, y, weights)
    # scikit-learn's positive ridge is by L-BFGS.
    same(ours.fit(X, y, weights), other, 1e-5 if name == "ridge, positive" else 1e-6)
    thin = sparse.csr_array(X)
    np.testing.assert_allclose(ours.fit(thin, y, weights).coef_, ours.fit(X, y, weights).coef_)
    assert ours.alpha_ == ours.alpha
    assert "nothing was tuned" in ours.path_.reason


@pytest.mark.parametrize("r", [0.0, 0.5])
@pytest.mark.parametrize("shape", [(60, 12), (25, 40)])
def test_classification_at_a_given_penalty(shape, r):
    X, y = data(*shape, classes=True)
    X = X - X.mean(0)
    ours = LogisticBilevel(alpha=0.05, l1_ratio=r, class_weight="balanced").fit(X, y)
    same(ours, logistic(1 / (0.05 * len(y)), r, class_weight="balanced").fit(X, y), 3e-6)


def test_one_given_penalty_a_feature_and_none():
    X, y = data()
    alpha = np.geomspace(0.01, 1.0, 12)
    ours = LassoBilevel(alpha=alpha, per_feature=True, fit_intercept=False).fit(X, y)
    peer = Lasso(1.0, fit_intercept=False, **EXACT).fit(X / alpha, y)
    np.testing.assert_allclose(ours.coef_, peer.coef_ / alpha, atol=1e-7)
    free = LassoBilevel(alpha=0.0, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(free.coef_, np.linalg.lstsq(X, y)[0], rtol=1e-8)


# --- tuning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 8), (20, 30)])
@pytest.mark.parametrize(
    ("loss", "r", "positive"),
    [
        (Squares(), 0.0, False),
        (LogLoss(), 0.0, False),
        (LogLoss(), 0.4, False),
        (Squares(), 1.0, True),
        (LogLoss(), 0.5, True),
    ],
)
def test_hypergradients_by_differences(loss, r, positive, shape):
    X, y = data(*shape)
    y = y if loss.quadratic else (y > np.median(y)).astype(float)
    n, p = shape
    train, held = np.arange(n) % 3 > 0, np.arange(n) % 3 == 0
    groups = Groups.singletons(p, positive)
    penalties = Penalties(groups, np.arange(p) % 3, 3, np.ones(p), r)
    design = Design(X[train], np.full(train.sum(), 1 / train.sum()), groups, centre=True)
    level = LowerLevel(Columns(design), y[train], loss, groups, intercept=True)
    rows = ValidationRows(X[held], y[held], np.full(held.sum(), 1 / held.sum()), held.sum())
    criterion = Criterion([Fold(level, rows)], penalties)
    theta = np.log([0.05, 0.11, 0.02])
    _, gradient, solutions = criterion(theta)
    assert solutions[0].residual < 1e-9
    for k, step in enumerate(1e-4 * np.eye(3)):
        ends = [criterion(theta + sign * step)[0] for sign in (1, -1)]
        assert gradient[k] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-8)
    assert hypergradient(level, solutions[0], penalties.weights(theta), rows)[1].pivot > 0


def test_the_best_ridge_is_that_of_a_fine_grid():
    X, y = data(60, 12)
    folds = KFold(4)
    ours = RidgeBilevel(cv=folds).fit(X, y)
    grid = ours.alpha_ * np.geomspace(0.25, 4, 41)
    losses = []
    for alpha in grid:
        found = 0.0
        for train, test in folds.split(X):
            peer = Ridge(alpha * len(train)).fit(X[train], y[train])
            found += np.mean((peer.predict(X[test]) - y[test]) ** 2) / 4
        losses.append(found)
    assert ours.path_.loss[ours.path_.chosen] <= min(losses) * (1 + 1e-7)
    assert ours.path_.loss[ours.path_.chosen] == pytest.approx(losses[20], rel=1e-9)
    assert abs(int(np.argmin(losses)) - 20) <= 1
    same(ours, Ridge(ours.alpha_ * len(y)).fit(X, y))
    assert ours.score(X, y) == pytest.approx(RidgeCV(grid * 60).fit(X, y).score(X, y), abs=0.02)


def test_a_score_chooses_what_a_grid_search_would():
    X, y = data()
    folds = KFold(3)
    ours = LassoBilevel(cv=folds, scoring="neg_mean_absolute_error").fit(X, y)
    grid = {"alpha": list(np.exp([theta[0] for theta in ours.path_.theta]))}
    peer = GridSearchCV(Lasso(**EXACT), grid, cv=folds, scoring="neg_mean_absolute_error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(X, y)
    assert ours.alpha_ == pytest.approx(peer.best_params_["alpha"])
    np.testing.assert_allclose(-ours.path_.loss, peer.cv_results_["mean_test_score"], rtol=1e-6)
    weighted = LassoBilevel(cv=folds, scoring="neg_mean_absolute_error", alpha_min_ratio=0.1)
    weights = 1.0 + (np.arange(len(y)) % 2)
    found = weighted.fit(X, y, sample_weight=weights).path_
    alpha = float(found.alpha[found.chosen][0])
    by_hand = []
    for train, test in folds.split(X):
        model = Lasso(alpha, **EXACT).fit(X[train], y[train], weights[train])
        told = model.predict(X[test])
        by_hand.append(mean_absolute_error(y[test], told, sample_weight=weights[test]))
    assert found.loss[found.chosen] == pytest.approx(np.mean(by_hand), rel=1e-6)


def test_a_score_of_labels():
    X, y = data(classes=True)
    folds = StratifiedKFold(3)
    ours = LogisticBilevel(cv=folds, scoring="roc_auc", l1_ratio=0.0, alpha_min_ratio=1e-2)
    found = ours.fit(X, y).path_
    alpha, scores = float(found.alpha[found.chosen][0]), []
    for train, test in folds.split(X, y):
        peer = logistic(1 / (alpha * len(train)), 0).fit(X[train], y[train])
        scores.append(roc_auc_score(y[test], peer.decision_function(X[test])))
    assert -found.loss[found.chosen] == pytest.approx(np.mean(scores))


def test_a_given_penalty_of_zero_is_no_start():
    X, y = data(30, 4)
    model = LassoBilevel(alpha=0.0, warm_start=True, cv=3).fit(X, y).set_params(alpha=None)
    fresh = LassoBilevel(cv=3).fit(X, y)
    assert model.fit(X, y).alpha_ == pytest.approx(fresh.alpha_, rel=1e-6)


def test_a_ridge_on_columns_of_all_sizes_is_not_called_singular():
    X, y = data(60, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", InexactGradientWarning)
        RidgeBilevel(cv=3).fit(X * np.logspace(-6, 6, 5), y)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: LassoBilevel(alpha=-1.0), "zero or positive"),
        (lambda: LassoBilevel(alpha=[0.1, 0.2]), "one number or 1"),
        (lambda: LassoBilevel(alpha=np.nan), "finite"),
        (lambda: ElasticNetBilevel(alpha=0.1, l1_ratio=None), "give l1_ratio"),
        (lambda: ElasticNetBilevel(l1_ratio=0.0), "RidgeBilevel"),
        (lambda: LassoBilevel(scoring="r2", per_feature=True), "scoring chooses one penalty"),
        (lambda: LassoBilevel(scoring=lambda model, X, y: np.nan), "NaN"),
    ],
)
def test_what_makes_no_sense_is_refused(make, match):
    with pytest.raises(InputError, match=match):
        make().fit(*data(30, 4))
