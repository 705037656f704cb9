"""The introduction's example of a solution that is not unique, min over [0, 1] of θx."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import legato as lg

START = 0.5
STEP = 1.0


@dataclass(frozen=True)
class StepCurve:
    """xⁿ(θ), the loss (xⁿ − 1)² and its derivative on a grid of θ."""

    iterations: int
    theta: list[float]
    x: list[float]
    loss: list[float]
    slope: list[float]


def entropic_steps(theta: Tensor, iterations: int, step: float = STEP) -> Tensor:
    r"""n entropic steps on [0, 1] from ½, for every θ at once.

    .. math:: \min_{x ∈ [0,1]} θx

    The interval is the simplex of (x, 1 − x), and xⁿ = x⁰/(x⁰ + (1 − x⁰)e^{nαθ}), which minimises
    θx + KL(x, x⁰)/(nα): more iterations are less smoothing. Reference: Section 1 of Ochs et al.
    (2016).
    """
    cost = torch.stack([theta, torch.zeros_like(theta)], dim=-1)
    start = torch.tensor([START, 1 - START], dtype=theta.dtype).expand_as(cost)
    algorithm = lg.ForwardBackward(step_size=step, geometry=lg.Entropy())
    problem = lg.Composite(lg.Linear(cost), lg.Simplex())
    return lg.solve(problem, algorithm, start, stop=lg.Stop(iterations)).x[..., 0]


def step_curve(iterations: int, half_width: float, points: int) -> StepCurve:
    """What an optimiser of θ sees through n steps."""
    theta = torch.linspace(-half_width, half_width, points, dtype=torch.float64)
    theta.requires_grad_()
    x = entropic_steps(theta, iterations)
    loss = (x - 1).square()
    (slope,) = torch.autograd.grad(loss.sum(), theta)
    theta, x, loss = theta.detach(), x.detach(), loss.detach()
    return StepCurve(iterations, theta.tolist(), x.tolist(), loss.tolist(), slope.tolist())
