"""One λ for total variation: learned by hypergradient, and searched for on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.console.files import DataError
from legato.errors import DivergenceError
from legato.nn import TotalVariation
from legato.studies.denoise.image_sets import noisy

_COARSE, _FINE = 1.25, 1.002
"""Ratios between neighbours on the two grids: one finds the valley, the other its bottom."""


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
        found = self.solver(self.noisy, log_weight.exp()).x
        error = (found.double() - self.clean.double()).square().mean((1, 2, 3))
        return 10 * error.log10().mean()


def centres(images: Sequence[Tensor], size: int) -> Tensor:
    """The middles of images as a batch, (B, 1, size, size)."""
    batch = []
    for image in images:
        height, width = image.shape
        if min(height, width) < size:
            raise DataError(f"An image of {height}×{width} pixels is smaller than {size}×{size}.")
        top, left = (height - size) // 2, (width - size) // 2
        batch.append(image[top : top + size, left : left + size])
    return torch.stack(batch)[:, None]


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

    def descend(at: float, step: float) -> float:
        """Walk down until both neighbours are higher; losses of neighbours are all computed."""

        def value(place: float) -> float:
            if place not in seen:
                seen[place] = loss.value(place)
            return seen[place]

        while True:
            best = min((at - step, at, at + step), key=value)
            if best == at:
                return at
            at = best

    at = math.log(start)
    for ratio in (_COARSE, 1.05, 1.01, _FINE):
        at = descend(at, math.log(ratio))
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
    side = 0
    while abs(b - a) > tol:
        middle = (a * fb - b * fa) / (fb - fa)
        f = function(middle)
        if abs(f) < 1e-12:
            return middle
        if f * fb > 0:
            if abs(middle - b) < tol:
                return middle
            b, fb = middle, f
            fa = fa / 2 if side == -1 else fa
            side = -1
        else:
            if abs(middle - a) < tol:
                return middle
            a, fa = middle, f
            fb = fb / 2 if side == 1 else fb
            side = 1
    return (a + b) / 2
