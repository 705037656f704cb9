"""The cone of increasing sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.base import indicator
from legato.functions.pooling import pooled
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class Monotone(AlongAxis, Indicator):
    r"""The indicator of x₁ ≤ x₂ ≤ … ≤ x_n along ``dim``; the prox is isotonic regression.

    .. math:: \mathrm{prox}(y)_i = \max_{j ≤ i} \min_{k ≥ i} \mathrm{mean}(y_j, …, y_k)

    The derivative averages over blocks of one value. At ties, where neighbours just have one value,
    it is that of separate blocks. Its conjugate is the indicator of sequences whose sum is 0 and
    whose sums from any entry to the last are at most 0.
    Reference: Barlow, Bartholomew, Bremner, Brunk (1972).

    >>> lg.Monotone().prox(torch.tensor([1.0, 3.0, 2.0, 4.0]))
    tensor([1.0000, 2.5000, 2.5000, 4.0000])
    """

    dim: int = -1

    def violation(self, x: Var) -> Tensor:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        falls = x.narrow(self.dim, 0, x.shape[self.dim] - 1) - x.narrow(
            self.dim, 1, x.shape[self.dim] - 1
        )
        return torch.cat([falls, 0 * x.narrow(self.dim, 0, 1)], self.dim)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        """How far the values of neighbouring blocks are apart."""
        y = y.movedim(self.dim, -1)
        blocks = pooled(y)
        rise = blocks.means(y).diff()
        # Inside a block the kink is where a cut would have equal means on both sides.
        within = _cut_gaps(y, blocks.sizes(y), blocks.means(y))
        away = torch.where(blocks.starts[..., 1:], rise, within).abs()
        return away.movedim(-1, self.dim)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        y = y.movedim(self.dim, -1)
        suffix = y.flip(-1).cumsum(-1)
        total = suffix[..., -1:].abs()
        return sum_beyond(
            indicator(torch.maximum(suffix.movedim(-1, self.dim), total.movedim(-1, self.dim))),
            batch,
        )


def _cut_gaps(y: Tensor, sizes: Tensor, means: Tensor) -> Tensor:
    """By how much the entries up to a cut exceed their block's mean, relative to the block."""
    excess = (y - means).cumsum(-1)[..., :-1]
    return excess / sizes[..., :-1]


@register_prox(Monotone, Euclidean)
def _(g: Monotone, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    if y.ndim == 0:
        raise InputError(f"{g!r} needs an axis, but x has shape (): it is one number.")
    y = y.movedim(g.dim, -1)
    return pooled(y).means(y).movedim(-1, g.dim)
