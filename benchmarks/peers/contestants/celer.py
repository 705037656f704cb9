"""celer and scikit-learn: solutions of sparse regressions, without derivatives."""

from __future__ import annotations

from typing import Any

import celer
import sklearn.linear_model
from contract import Contestant, Data, Methods


def _estimator(problem: str, library: Any, tol: float):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        X, y, theta = data["X"], data["y"], data["theta"]
        n = len(y)
        settings = {"fit_intercept": False, "tol": tol, "max_iter": 10_000}
        if problem == "elastic_net":
            total = theta.sum()
            model = library.ElasticNet(alpha=total / n, l1_ratio=theta[0] / total, **settings)
        elif problem == "weighted_lasso":
            mean = theta.mean()
            model = library.Lasso(alpha=mean / n, weights=theta / mean, **settings)
        else:
            model = library.Lasso(alpha=theta[0] / n, **settings)

        def solve() -> Any:
            return model.fit(X, y).coef_

        return Contestant(solve, None, "solution only")

    return build


METHODS: Methods = {
    problem: {"celer, tol 1e-10": _estimator(problem, celer, 1e-10)}
    for problem in ("lasso", "elastic_net", "weighted_lasso")
}
for _problem in ("lasso", "elastic_net"):
    METHODS[_problem]["scikit-learn, tol 1e-10"] = _estimator(_problem, sklearn.linear_model, 1e-10)
