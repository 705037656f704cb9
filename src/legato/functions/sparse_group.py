"""Sparse groups with sparse entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var, sum_beyond
from legato.functions.base import Function, indicator
from legato.functions.norms import L1, GroupL1, require_one_each
from legato.functions.prox import register_prox, soft_threshold
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class SparseGroupL1(Function):
    r"""An ℓ1 norm and a sum of group norms, of which the prox is one after the other.

    .. math:: g(x) = \sum_i w_i |x_i| + \sum_G v_G ‖x_G‖_2

    Its conjugate is the indicator of ‖S_w(p)_G‖₂ ≤ v_G, with S_w the soft thresholding by w. At
    ties the derivative of the prox is 0, as for :class:`L1` and :class:`GroupL1`.
    Reference: Simon, Friedman, Hastie, Tibshirani (2013).

    Args:
        weight: w, a number or a tensor that broadcasts to x.
        group_weight: v, a number or one for each group, as the weight of :class:`GroupL1`.
        dim, groups: what the groups are, as for :class:`GroupL1`.

    >>> g = lg.SparseGroupL1(0.5, 1.0)
    >>> g(torch.tensor([3.0, -4.0])), g.prox(torch.tensor([3.5, 4.5, 0.4]))
    (tensor(8.5000), tensor([2.4000, 3.2000, 0.0000]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight", "group_weight")
    of_moduli: ClassVar[bool] = True

    weight: Tensor | float = 1.0
    group_weight: Tensor | float = 1.0
    dim: int | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of SparseGroupL1")
        self._grouped()

    def _grouped(self) -> GroupL1:
        return GroupL1(self.group_weight, self.dim, self.groups)

    def values(self, x: Var, batch: int) -> Tensor:
        return L1(self.weight).values(x, batch) + self._grouped().values(x, batch)

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    @property
    def coupled(self) -> int | None:
        return self._grouped().coupled

    def prox_couples(self) -> tuple[int, ...]:
        return self._grouped().prox_couples()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        norms = self._grouped().norms(soft_threshold(y.abs(), self.weight))
        return sum_beyond(indicator(norms - self.group_weight), batch)


@register_prox(SparseGroupL1, Euclidean)
def _(g: SparseGroupL1, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    grouped = g._grouped()
    # Within rounding of a tie is on it: what little were left would have a direction of its own.
    rounding = 1 + 8 * torch.finfo(y.dtype).eps
    gone = (y.abs() <= alpha * g.weight * rounding) & (y != 0)
    y = torch.where(gone, torch.zeros_like(y), soft_threshold(y, alpha * g.weight))
    norms, threshold = grouped.norms(y), alpha * g.group_weight
    require_one_each(g.group_weight, norms, "SparseGroupL1: the group weight")
    kept = ~(norms <= threshold * rounding) | (threshold == 0)
    ratio = threshold / torch.where(kept & (norms != 0), norms, torch.ones_like(norms))
    return y * grouped.spread(torch.where(kept, 1 - ratio, torch.zeros_like(norms)))
