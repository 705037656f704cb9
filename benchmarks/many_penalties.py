"""One penalty and many, beside LassoCV and GridSearchCV: losses and seconds in one run.

Diabetes, breast cancer, and a synthetic problem with 1000 rows and 5000 features in 50 groups of
different relevance. Everything runs on one BLAS thread, interleaved with nothing.
Usage: python benchmarks/many_penalties.py [OUT.json]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import sklearn
import torch
from harness import arguments, record
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LassoCV, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import legato as lg
from legato.sklearn import ElasticNetBilevel, LassoBilevel, LogisticBilevel
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import LowerLevel, Squares
from legato.sklearn.penalties import Groups, Weights

GROUPS = np.repeat(np.arange(50), 100)


def timed(model: Any, X: Any, y: Any) -> float:
    begin = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - begin


def lasso_cv(X: Any, y: Any, **options: Any) -> dict[str, Any]:
    model = LassoCV(cv=5, max_iter=100_000, **options)
    seconds = timed(model, X, y)
    loss = float(model.mse_path_.mean(1).min())
    return {"seconds": seconds, "alpha": model.alpha_, "cv_loss": loss, "model": model}


def ours(model: Any, X: Any, y: Any) -> dict[str, Any]:
    seconds = timed(model, X, y)
    path = model.path_
    return {
        "seconds": seconds,
        "cv_loss": float(path.loss[path.chosen]),
        "points": len(path),
        "chosen": path.chosen,
        "reason": path.reason,
        "support": int((model.coef_ != 0).sum()),
        "model": model,
    }


def synthetic(seed: int) -> tuple[Any, ...]:
    """Five groups with many effects of falling size, five with two strong ones, forty with none."""
    rng = np.random.default_rng(seed)
    rows, features = 1000 + 5000, len(GROUPS)
    X = rng.standard_normal((rows, features))
    for j in range(1, features):  # neighbours within a group correlate by 0.3
        if GROUPS[j] == GROUPS[j - 1]:
            X[:, j] = 0.3 * X[:, j - 1] + np.sqrt(1 - 0.09) * X[:, j]
    w = np.zeros(features)
    for g, size in enumerate([0.8, 0.6, 0.5, 0.4, 0.3]):
        chosen = 100 * g + rng.choice(100, 20, replace=False)
        w[chosen] = size * rng.standard_normal(20)
    for g in range(5, 10):
        w[100 * g + rng.choice(100, 2, replace=False)] = rng.choice([-1.0, 1.0], 2)
    signal = X @ w
    y = signal + signal.std() / 2 * rng.standard_normal(rows)  # variance: four parts to one
    return X[:1000], y[:1000], X[1000:], y[1000:], signal.var() / 4


def one_lower_level(X: Any, y: Any, alpha: float) -> dict[str, float]:
    """The same lasso by the working-set Newton method and by legato's first-order engine."""
    n, p = X.shape
    groups = Groups.singletons(p)
    begin = time.perf_counter()
    columns = Columns(Design(X, np.full(n, 1 / n), groups, centre=True))
    level = LowerLevel(columns, y, Squares(), groups, intercept=True)
    found = level.solve(Weights(np.full(p, alpha), np.zeros(p)))
    newton = time.perf_counter() - begin
    coef, _ = level.design.coefficients(found.w, found.intercept)
    begin = time.perf_counter()
    A = torch.from_numpy((X - X.mean(0)) / np.sqrt(n))
    b = torch.from_numpy((y - y.mean()) / np.sqrt(n))
    problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(alpha))
    with torch.no_grad():
        stop = lg.Stop(20_000, tol=1e-9)
        solution = lg.solve(problem, lg.ForwardBackward(inertia=lg.Nesterov()), stop=stop)
    first_order = time.perf_counter() - begin
    return {
        "working_set_newton_s": newton,
        "forward_backward_nesterov_s": first_order,
        "forward_backward_iterations": solution.iterations,
        "largest_difference": float(np.abs(solution.x.numpy() - coef).max()),
    }


