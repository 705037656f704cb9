"""The closed-form derivative against differences and against the library, at random θ."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import legato as lg
from legato.studies.toy.curves import solve_accurately
from legato.studies.toy.example import Toy


@dataclass(frozen=True)
class DerivativeCheck:
    """The largest distances to the closed form, relative to λ|b|g, the scale of the slopes."""

    points: int
    differences: float
    implicit: float


def check_derivative(toy: Toy, seed: int, points: int = 25, h: float = 1e-6) -> DerivativeCheck:
    """Compare dL/dθ with (L(θ + h) − L(θ − h))/2h and with ``Implicit`` at θ ∈ [−1, 2]."""
    generator = torch.Generator().manual_seed(seed)
    theta = 3 * torch.rand(points, generator=generator, dtype=torch.float64) - 1
    # At the kink there is nothing to compare: keep away from it.
    theta = torch.where(theta < 0, theta - 0.02, theta + 0.02).requires_grad_()
    exact = torch.tensor([toy.derivative(t) for t in theta.tolist()], dtype=torch.float64)
    with torch.no_grad():
        ends = [toy.loss(solve_accurately(toy, theta + shift)) for shift in (h, -h)]
        differences = (ends[0] - ends[1]) / (2 * h)
    # Each θ has its own solution: the sum's gradient is the gradient of each.
    x = solve_accurately(toy, theta, gradient=lg.Implicit(lg.GMRES(tol=1e-14)))
    (implicit,) = torch.autograd.grad(toy.loss(x).sum(), theta)
    scale = abs(toy.slope_at_kink())
    return DerivativeCheck(
        points,
        float((differences - exact).abs().max()) / scale,
        float((implicit - exact).abs().max()) / scale,
    )
