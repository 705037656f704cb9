"""What every kernel of total variation returns, and what they agree on."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from legato.errors import InputError


class Coupling(NamedTuple):
    """Over which axes of (B, C, E, *spatial) the ℓ2 norm runs; the ℓ1 norm runs over the others."""

    directions: bool
    channels: bool


class TVIterates(NamedTuple):
    """The last iterates: u = y − ∇ᵀp (B, C, *spatial), p and the one before (B, C, E, *spatial)."""

    x: Tensor
    y: Tensor
    previous: Tensor


RESTART = 400
"""Iterations after which the momentum starts anew: else the derivatives swing on, and may grow."""


def momentum(iterations: int, first: int = 0) -> list[float]:
    """β_k = (t_k − 1)/t_{k+1} of FISTA with restarts, for k = first, …, first + iterations − 1."""
    t, betas = 1.0, []
    for _ in range(min(RESTART, first + iterations)):
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        betas.append((t - 1) / following)
        t = following
    return [betas[k % RESTART] for k in range(first, first + iterations)]


def step_size(axes: int) -> float:
    """1/L for L = ‖∇‖² ≤ 4·axes."""
    return 1 / (4 * axes)


def has_neighbour(image: Tensor) -> Tensor:
    """(E, *spatial): one where a pixel has a neighbour in that direction, else zero."""
    spatial = image.shape[2:]
    mask = image.new_ones((len(spatial), *spatial))
    for axis in range(len(spatial)):
        mask[axis].narrow(axis, spatial[axis] - 1, 1).zero_()
    return mask


def canonical_weight(weight: Tensor, image: Tensor, coupling: Coupling) -> Tensor:
    """View λ with all axes of (B, C, E, *spatial), broadcast ones kept at size one.

    It may come as a scalar, as one number per image (B,), with the axes of the image, or with all.
    """
    batch, channels, *spatial = image.shape
    axes = len(spatial)
    w = weight
    if w.dim() == 1 and w.shape[0] == batch:
        w = w.reshape(batch, *(1,) * (axes + 2))
    elif w.dim() == 0:
        w = w.reshape((1,) * (axes + 3))
    elif w.dim() == axes + 2:
        w = w.unsqueeze(2)
    # One λ per group: along the axes of the ℓ2 norm there is nothing to vary.
    full = (
        batch,
        1 if coupling.channels else channels,
        1 if coupling.directions else axes,
        *spatial,
    )
    if w.dim() != axes + 3 or any(s not in (1, f) for s, f in zip(w.shape, full, strict=True)):
        names = ("channels", "directions")
        both = (coupling.channels, coupling.directions)
        shared = [name for name, yes in zip(names, both, strict=True) if yes]
        why = f" (the ℓ2 norm over {' and '.join(shared)} takes one weight)" if shared else ""
        raise InputError(
            f"weight of shape {tuple(weight.shape)} does not broadcast to (batch, channels, "
            f"directions, *spatial) = {full}{why}: give a scalar, one number per image "
            f"({batch},), or every axis at its size or one, with or without the directions."
        )
    return w


def require_edges(dual: Tensor | None, image: Tensor) -> Tensor | None:
    """A start for p, zero where there is no pair of neighbours."""
    return None if dual is None else dual * has_neighbour(image)