def regression_rows(
    name: str, X: Any, y: Any, test: tuple[Any, Any], groups: Any, *, peer: bool, **cv: Any
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(method: str, found: dict[str, Any]) -> None:
        model = found.pop("model")
        error = float(np.mean((model.predict(test[0]) - test[1]) ** 2))
        rows.append({"problem": name, "method": method, **found, "test_mse": error})
        print(name, method, {k: v for k, v in rows[-1].items() if k not in ("problem", "method")})

    one = ours(LassoBilevel(), X, y)
    near = one["model"].alpha_
    add("LassoBilevel, one penalty", one)
    if peer:
        add("LassoCV, 100 penalties", lasso_cv(X, y, **cv))
        around = np.geomspace(1.05 * near, near / 1.05, 1000 if X.shape[1] < 100 else 200)
        fine = lasso_cv(X, y, alphas=around, tol=1e-9)
        rows[0]["relative_to_fine_grid"] = rows[0]["cv_loss"] / fine["cv_loss"] - 1
        add(f"LassoCV, {len(around)} penalties within 5 % of the best", fine)
    add("ElasticNetBilevel, penalty and share", ours(ElasticNetBilevel(l1_ratio=None), X, y))
    add("LassoBilevel, one a group", ours(LassoBilevel(groups=groups, max_iter=50), X, y))
    add(
        "LassoBilevel, one a feature",
        ours(LassoBilevel(per_feature=True, prior=np.inf, max_iter=50), X, y),
    )
    early = LassoBilevel(per_feature=True, early_stopping=0.2, max_iter=50, random_state=0)
    add("LassoBilevel, one a feature, early stopping", ours(early, X, y))
    return rows


def classification_rows() -> list[dict[str, Any]]:
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    scaler = StandardScaler().fit(X)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    rows = []
    one = LogisticBilevel()
    found = ours(one, X, y)
    Cs = 1 / (len(y) * np.geomspace(1.0, 1e-3, 50) * np.exp(max(t[0] for t in one.path_.thetas)))
    recent = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    l1 = {"l1_ratio": 1.0} if recent else {"penalty": "l1"}
    base = LogisticRegression(solver="saga", max_iter=5000, random_state=0, **l1)
    grid = GridSearchCV(base, {"C": Cs}, scoring="neg_log_loss", cv=5)
    seconds = timed(grid, X, y)
    peer = {"seconds": seconds, "cv_loss": -float(grid.best_score_), "model": grid}
    many = ours(LogisticBilevel(per_feature=True, prior=np.inf, max_iter=50), X, y)
    stopped = LogisticBilevel(per_feature=True, early_stopping=0.2, max_iter=50, random_state=0)
    early = ours(stopped, X, y)
    for method, entry in (
        ("LogisticBilevel, one penalty", found),
        ("GridSearchCV(LogisticRegression, saga), 50 penalties", peer),
        ("LogisticBilevel, one a feature", many),
        ("LogisticBilevel, one a feature, early stopping", early),
    ):
        model = entry.pop("model")
        entry["test_log_loss"] = float(log_loss(y_test, model.predict_proba(X_test)))
        rows.append({"problem": "breast cancer", "method": method, **entry})
        print(rows[-1])
    return rows


def main() -> None:
    given = arguments(__doc__ or "", "out/many_penalties.json").parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = {"scikit_learn": sklearn.__version__}
    with threadpool_limits(1):
        X, y = load_diabetes(return_X_y=True, scaled=False)
        X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
        scaler = StandardScaler().fit(X)
        test = (scaler.transform(X_test), y_test)
        rows = regression_rows(
            "diabetes", scaler.transform(X), y, test, np.arange(10) // 2, peer=True, tol=1e-4
        )
        rows += classification_rows()
        for seed in range(3):
            X, y, X_test, y_test, noise = synthetic(seed)
            if seed == 0:
                results["one_lower_level"] = one_lower_level(X, y, 0.1 * float(y.std()))
                print(results["one_lower_level"])
            found = regression_rows(
                f"synthetic {seed}", X, y, (X_test, y_test), GROUPS, peer=seed == 0, tol=1e-4
            )
            rows += [row | {"noise_variance": float(noise)} for row in found]
    record(given.out, results | {"rows": rows})
    print(f"Written to {given.out}")


if __name__ == "__main__":
    main()
