"""Smoothing beside the other gradients where entries are coupled: total variation and Potts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato.errors import LegatoWarning
from legato.studies.toy.methods import FORWARD

__all__ = ["COUPLED", "Coupled", "CoupledRow", "compare_coupled"]

SMOOTHINGS = (0.1, 0.01, 0.001)
"""μ of the smoothed problems."""


@dataclass(frozen=True)
class Coupled:
    """An energy of one parameter, what solves it, and the derivative of Σ x² by hand."""

    name: str
    energy: Callable[[Tensor], lg.Function]
    at: float
    geometry: lg.Geometry
    exact: float


@dataclass(frozen=True)
class CoupledRow:
    """A gradient by one method, and its distance from the exact one relative to that."""

    problem: str
    method: str
    gradient: float
    error: float


def _variation(weight: Tensor) -> lg.Function:
    data = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return lg.SquaredDistance(data) + lg.L1(weight) @ lg.Differences((-1,))


def _potts(weight: Tensor) -> lg.Function:
    """Two pixels of two labels (the axes, label first), with the entropy that makes it unique."""
    cost = torch.tensor([[-0.5, 0.4], [0.0, 0.0]], dtype=torch.float64)
    pixels = lg.Linear(cost) + lg.Simplex(dim=-2) + lg.NegativeEntropy(0.2)
    return pixels + lg.L1(weight) @ lg.Differences((-1,))


def _slope_of_variation(weight: float) -> float:
    r"""Of Σ x² with x = (λ, 1 − λ)."""
    return 2 * weight - 2 * (1 - weight)


def _slope_of_potts(weight: float, epsilon: float = 0.2) -> float:
    r"""Of Σ u² with u₁ = s((½ − 2w)/ε) and u₂ = s((−⅖ + 2w)/ε) for the first label.

    Here s(t) = 1/(1 + e⁻ᵗ). Both labels of an edge change by as much; pixels stay apart, u₁ > u₂.
    """
    total = 0.0
    for cost, sign in ((-0.5, -1), (0.4, 1)):
        u = 1 / (1 + math.exp((cost - 2 * sign * weight) / epsilon))
        total += (4 * u - 2) * u * (1 - u) * 2 * sign / epsilon  # u² + (1 − u)²
    return total


COUPLED = (
    Coupled("total variation", _variation, 0.3, lg.Euclidean(), _slope_of_variation(0.3)),
    Coupled("Potts", _potts, 0.1, lg.Entropy(), _slope_of_potts(0.1)),
)


def _methods(problem: Coupled) -> dict[str, tuple[float | None, lg.GradientStrategy]]:
    """μ of the smoothing, None without, and the gradient."""
    curved = isinstance(problem.geometry, lg.Entropy)
    solver: lg.GMRES | lg.CG = lg.GMRES(tol=1e-12) if curved else lg.CG(tol=1e-12)
    return {
        **{f"Smoothed-impl, μ = {mu:g}": (mu, lg.Implicit(solver)) for mu in SMOOTHINGS},
        "Unroll()": (None, lg.Unroll()),
        "Implicit(GMRES())": (None, lg.Implicit(lg.GMRES(tol=1e-12))),
        "Piggyback()": (None, lg.Piggyback(tol=1e-12)),
    }


def compare_coupled(iterations: int = FORWARD) -> list[CoupledRow]:
    """d/dw Σ x² by every method after as many iterations, on both problems.

    Reference: Section 4.1 and Remark 4 of Ochs et al. (2016).
    """
    return [
        _row(problem, name, mu, strategy, iterations)
        for problem in COUPLED
        for name, (mu, strategy) in _methods(problem).items()
    ]


def _row(
    problem: Coupled, name: str, mu: float | None, strategy: lg.GradientStrategy, iterations: int
) -> CoupledRow:
    weight = torch.tensor(problem.at, dtype=torch.float64, requires_grad=True)
    energy = problem.energy(weight)
    algorithm: lg.Algorithm[Any, Any] = lg.PrimalDual(geometry=problem.geometry)
    if mu is not None:
        energy, algorithm = lg.smoothed(energy, mu), lg.ForwardBackward(None, problem.geometry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegatoWarning)  # errors are what is studied
        x = lg.solve(energy, algorithm, gradient=strategy, stop=lg.Stop(iterations)).x
        (slope,) = torch.autograd.grad(x.square().sum(), weight)
    found = float(slope)
    error = abs(found - problem.exact) / abs(problem.exact)
    return CoupledRow(problem.name, name, found, error)
