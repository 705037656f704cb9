"""What the Potts layer solves, and the form in which every kernel takes and returns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from legato.errors import InputError
from legato.functions import L1, Linear, NegativeEntropy, Simplex
from legato.nn.fused.operator import FusedKernel, Tensors
from legato.nn.neighbourhood import Neighbours, Offset, offsets
from legato.operators import Differences
from legato.problems import Saddle


def model(cost: Tensor, weights: Tensor, directions: Sequence[Offset], epsilon: float) -> Saddle:
    """⟨c, u⟩ + ‖W∇u‖₁ (+ ε Σ u log u) over the pixelwise simplex, whose dual has |p| ≤ 1."""
    term = Simplex(dim=1 - cost.ndim) + Linear(cost)
    if epsilon > 0:
        term = term + NegativeEntropy(epsilon)
    operator = Differences(offsets=tuple(directions), weights=weights)
    return Saddle(operator, L1(), nonsmooth=term)


class PottsSettings(NamedTuple):
    """The part of a solve that is not a tensor; `checkpoint` is zero where the tape is kept."""

    iterations: int
    directions: tuple[Offset, ...]
    average: bool = False
    checkpoint: int = 0
    epsilon: float = 0.0


class PottsKernel(FusedKernel[PottsSettings]):
    """What the Potts kernels of all devices share."""

    settings = PottsSettings
    outputs = 4

    def packed(self, settings: PottsSettings) -> tuple[list[int], list[float]]:
        iterations, directions, average, checkpoint, epsilon = settings
        steps = [step for offset in directions for step in offset]
        return [iterations, int(average), checkpoint, len(directions), *steps], [epsilon]

    def unpacked(self, sizes: Sequence[int], numbers: Sequence[float]) -> PottsSettings:
        iterations, average, checkpoint, count, *steps = sizes
        axes = len(steps) // count
        directions = tuple(tuple(steps[i : i + axes]) for i in range(0, len(steps), axes))
        return PottsSettings(iterations, directions, bool(average), checkpoint, *numbers)


class PottsIterates(NamedTuple):
    """The last iterates of the Potts iteration, and the mean primal one.

    mirror: a, (B, L, *spatial), its maximum over the labels zero; dual: b, (B, L, E, *spatial);
    probabilities: u = softmax(a); mean: (1/N) Σ_{k=1..N} uᵏ, or None where it was not asked for.
    """

    mirror: Tensor
    dual: Tensor
    probabilities: Tensor
    mean: Tensor | None


PottsFunction = Callable[..., PottsIterates]
"""What :func:`potts_function` returns."""


def potts_function(solve: Callable[[Tensors, PottsSettings], Tensors]) -> PottsFunction:
    """The function that every kernel offers, from one of (c, w, τ, σ, a⁰, b⁰) and settings."""

    def potts(
        cost: Tensor,
        weights: Tensor | None,
        tau: Tensor,
        sigma: Tensor,
        *,
        iterations: int,
        epsilon: float = 0.0,
        neighbours: Neighbours = 4,
        mirror: Tensor | None = None,
        dual: Tensor | None = None,
        average: bool = False,
        checkpoint: int | None = None,
    ) -> PottsIterates:
        directions = offsets(cost.dim() - 2, neighbours)
        settings = PottsSettings(iterations, directions, average, checkpoint or 0, float(epsilon))
        w = canonical_weights(weights, cost, len(directions))
        a, b, u, mean = solve((cost, w, tau, sigma, mirror, dual), settings)
        return PottsIterates(a, b, u, mean if average else None)

    return potts


def dual_shape(cost: Tensor, directions: int) -> tuple[int, ...]:
    """(B, L, E, *spatial)."""
    return (*cost.shape[:2], directions, *cost.shape[2:])


def canonical_weights(weights: Tensor | None, cost: Tensor, directions: int) -> Tensor:
    """View the weights with all axes of (B, L, E, *spatial), broadcast ones kept at size one."""
    axes = cost.dim() + 1
    if weights is None:
        return cost.new_ones((1,) * axes)
    if weights.dim() == 0:
        return weights.reshape((1,) * axes)
    full = dual_shape(cost, directions)
    if weights.dim() != axes or any(
        w not in (1, f) for w, f in zip(weights.shape, full, strict=True)
    ):
        raise InputError(
            f"weights of shape {tuple(weights.shape)} do not broadcast to (batch, labels, "
            f"directions, *spatial) = {full}: give a scalar, or every axis at its size or one."
        )
    return weights
