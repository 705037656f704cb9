"""cvxpylayers: the problem in CVXPY, differentiated as a cone program."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import torch
from contract import Contestant, Data, Methods
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

from contestants.torch_side import contestant

SOLVERS: dict[str, dict[str, Any]] = {
    "default solver": {},
    "SCS, eps 1e-8": {"solve_method": "SCS", "eps": 1e-8, "max_iters": 20000},
    "default solver, eps 1e-8, lsmr": {"eps": 1e-8, "mode": "lsmr"},
    "Clarabel": {"solve_method": "Clarabel"},
}


def _lasso(problem: str, data: Data) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    X, y = data["X"], data["y"]
    w = cp.Variable(X.shape[1])
    fit = 0.5 * cp.sum_squares(X @ w - y)
    if problem == "weighted_lasso":
        weights = cp.Parameter(X.shape[1], nonneg=True)
        return cp.Problem(cp.Minimize(fit + weights @ cp.abs(w))), [weights], w
    weight = cp.Parameter(nonneg=True)
    energy, given = fit + weight * cp.norm1(w), [weight]
    if problem == "elastic_net":
        ridge = cp.Parameter(nonneg=True)
        energy, given = energy + ridge * 0.5 * cp.sum_squares(w), [weight, ridge]
    return cp.Problem(cp.Minimize(energy)), given, w


def _batched(problem: str, data: Data) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    n = data["x"].shape[-1]
    x = cp.Variable(n)
    inside = [x >= 0] if problem == "nnls" else [x >= 0, cp.sum(x) == 1]
    if problem == "simplex_projection":
        b = cp.Parameter(n)
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - b)), inside), [b], x
    A, b = cp.Parameter(data["A"].shape[1:]), cp.Parameter(data["A"].shape[1])
    return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(A @ x - b)), inside), [A, b], x


def _potts(data: Data) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    labels, height, width = data["cost"].shape
    weight, scale = cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
    u = cp.Variable((labels, height * width))
    total = 0
    for l in range(labels):
        plane = cp.reshape(u[l], (height, width), order="C")
        total += cp.norm1(plane[1:] - plane[:-1]) + cp.norm1(plane[:, 1:] - plane[:, :-1])
    cost = cp.sum(cp.multiply(data["cost"].reshape(labels, -1), u))
    energy = scale * cost + 0.5 * cp.sum_squares(u) + weight * total
    return (
        cp.Problem(cp.Minimize(energy), [u >= 0, cp.sum(u, axis=0) == 1]),
        [weight, scale],
        u,
    )


def _layer(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        if problem.startswith("potts"):
            program, given, x = _potts(data)
        elif "X" in data:
            program, given, x = _lasso(problem, data)
        else:
            program, given, x = _batched(problem, data)
        layer = CvxpyLayer(program, parameters=given, variables=[x])

        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            def solve(*parameters: Tensor) -> Tensor:
                if problem == "simplex_least_squares":
                    parameters = (t["A"], *parameters)
                elif problem in ("lasso", "elastic_net") or problem.startswith("potts"):
                    parameters = tuple(parameters[0].unbind())
                options = dict(settings)
                if not any(p.requires_grad for p in parameters):
                    options.pop("mode", None)  # a solve without a derivative does not take it
                (value,) = layer(*parameters, solver_args=options)
                return value

            return solve

        return contestant(problem, data, prepare)

    return build


METHODS: Methods = {
    problem: {name: _layer(problem, settings) for name, settings in SOLVERS.items()}
    for problem in (
        "lasso", "elastic_net", "weighted_lasso", "simplex_projection", "simplex_least_squares",
        "nnls", "potts64",
    )
}  # fmt: skip
torch.set_default_dtype(torch.float64)
