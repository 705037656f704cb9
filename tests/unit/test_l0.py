"""The ℓ0 penalty: its prox against brute force, and what it is good for."""

from __future__ import annotations

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import InputError
from optim.data import Counted, least_squares, normal


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_hard_threshold_minimises(alpha):
    g = lg.functions.L0(torch.tensor([0.5, 1.0, 0.0, 2.0], dtype=torch.float64))
    for seed in range(5):
        y = 2 * normal(4, seed=seed)
        x = lg.prox(g, lg.Euclidean(), y, alpha)

        def energy(z, y=y):
            return alpha * float(g.value(z)) + 0.5 * float(((z - y) ** 2).sum())

        masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
        assert energy(x) <= min(energy(y * mask) for mask in masks) + 1e-14


def test_it_finds_a_sparse_vector():
    A = normal(60, 20, seed=1)
    truth = torch.zeros(20, dtype=torch.float64)
    truth[[2, 7, 11]] = torch.tensor([3.0, -2.0, 4.0], dtype=torch.float64)
    closure = Counted(least_squares(A, A @ truth), torch.zeros(20, dtype=torch.float64))
    optimizer = optim.IPiano([closure.x], optim.NonConvexStep(), prox=lg.functions.L0(5.0))
    for _ in range(300):
        optimizer.step(closure)
    assert torch.allclose(closure.point, truth, atol=1e-8)


def test_negative_weights_are_refused():
    with pytest.raises(InputError):
        lg.functions.L0(-1.0)


def test_nan_stays():
    x = torch.tensor([0.0, float("nan")]).double()
    assert bool(lg.functions.L0(1.0)(x).isnan())
    assert lg.functions.L0(1.0).prox(x).isnan().tolist() == [False, True]
