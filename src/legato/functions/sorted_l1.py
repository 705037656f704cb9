"""The sorted ℓ1 norm: the larger an entry, the larger its weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative, require_tensor
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.base import Function, indicator
from legato.functions.data import readable
from legato.functions.pooling import pooled
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class SortedL1(Function):
    r"""The sorted ℓ1 norm of SLOPE along the last axis, for weights w₁ ≥ … ≥ w_n ≥ 0.

    .. math:: g(x) = \sum_i w_i |x|_{(i)}, \qquad |x|_{(1)} ≥ … ≥ |x|_{(n)}

    Equal weights give :class:`L1`, w = (1, 0, …, 0) gives :class:`LInfNorm`. Its conjugate is the
    indicator of |p|₍₁₎ + … + |p|₍ₖ₎ ≤ w₁ + … + w_k for all k. At ties the derivative of the prox is
    0 for entries that just become 0, and that of separate entries where two just have one absolute
    value; without any weight it is that of y ↦ y.
    Reference: Bogdan, van den Berg, Sabatti, Su, Candès (2015).

    >>> g = lg.SortedL1(torch.tensor([2.0, 1.0, 0.5]))
    >>> g(torch.tensor([1.0, -3.0, 0.0])), g.prox(torch.tensor([1.0, -3.0, 0.2]))
    (tensor(7.), tensor([ 0., -1.,  0.]))
    """

    of_moduli: ClassVar[bool] = True

    weights: Tensor

    def __post_init__(self) -> None:
        require_tensor(self.weights, "The weights of SortedL1")
        require_nonnegative(self.weights, "The weights of SortedL1")
        if self.weights.ndim == 0:
            raise InputError("SortedL1 needs a vector of weights; with one number it is L1.")
        if readable(self.weights) and bool((self.weights.detach().diff() > 0).any()):
            raise InputError(
                "The weights of SortedL1 must not increase: the largest entry of x gets the first "
                "of them, and otherwise the norm is not convex. Sort them with "
                "weights.sort(descending=True).values."
            )

    def _require_length(self, x: Tensor) -> None:
        if x.ndim == 0 or x.shape[-1] != self.weights.shape[-1]:
            raise InputError(
                f"SortedL1 has {self.weights.shape[-1]} weights, one for each entry of the last "
                f"axis of x, but x has shape {tuple(x.shape)}."
            )

    def summands(self, x: Var) -> Tensor:
        self._require_length(x)
        return self.weights * x.abs().sort(-1, descending=True).values

    @property
    def coupled(self) -> int:
        return 1

    def prox_couples(self) -> tuple[int, ...]:
        return (-1,)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        self._require_length(y)
        largest = y.abs().sort(-1, descending=True).values
        return sum_beyond(indicator((largest - self.weights).cumsum(-1)), batch)


@register_prox(SortedL1, Euclidean)
def _(g: SortedL1, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    """Sorted, shifted by the weights, made monotone again, and cut at 0."""
    g._require_length(y)
    # A point may come without the axes of a batch that weights have.
    y, strength = torch.broadcast_tensors(y, alpha * g.weights)
    size, order = y.abs().sort(stable=True, dim=-1, descending=True)
    shifted = size - strength
    # Decreasing here: the projection onto increasing sequences, seen in a mirror.
    means = pooled(-shifted.detach()).means(shifted)
    weightless = (strength.detach() == 0).all(-1, keepdim=True)
    kept = torch.where(means <= 0, torch.zeros_like(means), means)
    entries = torch.zeros_like(y).scatter(-1, order, kept)
    free = torch.zeros_like(y).scatter(-1, order, shifted)
    sign = torch.sign(y.detach())
    return torch.where(weightless, y + sign * (free - y.abs()), sign * entries)
