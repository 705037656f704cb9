"""The level at which a given amount lies above: what the simplex, ℓ1 balls and maxima share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato.functions.prox import simplex_threshold


class Level(NamedTuple):
    """τ with Σ max(y − τ, 0) = amount, as the entries above it, their mean and their number.

    τ = mean − amount/count, of which mean and amount carry derivatives. Where the amount is 0, the
    largest entries count as above: they are what moves first.
    """

    above: Tensor
    mean: Tensor
    number: Tensor


def level(y: Tensor, amount: Any, dim: int) -> Level:
    """The level of an amount ≥ 0 along an axis, which stays with size one."""
    with torch.no_grad():
        largest = y.amax(dim, keepdim=True)
        unit = torch.as_tensor(amount, dtype=y.dtype, device=y.device)
        unit = torch.where(unit > 0, unit, torch.ones_like(unit))
        threshold = simplex_threshold((y - largest) / unit, dim) * unit
        # Asked this way round, NaN is above.
        above = ~(y - largest <= threshold) | (y == largest)
        above = torch.where(torch.as_tensor(amount, device=y.device) > 0, above, y == largest)
        above = above | y.isnan()
        count = above.sum(dim, keepdim=True).clamp(min=1).to(y.dtype)
    # Around the largest, so that rounding does not see how far from 0 all are.
    total = torch.where(above, y - largest, torch.zeros_like(y)).sum(dim, keepdim=True)
    return Level(above, largest + total / count, count)
