"""Newton on sparse regressions beside celer and beside the estimators' own lower level.

    python benchmarks/sparse_newton.py [out.json]

Solution and gradient of a validation loss in the penalty, in turns on one thread: the lasso of the
race (500 × 2000, 40 coefficients, no intercept), and two that statisticians know, with an
intercept. Celer ends at a tolerance of 1e-10 and has no derivative: a closed form on the support is
added, as its user would. Errors are against that closed form at scikit-learn's own solution (the
race: against its truth). Total variation in one dimension is beside the race's truth alone.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import arguments, record, take_turns
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Lasso, LogisticRegression
from threadpoolctl import threadpool_limits

import legato as lg
from legato.sklearn.criterion import ValidationRows, hypergradient
from legato.sklearn.design import Columns, Design
from legato.sklearn.lower_level import LinearLoss, LogLoss, LowerLevel, Squares
from legato.sklearn.penalties import Groups, Weights

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import instances

TOL = 1e-10
Answer = tuple[Any, float]
"""Coefficients, and the derivative of the validation loss in the penalty."""


def newton(energy: Callable[[Any], Any], loss: Callable[[Any], Any], penalty: float) -> Answer:
    theta = torch.tensor(penalty, dtype=torch.float64, requires_grad=True)
    stop = lg.Stop(100, tol=TOL)
    solution = lg.solve(energy(theta), lg.Newton(), gradient=lg.OneStep(), stop=stop)
    (gradient,) = torch.autograd.grad(loss(solution.x), theta)
    return solution.x.detach().numpy(), float(gradient)


def on_the_support(X: Any, w: Any, slope: Any) -> float:
    """dL/dλ of a lasso ½‖Xw − y‖² + λ‖w‖₁ by one system on the support."""
    A = np.flatnonzero(w)
    return -float(np.sign(w[A]) @ np.linalg.solve(X[:, A].T @ X[:, A], slope[A]))


def race_lasso() -> tuple[dict[str, Callable[[], Answer]], Answer]:
    data = instances.lasso()
    X, y, V, v, penalty = (data[k] for k in ("X", "y", "V", "v", "theta"))
    n, alpha = len(y), float(penalty[0])
    matrix, held = lg.Dense(torch.from_numpy(X)), torch.from_numpy(V)  # the matrix knows its norm
    target, wanted = torch.from_numpy(y), torch.from_numpy(v)
    groups = Groups.singletons(X.shape[1])
    nothing = np.zeros(X.shape[1])

    def by_newton() -> Answer:
        return newton(
            lambda theta: lg.LeastSquares(matrix, target) + lg.L1(theta),
            lambda x: 0.5 * (held @ x - wanted).square().sum(),
            alpha,
        )

    def by_the_estimators() -> Answer:
        design = Design(X, np.full(n, 1 / n), groups, centre=False)
        level = LowerLevel(Columns(design), y, Squares(), groups, intercept=False)
        weights = Weights(np.full(X.shape[1], alpha / n), nothing)
        found = level.solve(weights)
        rows = ValidationRows(V, v, np.full(len(v), 1 / len(v)), float(len(v)))
        _, slope = hypergradient(level, found, weights, rows)
        coef, _ = level.coefficients(found)
        return coef, float(slope.a.sum()) / n * len(v) / 2

    tasks = {"lg.Newton": by_newton, "legato.sklearn": by_the_estimators}
    if importlib.util.find_spec("celer"):
        import celer

        def by_celer() -> Answer:
            model = celer.Lasso(alpha=alpha / n, fit_intercept=False, tol=TOL, max_iter=10_000)
            w = model.fit(X, y).coef_
            return w, on_the_support(X, w, V.T @ (V @ w - v))

        tasks["celer and an adjoint"] = by_celer
    return tasks, (data["x"], float(data["gradient"][0]))


def known(
    X: Any, y: Any, loss: LinearLoss, share: float
) -> tuple[dict[str, Callable[[], Answer]], Answer]:
    """A lasso or sparse logistic regression of rows that scikit-learn has, loss on a third."""
    X = (X - X.mean(0)) / X.std(0)
    train, test = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 3 == 0
    n, p = int(train.sum()), X.shape[1]
    groups, binary = Groups.singletons(p), isinstance(loss, LogLoss)
    rows = ValidationRows(X[test], y[test], np.full(test.sum(), 1 / test.sum()), float(test.sum()))

    def level() -> LowerLevel:
        design = Design(X[train], np.full(n, 1 / n), groups, centre=True)
        return LowerLevel(Columns(design), y[train], loss, groups, intercept=True)

    alpha = share * float(level().null_gradient().max())
    weights = Weights(np.full(p, alpha), np.zeros(p))

    def by_the_estimators() -> Answer:
        here = level()
        found = here.solve(weights)
        _, slope = hypergradient(here, found, weights, rows)
        return here.coefficients(found)[0], float(slope.a.sum())

    ones = np.ones((len(y), 1))
    A, b = (torch.from_numpy(np.hstack([X, ones])), torch.from_numpy(y))
    kept = torch.ones(p + 1, dtype=torch.float64)
    kept[-1] = 0  # the intercept is not penalised
    inside, outside = torch.from_numpy(train), torch.from_numpy(test)
    matrix, target, held, wanted = lg.Dense(A[inside]), b[inside], A[outside], b[outside]

    def energy(theta: Any) -> Any:
        fit: Any = (
            lg.Logistic(matrix, 2 * target - 1) if binary else lg.LeastSquares(matrix, target)
        )
        return (1 / n) * fit + lg.L1(theta * kept)

    def validation(x: Any) -> Any:
        z = held @ x
        if binary:
            return torch.nn.functional.binary_cross_entropy_with_logits(z, wanted)
        return (z - wanted).square().mean()

    def by_newton() -> Answer:
        w, slope = newton(energy, validation, alpha)
        return w[:-1], slope

    def right(penalty: float) -> tuple[Any, float]:
        """Coefficients and the validation loss by scikit-learn."""
        if binary:
            C = 1 / (n * penalty)
            model = LogisticRegression(l1_ratio=1.0, C=C, solver="saga", tol=1e-14, max_iter=10**6)
        else:
            model = Lasso(alpha=penalty, tol=1e-15, max_iter=10**6)
        model.fit(X[train], y[train])
        z = np.asarray(X[test] @ model.coef_.reshape(-1) + model.intercept_)
        value = np.logaddexp(0, z) - y[test] * z if binary else (z - y[test]) ** 2
        return model.coef_.reshape(-1), float(value.mean())

    h = 1e-4 * alpha
    truth = right(alpha)[0], (right(alpha + h)[1] - right(alpha - h)[1]) / (2 * h)
    return {"lg.Newton": by_newton, "legato.sklearn": by_the_estimators}, truth


def total_variation() -> tuple[dict[str, Callable[[], Answer]], Answer]:
    data = instances.tv1d()
    y, target = (torch.from_numpy(data[k]) for k in ("y", "target"))
    penalty = float(np.ravel(data["theta"])[0])

    def by_newton() -> Answer:
        return newton(
            lambda theta: lg.SquaredDistance(y) + lg.L1(theta) @ lg.Differences((-1,)),
            lambda x: 0.5 * (x - target).square().sum(),
            penalty,
        )

    return {"lg.Newton": by_newton}, (data["x"], float(np.ravel(data["gradient"])[0]))


def main() -> None:
    options = arguments(__doc__ or "", "benchmarks/results/sparse_newton_cpu.json").parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, y = load_diabetes(return_X_y=True, scaled=False)
    Z, labels = load_breast_cancer(return_X_y=True)
    problems = {
        "lasso 500 × 2000": race_lasso,
        "diabetes, lasso": lambda: known(X, y, Squares(), 0.1),
        "breast cancer, sparse logistic": lambda: known(Z, labels.astype(float), LogLoss(), 0.1),
    }
    if not options.quick:
        problems["total variation, 10 000"] = total_variation
    rows = []
    with threadpool_limits(1):
        for name, build in problems.items():
            tasks, (x, gradient) = build()
            rounds = 1 if "variation" in name else options.rounds
            timed = take_turns(tasks, rounds)
            row: dict[str, Any] = {"problem": name}
            for method, task in tasks.items():
                found, slope = task()
                row[method] = {
                    "processor": min(timed[method].processor),
                    "milliseconds": timed[method].least,
                    "x": float(np.linalg.norm(found - x) / np.linalg.norm(x)),
                    "gradient": abs(slope / gradient - 1),
                }
            print(row, flush=True)
            rows.append(row)
    record(options.out, {"tolerance": TOL, "clock": "processor, in milliseconds", "rows": rows})


if __name__ == "__main__":
    main()
