"""Curves of the figures: loss and solution over θ, energies over iterations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import legato as lg
from legato.studies.toy.example import Toy
from legato.studies.toy.methods import FORWARD, METHODS


@dataclass(frozen=True)
class Landscape:
    """x*(θ) and L(x*(θ)) on a grid, both from the solver."""

    theta: list[float]
    x: list[float]
    loss: list[float]


def landscape(toy: Toy, lo: float, hi: float, points: int) -> Landscape:
    """All θ of the grid solved at once, to working precision."""
    theta = torch.linspace(lo, hi, points, dtype=torch.float64)
    x = solve_accurately(toy, theta)
    return Landscape(theta.tolist(), x.tolist(), toy.loss(x).tolist())


def solve_accurately(
    toy: Toy, theta: torch.Tensor, gradient: lg.GradientStrategy | None = None
) -> torch.Tensor:
    """x*(θ) for a vector of θ by projected gradient steps."""
    stop = lg.Stop(iterations=5000, tol=1e-15)
    return lg.solve(toy.problem(theta), lg.ForwardBackward(), gradient=gradient, stop=stop).x


def energies(toy: Toy, method: str, theta: float, iterations: int = FORWARD) -> list[float]:
    """E(xⁿ, θ) − min E for n = 1, …, N, in the energy that is not smoothed."""
    chosen = METHODS[method]
    parameter = torch.tensor([theta], dtype=torch.float64)
    problem, algorithm = chosen.problem(toy, parameter), chosen.algorithm(toy, theta)
    energy = toy.problem(parameter).objective
    least = energy(torch.tensor([toy.solution(theta)], dtype=torch.float64))
    point: torch.Tensor | tuple[object, ...] = torch.tensor([toy.x0], dtype=torch.float64)
    gaps = []
    with torch.no_grad():
        for _ in range(iterations):
            solution = lg.solve(problem, algorithm, point, stop=lg.Stop(1))
            point = solution.state  # continues where the last iteration ended
            gaps.append(float(energy(solution.x) - least))
    return gaps
