"""torchopt: solvers written by the user, differentiated through custom_root."""

from __future__ import annotations

from typing import Any

import torch
import torchopt
from contract import Contestant, Data, Methods
from torch import Tensor
from torchopt.diff.implicit import custom_root

from contestants.torch_side import contestant

TIGHT = {"rtol": 1e-10, "atol": 0.0, "maxiter": 2000}


def _fista(data: dict[str, Tensor], problem: str, iterations: int, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    """Accelerated proximal gradient by hand; optimality is that of its step."""
    X, y = data["X"], data["y"]
    alpha = 1 / (torch.linalg.matrix_norm(X, 2) ** 2 + 1)

    def step(w: Tensor, theta: Tensor) -> Tensor:
        ridge = theta[1] if problem == "elastic_net" else 0.0
        weight = theta if problem == "weighted_lasso" else theta[0]
        half = w - alpha * (X.T @ (X @ w - y) + ridge * w)
        return half.sign() * torch.relu(half.abs() - alpha * weight)

    def optimality(w: Tensor, theta: Tensor) -> Tensor:
        return step(w, theta) - w

    solver = torchopt.linear_solve.solve_normal_cg(**settings)

    @custom_root(optimality, argnums=1, solve=solver)  # type: ignore[untyped-decorator]
    def solve(w: Tensor, theta: Tensor) -> Tensor:
        ahead, t = w, 1.0
        for _ in range(iterations):
            new = step(ahead, theta)
            later = (1 + (1 + 4 * t * t) ** 0.5) / 2
            ahead, w, t = new + (t - 1) / later * (new - w), new, later
        return w

    return solve


def _lbfgs(data: dict[str, Tensor], problem: str, iterations: int, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    """torch's L-BFGS; optimality is a vanishing gradient."""
    X, y = data["X"], data["y"]

    def energy(w: Tensor, theta: Tensor) -> Tensor:
        if problem == "ridge":
            fit = 0.5 * (X @ w - y).square().sum()
        else:
            fit = torch.nn.functional.softplus(-y * (X @ w)).sum()
        return fit + 0.5 * (theta * w * w).sum()

    solver = torchopt.linear_solve.solve_normal_cg(**settings)

    @custom_root(torch.func.grad(energy), argnums=1, solve=solver)  # type: ignore[untyped-decorator]
    def solve(w: Tensor, theta: Tensor) -> Tensor:
        w = w.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [w], max_iter=iterations, tolerance_grad=1e-10, tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                value = energy(w, theta.detach())
                value.backward()
            return value

        optimizer.step(closure)
        return w.detach()

    return solve


def _root(maker: Any, problem: str, iterations: int, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            solve = maker(t, problem, iterations, settings)
            start = torch.zeros(t["X"].shape[1], dtype=torch.float64)
            return lambda theta: solve(start, theta)

        return contestant(problem, data, prepare)

    return build


METHODS: Methods = {
    problem: {
        "custom_root, FISTA 1000, default": _root(_fista, problem, 1000, {}),
        "custom_root, FISTA 1000, CG 1e-10": _root(_fista, problem, 1000, TIGHT),
    }
    for problem in ("lasso", "elastic_net", "weighted_lasso")
} | {
    problem: {
        "custom_root, L-BFGS, default": _root(_lbfgs, problem, 200, {}),
        "custom_root, L-BFGS, CG 1e-10": _root(_lbfgs, problem, 200, TIGHT),
    }
    for problem in ("ridge", "logistic")
}
