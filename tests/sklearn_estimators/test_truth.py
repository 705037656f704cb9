"""Lower levels against scikit-learn and optimality, hypergradients against differences."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LassoCV, LogisticRegression
from sklearn.preprocessing import StandardScaler

import legato as lg
from legato.sklearn import ElasticNetBilevel, GroupLassoBilevel, LassoBilevel, LogisticBilevel
from legato.sklearn.criterion import Criterion, Fold, ValidationRows, hypergradient
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import LogLoss, LowerLevel, Squares
from legato.sklearn.penalties import Groups, Penalties, Weights

GROUPED = Groups(np.arange(30) % 6, 6)
SINGLE = Groups.singletons(30)


def draw(seed=0, n=80, p=30):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * rng.uniform(0.1, 5, p) + rng.standard_normal(p)
    w = np.where(rng.random(p) < 0.3, rng.standard_normal(p), 0.0) / X.std(0)
    return X, X @ w + 0.5 * rng.standard_normal(n) + 2.0


def level_of(X, y, loss=None, groups=SINGLE, intercept=True):
    design = Design(X, np.full(len(y), 1 / len(y)), groups, centre=intercept)
    return LowerLevel(
        Columns(design), y, Squares() if loss is None else loss, groups, intercept=intercept
    )


def solved(level, a, b=0.0):
    a = np.broadcast_to(np.asarray(a, dtype=float), level.groups.count).copy()
    found = level.solve(Weights(a, np.full(level.design.shape[1], float(b))))
    assert found.residual <= 1e-10
    return level.design.coefficients(found.w, found.intercept)


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("r", [1.0, 0.5])
@pytest.mark.parametrize(("n", "p"), [(80, 30), (40, 120)])
def test_regression_equals_scikit_learns(n, p, r, share, intercept, form):
    X, y = draw(1, n, p)
    level = level_of(form(X), y, groups=Groups.singletons(p), intercept=intercept)
    alpha = share * float(level.null_gradient().max())
    coef, b = solved(level, r * alpha, (1 - r) * alpha)
    kind = Lasso(alpha) if r == 1 else ElasticNet(alpha, l1_ratio=r)
    kind.set_params(fit_intercept=intercept, tol=1e-13, max_iter=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn cannot reach its gap where it is tiny
        peer = kind.fit(X, y)
    np.testing.assert_allclose(coef, peer.coef_, rtol=1e-6, atol=1e-6 * abs(peer.coef_).max())
    assert b == pytest.approx(peer.intercept_, rel=1e-6, abs=1e-6)


# liblinear penalises an intercept, and saga is slow where the penalty is small.
@pytest.mark.parametrize(
    ("solver", "share"), [("saga", 0.5), ("liblinear", 0.1), ("liblinear", 0.02)]
)
def test_classification_equals_scikit_learns(solver, share):
    X, y = load_breast_cancer(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:200], y[:200].astype(float)
    intercept = solver == "saga"
    level = level_of(X, y, LogLoss(), intercept=intercept)
    alpha = share * float(level.null_gradient().max())
    coef, b = solved(level, alpha)
    recent = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    l1 = {"l1_ratio": 1.0} if recent else {"penalty": "l1"}
    options = {"C": 1 / (len(y) * alpha), "tol": 1e-10, "max_iter": 100_000, **l1}
    peer = LogisticRegression(solver=solver, fit_intercept=intercept, **options).fit(X, y)
    np.testing.assert_allclose(coef, peer.coef_[0], atol=1e-6 * abs(peer.coef_).max())
    assert b == pytest.approx(np.ravel(peer.intercept_)[0], rel=1e-5)


@pytest.mark.parametrize("loss", [Squares(), LogLoss()])
@pytest.mark.parametrize("share", [0.6, 0.2, 0.02])
def test_group_lasso_is_optimal(loss, share):
    X, y = draw(2)
    y = y if loss.quadratic else (y > np.median(y)).astype(float)
    level = level_of(X, y, loss, GROUPED)
    a = share * float(level.null_gradient().max()) * np.linspace(0.5, 1.5, 6)
    coef, b = solved(level, a)
    gradient = X.T @ loss.derivative(X @ coef + b, y) / len(y)
    for g in range(6):
        at, slope = coef[GROUPED.of == g], gradient[GROUPED.of == g]
        if at.any():
            np.testing.assert_allclose(slope, -a[g] * at / np.linalg.norm(at), atol=1e-9)
        else:
            assert np.linalg.norm(slope) <= a[g] * (1 + 1e-9)
    assert abs(loss.derivative(X @ coef + b, y).mean()) < 1e-9


def test_many_penalties_are_a_lasso_on_rescaled_features():
    X, y = draw(3)
    weights = np.random.default_rng(0).uniform(0.2, 3, 30)
    coef, b = solved(level_of(X, y), 0.05 * weights)
    peer = Lasso(0.05, tol=1e-13, max_iter=1_000_000).fit(X / weights, y)
    np.testing.assert_allclose(coef, peer.coef_ / weights, rtol=1e-6, atol=1e-8)
    assert b == pytest.approx(peer.intercept_, rel=1e-8)


CASES = {
    "lasso": (Squares(), SINGLE, np.arange(30), 1.0),
    "shared": (Squares(), SINGLE, np.arange(30) // 10, 1.0),
    "elastic net": (Squares(), SINGLE, np.arange(30), 0.6),
    "elastic net, share tuned": (Squares(), SINGLE, np.arange(30), None),
    "group lasso": (Squares(), GROUPED, np.arange(6), 1.0),
    "logistic": (LogLoss(), SINGLE, np.arange(30), 1.0),
    "logistic group lasso": (LogLoss(), GROUPED, np.arange(6), 1.0),
}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_hypergradients_equal_central_differences(case, intercept):
    loss, groups, index, ratio = CASES[case]
    X, y = draw(4)
    y = y if loss.quadratic else (y > np.median(y)).astype(float)
    folds = []
    for k in range(3):
        held = np.arange(len(y)) % 3 == k
        level = level_of(X[~held], y[~held], loss, groups, intercept)
        share = np.full(held.sum(), 1 / held.sum())
        folds.append(Fold(level, ValidationRows(X[held], y[held], share, float(len(held)))))
    penalties = Penalties(groups, index, int(index.max()) + 1, np.ones(groups.count), ratio)
    criterion = Criterion(folds, penalties)
    top = max(fold.level.null_gradient().max() for fold in folds)
    theta = penalties.common(np.log(0.05 * top))
    theta += 0.3 * np.random.default_rng(0).standard_normal(len(theta))
    _, gradient, _ = criterion(theta)
    h, differences = 1e-6, np.zeros(len(theta))
    for j in range(len(theta)):
        step = np.zeros(len(theta))
        step[j] = h
        differences[j] = (criterion(theta + step)[0] - criterion(theta - step)[0]) / (2 * h)
    size = np.abs(differences).max()
    assert size > 0
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-5 * size)


def test_the_hypergradient_equals_legatos_engine():
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), y - y.mean()
    held = np.arange(len(y)) % 4 == 0
    level = level_of(X[~held], y[~held], groups=Groups.singletons(10), intercept=False)
    alpha = 2.0 * np.linspace(0.5, 1.5, 10)
    share = np.full(held.sum(), 1 / held.sum())
    weights = Weights(alpha, np.zeros(10))
    found = level.solve(weights)
    value, slope = hypergradient(
        level, found, weights, ValidationRows(X[held], y[held], share, float(len(held)))
    )
    n = int((~held).sum())
    A, b = torch.from_numpy(X[~held] / np.sqrt(n)), torch.from_numpy(y[~held] / np.sqrt(n))
    variable = torch.tensor(alpha, requires_grad=True)
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(variable))
    stop = lg.Stop(50_000, tol=1e-13)
    gradient = lg.Implicit(lg.GMRES(tol=1e-12))
    w = lg.solve(problem, lg.ForwardBackward(), gradient=gradient, stop=stop).x
    loss = (torch.from_numpy(X[held]) @ w - torch.from_numpy(y[held])).square().mean()
    loss.backward()
    assert value == pytest.approx(float(loss.detach()), rel=1e-9)
    np.testing.assert_allclose(slope.a, variable.grad.numpy(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_one_penalty_is_as_good_as_a_fine_grid(seed):
    if seed == 0:
        X, y = load_diabetes(return_X_y=True)
    else:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((100, 20 * seed))
        y = X[:, :5].sum(1) + 2 * rng.standard_normal(100)
    model = LassoBilevel().fit(X, y)
    around = np.geomspace(1.5 * model.alpha_, model.alpha_ / 1.5, 500)
    peer = LassoCV(cv=5, alphas=around, tol=1e-10, max_iter=100_000).fit(X, y)
    best = peer.mse_path_.mean(1).min()
    assert model.path_.loss.min() <= best * (1 + 1e-6)
    refit = Lasso(model.alpha_, tol=1e-12, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, refit.coef_, atol=1e-6 * abs(refit.coef_).max())


@pytest.mark.parametrize(
    ("one", "many"),
    [
        (LassoBilevel(), LassoBilevel(per_feature=True, max_iter=8)),
        (ElasticNetBilevel(), ElasticNetBilevel(per_feature=True, max_iter=8)),
        (LassoBilevel(), ElasticNetBilevel(l1_ratio=None, per_feature=True, max_iter=8)),
        (
            GroupLassoBilevel(groups=np.arange(30) // 3),
            GroupLassoBilevel(groups=np.arange(30) // 3, per_group=True, max_iter=8),
        ),
        (LogisticBilevel(), LogisticBilevel(per_feature=True, max_iter=8)),
    ],
)
def test_many_penalties_validate_better_than_one(one, many):
    X, y = draw(5, n=120)
    y = (y > np.median(y)) if isinstance(one, LogisticBilevel) else y
    one.set_params(cv=3, alpha_min_ratio=0.01)
    many.set_params(cv=3, alpha_min_ratio=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single, several = one.fit(X, y), many.fit(X, y)
    losses = several.path_.loss[several.path_.chosen], single.path_.loss.min()
    assert losses[0] < losses[1]
