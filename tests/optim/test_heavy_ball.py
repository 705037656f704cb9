"""Polyak's heavy ball: its formula, its rate, its prox."""

from __future__ import annotations

import math

import pytest
import torch

import legato as lg
from legato import optim
from legato.errors import InputError
from optim.data import Counted, least_squares, normal

A, b = normal(30, 20, seed=1), normal(30, seed=2)


def test_it_is_the_formula_with_a_prox():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    optimizer = optim.HeavyBall([closure.x], lr=0.01, momentum=0.7, prox=lg.Box(-0.2, 0.3))
    x = previous = torch.ones(20, dtype=torch.float64)
    for _ in range(100):
        optimizer.step(closure)
        half = x - 0.01 * A.T @ (A @ x - b) + 0.7 * (x - previous)
        x, previous = half.clamp(-0.2, 0.3), x
    assert float((closure.point - x).abs().max()) <= 1e-14


def test_it_works_without_a_closure():
    closure = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    other = Counted(least_squares(A, b), torch.ones(20, dtype=torch.float64))
    first, second = (optim.HeavyBall([c.x], 0.01, 0.7) for c in (closure, other))
    for _ in range(10):
        first.step(closure)
        second.zero_grad()
        other()
        second.step()
    assert torch.equal(closure.point, other.point)


def test_polyaks_constants_have_polyaks_rate():
    mu, L = 1.0, 100.0
    Q = torch.linspace(mu, L, 30, dtype=torch.float64)
    closure = Counted(lambda x: 0.5 * (Q * x * x).sum(), torch.ones(30, dtype=torch.float64))
    optimizer = optim.HeavyBall.polyak([closure.x], L, mu)
    (group,) = optimizer.param_groups
    assert group["lr"] == pytest.approx(4 / (10 + 1) ** 2)
    assert group["momentum"] == pytest.approx((9 / 11) ** 2)
    sizes = []
    for _ in range(200):
        optimizer.step(closure)
        sizes.append(float(closure.point.norm()))
    rate = (sizes[199] / sizes[99]) ** (1 / 100)
    best = (math.sqrt(L) - math.sqrt(mu)) / (math.sqrt(L) + math.sqrt(mu))
    assert best - 0.01 < rate < best + 0.02  # gradient descent has (L − μ)/(L + μ) = 0.98


def test_polyak_needs_its_constants():
    with pytest.raises(InputError):
        optim.HeavyBall.polyak([torch.zeros(1, requires_grad=True)], L=1.0, mu=2.0)
