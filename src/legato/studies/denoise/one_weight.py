"""One λ for total variation: learned by hypergradient, and searched for on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import DivergenceError
from legato.nn import TotalVariation
from legato.studies.denoise.images import noisy

_GRID_RATIOS = (1.25, 1.05, 1.01, 1.002)
"""Ratios between neighbours on the grids: the first finds the valley, the last its bottom."""


@dataclass(frozen=True)
class Course:
    """What a search looked at: λ, and there the loss and perhaps its derivative in log λ."""

    weight: float
    weights: list[float]
    losses: list[float]
    slopes: list[float]


class TotalVariationLoss:
    r"""The mean over a batch of images of their log MSE, which is −PSNR, as a function of log λ.

    .. math:: L(\log λ) = \operatorname{mean}_i\; 10\log_{10}\tfrac1n‖u_i(λ) − x_i‖²
    """

    def __init__(self, clean: Tensor, sigma: float, solver: TotalVariation) -> None:
        self.solver, self.clean = solver, clean
        self.noisy = noisy(clean, sigma, number=0)

    def value(self, log_weight: float) -> float:
        with torch.no_grad():
            return float(self._at(self.clean.new_tensor(log_weight)))

    def slope(self, log_weight: float) -> tuple[float, float]:
        """Loss and hypergradient."""
        point = self.clean.new_tensor(log_weight).requires_grad_()
        loss = self._at(point)
        (slope,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), float(slope)

    def _at(self, log_weight: Tensor) -> Tensor:
        found = self.solver(self.noisy, log_weight.exp())
        error = (found.double() - self.clean.double()).square().mean((1, 2, 3))
        return 10 * error.log10().mean()


def learn_weight(loss: TotalVariationLoss, start: float, tol: float = 1e-4) -> Course:
    """The root of the hypergradient in log λ, by the secant method kept inside a bracket."""
    weights: list[float] = []
    losses: list[float] = []
    slopes: list[float] = []

    def slope(at: float) -> float:
        value, derivative = loss.slope(at)
        if not math.isfinite(derivative):
            raise DivergenceError(f"The hypergradient at λ = {math.exp(at):g} is {derivative}.")
        weights.append(math.exp(at))
        losses.append(value)
        slopes.append(derivative)
        return derivative

    root = _root(slope, math.log(start), tol)
    return Course(math.exp(root), weights, losses, slopes)


def search_weight(loss: TotalVariationLoss, start: float) -> Course:
    """The best λ of a grid whose neighbours are 0.2 % apart; no derivative is used."""
    seen: dict[float, float] = {}

    def value(place: float) -> float:
        if place not in seen:
            seen[place] = loss.value(place)
        return seen[place]

    at = math.log(start)
    for ratio in _GRID_RATIOS:
        step = math.log(ratio)
        while (best := min((at - step, at, at + step), key=value)) != at:
            at = best
    order = sorted(seen)
    return Course(math.exp(at), [math.exp(p) for p in order], [seen[p] for p in order], [])


def _root(function: Callable[[float], float], start: float, tol: float) -> float:
    """A root of an increasing function: bracket by doubling steps, then regula falsi (Illinois)."""
    a, fa = start, function(start)
    step = -math.copysign(0.25, fa)
    b, fb = a + step, function(a + step)
    while fa * fb > 0:
        if abs(step) > 8:
            raise DivergenceError("The hypergradient does not change its sign: no best λ is found.")
        step *= 2
        a, fa = b, fb
        b, fb = a + step, function(a + step)
    last_moved = None
    while abs(b - a) > tol:
        middle = (a * fb - b * fa) / (fb - fa)
        f = function(middle)
        if abs(f) < 1e-12 or abs(middle - (b if f * fb > 0 else a)) < tol:
            return middle
        # An end that stays twice pulls too hard on the secant: its value is halved (Illinois).
        if f * fb > 0:
            b, fb = middle, f
            fa = fa / 2 if last_moved == "b" else fa
            last_moved = "b"
        else:
            a, fa = middle, f
            fb = fb / 2 if last_moved == "a" else fb
            last_moved = "a"
    return (a + b) / 2
