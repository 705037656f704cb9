"""Total variation of sequences, with an exact prox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._support.checks import is_concrete, require_nonnegative
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.base import indicator
from legato.functions.norms import require_one_each
from legato.functions.pooling import Blocks
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class TotalVariation1D(AlongAxis):
    r"""The total variation of sequences along ``dim``, prox-friendly as it is.

    .. math:: g(x) = w \sum_i |x_{i+1} − x_i|

    The prox is exact: as the weight grows from 0, neighbouring blocks of one value meet, one pair
    after the other, and never part again. It takes at most n rounds of O(n) operations, all
    sequences at once, and its derivative averages over blocks. In ``L1(w) @ Differences((-1,))``
    the same term stands behind an operator, for long sequences or one weight a step. At ties, where
    blocks just meet, the derivative of the prox is that of the joint block; where w = 0 it is that
    of y ↦ y. Reference: Friedman, Hastie, Höfling, Tibshirani (2007).

    >>> lg.TotalVariation1D(0.5).prox(torch.tensor([0.0, 0.0, 4.0, 3.0]))
    tensor([0.2500, 0.2500, 3.2500, 3.2500])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)

    weight: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of TotalVariation1D")

    def require_sequences(self, x: Tensor) -> None:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        require_one_each(self.weight, x.narrow(self.dim, 0, 1), "TotalVariation1D: the weight")

    def summands(self, x: Var) -> Tensor:
        self.require_sequences(x)
        return self.weight * x.diff(dim=self.dim).abs().sum(self.dim, keepdim=True) + 0 * x.sum(
            self.dim, keepdim=True
        )

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """Finite where the sums from the first entry are within ±w and that of all is 0."""
        self.require_sequences(y)
        sums = y.cumsum(self.dim)
        inner = sums.narrow(self.dim, 0, y.shape[self.dim] - 1).abs() - self.weight
        last = sums.narrow(self.dim, y.shape[self.dim] - 1, 1).abs()
        return sum_beyond(indicator(torch.cat([inner, last], self.dim)), batch)


@register_prox(TotalVariation1D, Euclidean)
def _(g: TotalVariation1D, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    g.require_sequences(y)
    weight = torch.as_tensor(alpha * g.weight, dtype=y.dtype, device=y.device)
    if weight.ndim > 0:
        weight = weight.expand(y.narrow(g.dim, 0, 1).shape).movedim(g.dim, -1)
    y = y.movedim(g.dim, -1)
    rises = torch.sign(y.detach().diff())
    blocks = _met(y.detach(), rises, weight.detach())
    # Of a weight 0 nothing is joined, though equal neighbours would be the first to meet.
    level = torch.where(weight > 0, blocks.means(y), y)
    found = level + weight * blocks.means(_pulls(blocks, rises))
    return found.movedim(-1, g.dim)


def _pulls(blocks: Blocks, rises: Tensor) -> Tensor:
    """By how much each entry moves with the weight: towards its neighbours in other blocks."""
    jumps = torch.where(blocks.starts[..., 1:], rises, torch.zeros_like(rises))
    return pad(jumps, (0, 1)) - pad(jumps, (1, 0))


def _met(y: Tensor, rises: Tensor, weight: Tensor) -> Blocks:
    """The blocks that have formed when the weight has grown from 0 to its value."""
    with torch.no_grad():
        blocks = Blocks(torch.ones_like(y, dtype=torch.bool))
        for _ in range(y.shape[-1] - 1):
            apart = blocks.starts[..., 1:]
            gap = rises * blocks.means(y).diff()
            closing = -rises * blocks.means(_pulls(blocks, rises)).diff()
            when = gap / torch.where(closing > 0, closing, 1.0)
            when = torch.where(apart & (closing > 0), when, torch.inf)
            when = torch.where(apart & (rises == 0), 0.0, when)
            meeting = apart & (when <= when.amin(-1, keepdim=True)) & (when <= weight)
            if is_concrete() and not bool(meeting.any()):
                break
            starts = torch.cat([blocks.starts[..., :1], apart & ~meeting], -1)
            blocks = Blocks(starts)
    return blocks
