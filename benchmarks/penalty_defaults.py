"""One penalty, or one for each feature and how to keep these from overfitting: test losses.

Twelve data sets, p ≫ n and p ≪ n, each split several times; every method sees the same splits, and
differences to one penalty are paired. What ``prior`` and ``early_stopping`` are by default in
``legato.sklearn`` is decided here. Usage: python benchmarks/penalty_defaults.py [OUT.json]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np
import sklearn
import torch
from harness import arguments, record
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from threadpoolctl import threadpool_limits

from legato.sklearn import LassoBilevel, LogisticBilevel

Data = tuple[Any, Any]


def generated(rows: int, features: int, effects: int, snr: float, correlation: float) -> Data:
    """Normal features in a chain of correlations; effects of sizes that fall geometrically."""
    rng = np.random.default_rng([rows, features, effects])
    X = rng.standard_normal((rows, features))
    for j in range(1, features):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    w = np.zeros(features)
    w[rng.permutation(features)[:effects]] = 0.8 ** np.arange(effects) * rng.choice(
        [-1, 1], effects
    )
    signal = X @ w
    return X, signal + signal.std() / np.sqrt(snr) * rng.standard_normal(rows)


def labels(data: Data) -> Data:
    X, y = data
    return X, (y > np.median(y)).astype(int)


def digits_3_8() -> Data:
    X, y = load_digits(return_X_y=True)
    kept = np.isin(y, (3, 8))
    return X[kept], (y[kept] == 8).astype(int)


def with_products(X: Any) -> Any:
    return PolynomialFeatures(2, include_bias=False).fit_transform(
        StandardScaler().fit_transform(X)
    )


REGRESSIONS: dict[str, Callable[[], Data]] = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "diabetes, products": lambda: (with_products(load_diabetes().data), load_diabetes().target),
    "generated 1000 × 20": lambda: generated(1000, 20, 8, 2.0, 0.3),
    "generated 200 × 100": lambda: generated(200, 100, 12, 3.0, 0.5),
    "generated 120 × 120, dense": lambda: generated(120, 120, 120, 4.0, 0.0),
    "generated 120 × 1000": lambda: generated(120, 1000, 10, 4.0, 0.3),
}
CLASSIFICATIONS: dict[str, Callable[[], Data]] = {
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits 3, 8": digits_3_8,
    "wine, products": lambda: (with_products(load_wine().data), (load_wine().target == 1) * 1),
    "iris, products": lambda: (with_products(load_iris().data), (load_iris().target == 1) * 1),
    "generated labels 600 × 20": lambda: labels(generated(600, 20, 8, 2.0, 0.3)),
    "generated labels 150 × 150": lambda: labels(generated(150, 150, 10, 4.0, 0.3)),
}
METHODS: dict[str, dict[str, Any]] = {
    "one penalty": {},
    "many": {"per_feature": True, "prior": np.inf},
    "many, early stopping 0.2": {"per_feature": True, "early_stopping": 0.2},
    "many, 10 steps": {"per_feature": True, "max_iter": 10, "prior": np.inf},
    "many, prior 2": {"per_feature": True, "prior": 2.0},
    "many, prior 1": {"per_feature": True, "prior": 1.0},
    "many, prior 0.5": {"per_feature": True, "prior": 0.5},
}


def one_fit(kind: Any, options: dict[str, Any], split: Any, seed: int) -> tuple[float, ...]:
    X, X_test, y, y_test = split
    model = kind(**({"max_iter": 50} | options), random_state=seed)
    begin = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - begin
    inner = float(model.path_.loss[model.path_.chosen])
    if kind is LassoBilevel:
        test = float(np.mean((model.predict(X_test) - y_test) ** 2))
    else:
        test = float(log_loss(y_test, model.predict_proba(X_test)))
    return test, inner, seconds


def rows_of(name: str, kind: Any, data: Data, splits: int) -> list[dict[str, Any]]:
    X, y = data
    found: dict[str, list[tuple[float, ...]]] = {method: [] for method in METHODS}
    for seed in range(splits):
        stratify = y if kind is LogisticBilevel else None
        X_in, X_out, y_in, y_out = train_test_split(
            X, y, test_size=0.4, random_state=seed, stratify=stratify
        )
        scaler = StandardScaler().fit(X_in)
        split = scaler.transform(X_in), scaler.transform(X_out), y_in, y_out
        for method, options in METHODS.items():
            found[method].append(one_fit(kind, options, split, seed))
    base = np.array([test for test, *_ in found["one penalty"]])
    rows = []
    for method, fits in found.items():
        test, inner, seconds = np.array(fits).T
        change = test / base - 1
        rows.append(
            {
                "data": name,
                "rows": len(X_in),
                "features": X.shape[1],
                "method": method,
                "test": float(test.mean()),
                "inner": float(inner.mean()),
                "change": float(change.mean()),
                "standard_error": float(change.std(ddof=1) / np.sqrt(splits)),
                "seconds": float(seconds.mean()),
            }
        )
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()})
    return rows


def part(kind: str, name: str, splits: int) -> list[dict[str, Any]]:
    """All methods on one data set, on one thread."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if kind == "regression":
            return rows_of(name, LassoBilevel, REGRESSIONS[name](), splits)
        return rows_of(name, LogisticBilevel, CLASSIFICATIONS[name](), splits)


def main() -> None:
    parser = arguments(__doc__ or "", "out/penalty_defaults.json")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2, help="data sets at a time")
    given = parser.parse_args()
    parts = [("regression", name) for name in REGRESSIONS]
    parts += [("classification", name) for name in CLASSIFICATIONS]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        running = [pool.submit(part, kind, name, given.splits) for kind, name in parts]
        for done in as_completed(running):
            rows += done.result()
            out = {"scikit_learn": sklearn.__version__, "splits": given.splits, "rows": rows}
            record(given.out, out)


if __name__ == "__main__":
    main()
