"""The solution map to working precision: its curve, and what the closed forms are checked by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import legato as lg
from legato.studies.toy.example import Toy


@dataclass(frozen=True)
class Landscape:
    """x*(θ) and L(x*(θ)) on a grid, both from the solver."""

    theta: list[float]
    x: list[float]
    loss: list[float]


@dataclass(frozen=True)
class DerivativeCheck:
    """The largest distances to the closed form, relative to λ|b|g, the scale of the slopes."""

    points: int
    differences: float
    implicit: float


def solve_accurately(
    toy: Toy, theta: torch.Tensor, gradient: lg.GradientStrategy | None = None
) -> torch.Tensor:
    """x*(θ) for a vector of θ by projected gradient steps."""
    stop = lg.Stop(iterations=5000, tol=1e-15)
    plain = lg.ForwardBackward(inertia=0.0)
    return lg.solve(toy.problem(theta), plain, gradient=gradient, stop=stop).x


def landscape(toy: Toy, lo: float, hi: float, points: int) -> Landscape:
    """All θ of the grid, solved at once."""
    theta = torch.linspace(lo, hi, points, dtype=torch.float64)
    x = solve_accurately(toy, theta)
    return Landscape(theta.tolist(), x.tolist(), toy.loss(x).tolist())


def check_derivative(toy: Toy, seed: int, points: int = 25, h: float = 1e-6) -> DerivativeCheck:
    """Compare dL/dθ with (L(θ + h) − L(θ − h))/2h and with ``Implicit`` at random θ ∈ [−1, 2]."""
    generator = torch.Generator().manual_seed(seed)
    theta = 3 * torch.rand(points, generator=generator, dtype=torch.float64) - 1
    # At the kink there is nothing to compare: keep away from it.
    theta = torch.where(theta < 0, theta - 0.02, theta + 0.02).requires_grad_()
    exact = torch.tensor([toy.derivative(t) for t in theta.tolist()], dtype=torch.float64)
    with torch.no_grad():
        ahead, behind = (toy.loss(solve_accurately(toy, theta + shift)) for shift in (h, -h))
    # Each θ has its own solution: the sum's gradient is the gradient of each.
    x = solve_accurately(toy, theta, gradient=lg.Implicit(lg.GMRES(tol=1e-14)))
    (implicit,) = torch.autograd.grad(toy.loss(x).sum(), theta)

    def distance(found: torch.Tensor) -> float:
        return float((found - exact).abs().max()) / abs(toy.slope_at_kink())

    return DerivativeCheck(points, distance((ahead - behind) / (2 * h)), distance(implicit))
