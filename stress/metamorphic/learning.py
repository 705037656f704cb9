"""Optimisers, fit and the estimators of legato.sklearn as subjects: nothing to differentiate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from torch import Tensor

import legato as lg
from legato import bilevel, optim
from metamorphic.subject import Inputs, Numbers, Subject

STEPS = 8


def _data(n: Numbers) -> Inputs:
    A = n.matrix(6, 4)
    return {"A": A, "b": A @ n.normal(4) + 0.1 * n.normal(6), "theta": n.normal(4)}


def _loss(t: Inputs, theta: Tensor) -> Tensor:
    """Convex, smooth, not quadratic."""
    rest = t["A"] @ theta - t["b"]
    return 0.5 * rest.square().sum() + 0.1 * torch.sqrt(1 + theta * theta).sum()


def descend(make: Callable[[list[Tensor]], Any], t: Inputs, steps: int = STEPS) -> Tensor:
    """Where an optimiser is after some steps."""
    theta = t["theta"].detach().clone().requires_grad_()
    optimizer = make([theta])

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = _loss(t, theta)
        value.backward()
        return value

    with torch.enable_grad():
        for _ in range(steps):
            optimizer.step(closure)
    return theta.detach()


def optimisers() -> dict[str, Callable[[list[Tensor]], Any]]:
    L1 = lg.L1(0.1)
    return {
        "HeavyBall": lambda p: optim.HeavyBall(p, 0.3, 0.5, prox=L1),
        "IPiano, ConstantStep": lambda p: optim.IPiano(p, optim.ConstantStep(0.3, 0.4), L1),
        "IPiano, SearchedStep": lambda p: optim.IPiano(p, optim.SearchedStep(), L1),
        "IPiano, VariableMomentum": lambda p: optim.IPiano(p, optim.VariableMomentum(), L1),
        "IPiano, NonConvexStep": lambda p: optim.IPiano(p, optim.NonConvexStep(), L1),
        "ProximalGradient": lambda p: optim.ProximalGradient(p, 0.4, prox=lg.NonNegative()),
        "ProximalGradient, searched": lambda p: optim.ProximalGradient(p),
        "NonlinearCG, PolakRibiere": lambda p: optim.NonlinearCG(p),
        "NonlinearCG, FletcherReeves": lambda p: optim.NonlinearCG(p, optim.FletcherReeves()),
        "NonlinearCG, HagerZhang": lambda p: optim.NonlinearCG(
            p, optim.HagerZhang(), optim.StrongWolfe()
        ),
    }


def optimiser_subjects() -> list[Subject]:
    # A search compares losses: a last digit may decide otherwise.
    return [
        Subject(
            name, "optimiser", _data,
            lambda t, make=make: make([t["theta"].clone().requires_grad_()]),
            lambda built, t, make=make: descend(make, t), differentiable=False,
            permuted={"A": (-1,), "theta": (-1,)}, rounding=1e-6, in_single=None,
        )
        for name, make in optimisers().items()
    ]  # fmt: skip


# --- fit ------------------------------------------------------------------------------------------


def _regression(n: Numbers) -> Inputs:
    return {name: t for name, t in _data(n).items() if name != "theta"}


def _learn(t: Inputs, **options: Any) -> tuple[Tensor, Tensor]:
    weight = torch.full((), -4.0, dtype=t["A"].dtype, requires_grad=True)
    make = options.pop("make", optim.IPiano)

    def loss(inner: bilevel.InnerSolver) -> Tensor:
        energy = lg.LeastSquares(t["A"][:4], t["b"][:4]) + lg.L1(weight.exp())
        stop = lg.Stop(400, tol=1e-10)
        x = inner.solve(energy, gradient=lg.Implicit(lg.GMRES(tol=1e-10)), stop=stop).x
        return (t["A"][4:] @ x - t["b"][4:]).square().sum()

    with torch.enable_grad():
        found = lg.fit(loss, [weight], make, 5, **options)
    return weight.detach(), torch.tensor(found.history.loss, dtype=t["A"].dtype)


def fit_subjects() -> list[Subject]:
    adam = functools.partial(torch.optim.Adam, lr=0.05)
    options: dict[str, dict[str, Any]] = {
        "IPiano": {},
        "Adam": {"make": adam},
        "HOAG": {"inexact": bilevel.HOAG()},
        "MAID": {"inexact": bilevel.MAID()},
        "Until": {"until": bilevel.Until(change=1e-3)},
    }
    return [
        Subject(
            name, "fit", _regression, lambda t, more=more: tuple(more.values()),
            lambda built, t, more=more: _learn(t, **more), differentiable=False,
            covers=("fit", "InnerSolver", "History", "Record", "Fit"), rounding=1e-5,
            in_single=None,
        )
        for name, more in options.items()
    ]  # fmt: skip


# --- estimators -----------------------------------------------------------------------------------


def _table(n: Numbers) -> Inputs:
    X = n.normal(24, 4)
    y = X @ torch.tensor([1.0, -0.5, 0.0, 0.0], dtype=torch.float64) + 0.3 * n.normal(24)
    return {"X": X, "y": y}


def _estimate(estimator: Any, t: Inputs) -> tuple[Tensor, ...]:
    X, y = t["X"].detach().numpy(), t["y"].detach().numpy()
    if isinstance(estimator, ClassifierMixin):
        y = np.where(y > np.median(y), 1, 0)
    fitted = estimator.fit(X, y)
    coefficients = torch.as_tensor(np.asarray(fitted.coef_)).reshape(-1)
    return coefficients, torch.as_tensor(np.asarray(fitted.intercept_)).reshape(-1)


def estimator_subjects() -> list[Subject]:
    from legato import sklearn as sk

    options: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "LassoBilevel": (lambda: sk.LassoBilevel(cv=3), {}),
        "ElasticNetBilevel": (lambda: sk.ElasticNetBilevel(cv=3), {}),
        "RidgeBilevel": (lambda: sk.RidgeBilevel(cv=3), {}),
        "GroupLassoBilevel": (
            lambda: sk.GroupLassoBilevel(groups=np.array([0, 0, 1, 1]), cv=3), {}
        ),
        "LogisticBilevel": (lambda: sk.LogisticBilevel(cv=3), {}),
    }  # fmt: skip
    return [
        Subject(
            name, "estimator", _table, lambda t, make=make: make(), _estimate,
            differentiable=False, covers=("OuterPath",), rounding=1e-5, in_single=None,
            permuted={"X": (-1,)} if name != "GroupLassoBilevel" else {},
            # One α before |w| and w² ties both to the units of y, as in scikit-learn.
            homogeneous=("y",) if "Lasso" in name or "Ridge" in name else (), **more,
        )
        for name, (make, more) in options.items()
    ]  # fmt: skip


def learning_subjects() -> list[Subject]:
    return [*optimiser_subjects(), *fit_subjects(), *estimator_subjects()]
