"""Losses, data sets and small helpers for the tests of the upper level."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import Tensor

import legato as lg

F64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


class Counted:
    """A closure over a loss of one parameter that counts its calls."""

    def __init__(self, f: Callable[[Tensor], Tensor], start: Tensor) -> None:
        self.f = f
        self.x = start.clone().requires_grad_()
        self.calls = 0

    @property
    def point(self) -> Tensor:
        return self.x.detach().clone()

    def __call__(self) -> Tensor:
        self.calls += 1
        loss = self.f(self.x)
        loss.backward()
        return loss


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def least_squares(A: Tensor, b: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * ((A @ x - b) ** 2).sum()


class Split:
    """Half of a data set to train on and half to validate on, standardised by the first.

    Breast cancer's 30 features are nearly collinear; the 10 that pivoted QR picks first are not.
    With ``features`` the set is extended by random tanh features to that many.
    """

    def __init__(self, name: str, features: int | None = None) -> None:
        load = {"diabetes": load_diabetes, "breast cancer": load_breast_cancer}[name]
        X, y = load(return_X_y=True)
        X, y = (X - X.mean(0)) / X.std(0), y.astype(float)
        rng = np.random.default_rng(0)
        if features is not None:
            more = features - X.shape[1]
            W = rng.normal(size=(X.shape[1], more)) / math.sqrt(X.shape[1])
            X = np.hstack([X, np.tanh(X @ W + rng.normal(size=more))])
        elif X.shape[1] > 10:
            pivots = scipy.linalg.qr(X, pivoting=True)[2]
            X = X[:, pivots[:10]]
        order = np.random.default_rng(0).permutation(len(X))
        train, valid = order[: len(X) // 2], order[len(X) // 2 :]
        X = (X - X[train].mean(0)) / X[train].std(0)
        y = (y - y[train].mean()) / y[train].std()
        scale = math.sqrt(len(train))
        self.A, self.b = torch.tensor(X[train] / scale), torch.tensor(y[train] / scale)
        self.A_valid, self.b_valid = torch.tensor(X[valid]), torch.tensor(y[valid])
        self.operator = lg.Dense(self.A)
        self.largest = float((self.A.T @ self.b).abs().max())

    def validation(self, x: Tensor) -> Tensor:
        return ((self.A_valid @ x - self.b_valid) ** 2).mean()

    def loss(
        self, theta: Tensor, *, tol: float = 1e-10, inertia: object = 0.0, most: int = 20_000
    ) -> Callable[[object], Tensor]:
        """The validation loss of the lasso whose penalties are exp(theta)."""
        algorithm = lg.ForwardBackward(inertia=inertia)

        def loss(inner: object) -> Tensor:
            problem = lg.Composite(lg.LeastSquares(self.operator, self.b), lg.L1(theta.exp()))
            solution = inner.solve(
                problem,
                algorithm,
                gradient=lg.Implicit(lg.GMRES(tol=tol)),
                stop=lg.Stop(most, tol=tol),
            )
            return self.validation(solution.x)

        return loss
