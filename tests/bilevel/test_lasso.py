"""Tuning the lasso on real data: against a fine grid where there is one, else beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import lasso_path

import legato as lg
from legato import bilevel, optim
from optim.data import Split

DATA = ["diabetes", "breast cancer"]


def best_on_a_grid(split, penalties):
    """scikit-learn's coordinate descent on every penalty, and the best validation loss."""
    scale = math.sqrt(len(split.b))
    _, coefficients, _ = lasso_path(
        split.A.numpy() * scale,
        split.b.numpy() * scale,
        alphas=penalties,
        tol=1e-10,
        max_iter=100_000,
    )
    predicted = split.A_valid.numpy() @ coefficients
    losses = ((predicted - split.b_valid.numpy()[:, None]) ** 2).mean(0)
    best = losses.argmin()
    return float(losses[best]), float(penalties[best])


def tuned(split, theta, make, steps, **options):
    result = bilevel.fit(split.loss(theta, **options), theta, make, steps)
    return result.loss


@pytest.mark.parametrize("make", [optim.IPiano, optim.NonlinearCG, optim.ProximalGradient])
@pytest.mark.parametrize("name", DATA)
def test_one_penalty_is_the_best_of_a_fine_grid(name, make):
    split = Split(name)
    coarse = np.geomspace(split.largest, 1e-3 * split.largest, 200)
    _, near = best_on_a_grid(split, coarse)
    on_grid, _ = best_on_a_grid(split, np.geomspace(1.05 * near, near / 1.05, 2000))
    theta = torch.tensor([math.log(0.3 * split.largest)], dtype=torch.float64, requires_grad=True)
    steps = 15 if make is optim.NonlinearCG else 50
    loss = tuned(split, theta, make, steps, inertia=lg.Nesterov(restart=True))
    assert abs(loss - on_grid) <= 1e-6 * on_grid


@pytest.mark.parametrize("name", DATA)
def test_ten_penalties_are_better_than_one(name):
    split = Split(name)
    single, penalty = best_on_a_grid(split, np.geomspace(split.largest, 1e-3 * split.largest, 400))
    theta = torch.full((10,), math.log(penalty), dtype=torch.float64, requires_grad=True)
    loss = tuned(split, theta, optim.IPiano, 30, tol=1e-8, inertia=lg.Nesterov(restart=True))
    assert loss < 0.99 * single


@pytest.mark.parametrize("name", DATA)
def test_five_hundred_penalties_are_better_than_one(name):
    split = Split(name, features=500)
    single, penalty = best_on_a_grid(split, np.geomspace(split.largest, 1e-2 * split.largest, 60))
    theta = torch.full((500,), math.log(penalty), dtype=torch.float64, requires_grad=True)
    loss = tuned(split, theta, optim.IPiano, 8, tol=1e-7, inertia=lg.Nesterov(restart=True))
    again = float(
        split.loss(theta, tol=1e-8, inertia=lg.Nesterov(restart=True))(
            bilevel.InnerSolver()
        ).detach()
    )
    assert again == pytest.approx(loss, rel=1e-3)
    assert again < 0.97 * single
