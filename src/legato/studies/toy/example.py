"""The bilevel problem of the toy example, and the two sets of values it is studied with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import legato as lg

__all__ = ["SETS", "Toy"]

KINK = 0.0
"""The θ at which the solution map is not differentiable."""

SMOOTH = 0.3
"""The θ of the paper's figures at which it is."""


@dataclass(frozen=True)
class Toy:
    r"""Learning θ of a one-dimensional non-negative least-squares problem.

    .. math:: \min_θ \tfrac12 (x^*(θ) − g)^2, \quad
              x^*(θ) = \arg\min_{x ≥ 0} \tfrac{λ}{2}(θx − b)^2 + \tfrac12 x^2, \quad g = x^*(θ^*)

    ``projected_steps`` gives Proj.GD's step for each θ of the figures. Reference: Section 7 of
    Ochs et al. (2016); the values are not printed there.
    """

    name: str
    lam: float
    b: float
    theta_star: float
    x0: float
    mu: float
    projected_steps: Mapping[float, float]
    bregman_step: float

    def problem(self, theta: Tensor) -> lg.Composite:
        """The lower level; a vector of θ makes as many independent problems, solved as one."""
        data = lg.LeastSquares(lg.Diagonal(theta), torch.full_like(theta, self.b), self.lam)
        return lg.Composite(data + lg.SquaredNorm(), lg.NonNegative())

    def loss(self, x: Tensor) -> Tensor:
        """½(x − g)², one for each entry of x."""
        return 0.5 * (x - self.solution(self.theta_star)).square()

    # What is known in closed form, to measure the methods by:

    def solution(self, theta: float) -> float:
        """x*(θ) = max(0, λθb/(1 + λθ²))."""
        return max(0.0, self.lam * theta * self.b / (1 + self.lam * theta**2))

    def derivative(self, theta: float) -> float:
        """dL/dθ = λb(1 − λθ²)/(1 + λθ²)² (x*(θ) − g), and 0 where θb < 0 (errata 10)."""
        if theta == KINK:
            raise ValueError("There is no derivative at the kink: ask for clarke().")
        if theta * self.b < 0:
            return 0.0
        q = self.lam * theta**2
        residual = self.solution(theta) - self.solution(self.theta_star)
        return self.lam * self.b * (1 - q) / (1 + q) ** 2 * residual

    def clarke(self) -> tuple[float, float]:
        """Ends of conv{0, λb(x*(0) − g)}, the Clarke subdifferential at θ = 0 (errata 11)."""
        slope = self.slope_at_kink()
        return min(0.0, slope), max(0.0, slope)

    def slope_at_kink(self) -> float:
        """λb(x*(0) − g): the one-sided derivative at θ = 0 on the side where x* moves."""
        residual = self.solution(KINK) - self.solution(self.theta_star)
        return self.lam * self.b * residual

    def twin(self) -> float:
        """1/(λθ*), which gives the same solution as θ*: the example is not identifiable."""
        return 1 / (self.lam * self.theta_star)


SETS = {
    toy.name: toy
    for toy in (
        Toy("A", 1.0, 1.0, 1.0, 1.0, 0.01, {SMOOTH: 0.35, KINK: 1.0}, bregman_step=1.4),
        Toy("B", 5.0, 2.0, 0.5, 0.5, 0.05, {SMOOTH: 1.0, KINK: 1.0}, bregman_step=0.2),
    )
}
"""Both sets show what the paper describes; A is gentle, B moves fast and far."""
