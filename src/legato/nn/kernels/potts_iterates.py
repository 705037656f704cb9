"""What every Potts kernel returns, and the shapes it agrees on."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from legato.errors import InputError


class PottsIterates(NamedTuple):
    """The last iterates of the Potts iteration, and the mean primal one.

    mirror: a, (B, L, *spatial), its maximum over the labels zero; dual: b, (B, L, E, *spatial);
    probabilities: u = softmax(a); mean: (1/N) Σ_{k=1..N} uᵏ, or None where it was not asked for.
    """

    mirror: Tensor
    dual: Tensor
    probabilities: Tensor
    mean: Tensor | None


def canonical_weights(weights: Tensor | None, cost: Tensor, directions: int) -> Tensor:
    """View the weights with all axes of (B, L, E, *spatial), broadcast ones kept at size one."""
    axes = cost.dim() + 1
    if weights is None:
        return cost.new_ones((1,) * axes)
    if weights.dim() == 0:
        return weights.reshape((1,) * axes)
    full = (cost.shape[0], cost.shape[1], directions, *cost.shape[2:])
    if weights.dim() != axes or any(
        w not in (1, f) for w, f in zip(weights.shape, full, strict=True)
    ):
        raise InputError(
            f"weights of shape {tuple(weights.shape)} do not broadcast to (batch, labels, "
            f"directions, *spatial) = {full}: give a scalar, or every axis at its size or one"
        )
    return weights
