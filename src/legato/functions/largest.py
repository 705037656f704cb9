"""The largest entry, the largest absolute value, and the ball that is polar to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.base import Function, indicator
from legato.functions.levels import level
from legato.functions.norms import require_one_each
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.geometry import Euclidean


def _on_an_axis(g: Function, x: Tensor, weight: Any, dim: int) -> None:
    """Refuse one number, and weights that are not one for each slice."""
    if x.ndim == 0:
        raise InputError(
            f"{g!r} needs an axis, but x has shape (): it is one number. Pass a vector, e.g. "
            "x.unsqueeze(0)."
        )
    if isinstance(weight, Tensor) and weight.ndim > 0:
        require_one_each(weight, x.narrow(dim, 0, 1), type(g).__name__ + ": the weight")


@dataclass(frozen=True, eq=False, repr=False)
class MaxEntry(AlongAxis):
    r"""The largest entry along ``dim``, g(x) = w max_i x_i.

    Its conjugate is the indicator of the simplex whose entries sum to w. At ties, where an entry is
    just not cut, the derivative of the prox is 1 for it; where w = 0 it is 1 for all.
    Reference: Parikh and Boyd (2014), Section 6.4.1.

    >>> g = lg.MaxEntry()
    >>> g(torch.tensor([1.0, 3.0, 2.5])), g.prox(torch.tensor([1.0, 3.0, 2.5]))
    (tensor(3.), tensor([1.0000, 2.2500, 2.2500]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)

    weight: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of MaxEntry")

    def summands(self, x: Var) -> Tensor:
        _on_an_axis(self, x, self.weight, self.dim)
        return self.weight * x.amax(self.dim, keepdim=True)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        cut = level(y, step * self.weight, self.dim)
        return (y - cut.mean + step * self.weight / cut.number).abs()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        imbalance = (y.sum(self.dim, keepdim=True) - self.weight).abs()
        return sum_beyond(indicator(torch.maximum(-y, imbalance)), batch)


@register_prox(MaxEntry, Euclidean)
def _(g: MaxEntry, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    """What is above the level is cut; the level takes αw away in all."""
    _on_an_axis(g, y, g.weight, g.dim)
    amount = torch.as_tensor(alpha * g.weight, dtype=y.dtype, device=y.device)
    above, mean, count = level(y, amount, g.dim)
    # Of a weight 0 nothing is cut: y stays y, and what would be cut first has a slope in w.
    top = torch.where(amount > 0, mean, y) - amount / count
    return torch.where(above, top, y)


@dataclass(frozen=True, eq=False, repr=False)
class L1Ball(AlongAxis, Indicator):
    r"""The indicator of Σ|x_i| ≤ radius along ``dim``; its conjugate is :class:`LInfNorm`.

    At ties, where the projection just sets an entry to 0, its derivative lets it stay 0; where
    Σ|y_i| = radius > 0 it is the identity; where the radius is 0 it is 0 in y.
    Reference: Duchi et al. (2008).

    >>> lg.L1Ball(2.0).prox(torch.tensor([3.0, -2.0, 0.2]))
    tensor([ 1.5000, -0.5000,  0.0000])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("radius",)
    of_moduli: ClassVar[bool] = True

    radius: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of L1Ball")

    def violation(self, x: Var) -> Tensor:
        _on_an_axis(self, x, self.radius, self.dim)
        return x.abs().sum(self.dim, keepdim=True) - self.radius

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return l1_kinks(y, self.radius, self.dim)

    def make_conjugate(self) -> Function:
        return LInfNorm(self.radius, self.dim)


@register_prox(L1Ball, Euclidean)
def _(g: L1Ball, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    _on_an_axis(g, y, g.radius, g.dim)
    return project_onto_l1_ball(y, g.radius, g.dim)


@dataclass(frozen=True, eq=False, repr=False)
class LInfNorm(AlongAxis):
    r"""The largest absolute value along ``dim``, g(x) = w max_i |x_i|.

    Its conjugate is :class:`L1Ball`. At ties, where an entry is just not cut, the derivative of the
    prox is 1 for it; where Σ|y_i| = αw > 0 it is 0; where w = 0 it is that of y ↦ y.
    Reference: Parikh and Boyd (2014), Section 6.5.2.

    >>> lg.LInfNorm().prox(torch.tensor([3.0, -2.5, 0.2]))
    tensor([ 2.2500, -2.2500,  0.2000])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    of_moduli: ClassVar[bool] = True

    weight: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of LInfNorm")

    def summands(self, x: Var) -> Tensor:
        _on_an_axis(self, x, self.weight, self.dim)
        return self.weight * x.abs().amax(self.dim, keepdim=True)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return l1_kinks(y, step * self.weight, self.dim)

    def make_conjugate(self) -> Function:
        return L1Ball(self.weight, self.dim)


@register_prox(LInfNorm, Euclidean)
def _(g: LInfNorm, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    _on_an_axis(g, y, g.weight, g.dim)
    return y - project_onto_l1_ball(y, alpha * g.weight, g.dim)  # Moreau's identity


def project_onto_l1_ball(y: Tensor, radius: Any, dim: int) -> Tensor:
    """Soft thresholding by the level that leaves the radius, outside of the ball."""
    radius = torch.as_tensor(radius, dtype=y.dtype, device=y.device)
    size = y.abs()
    # The centre of a ball of radius 0 is outside of it: the ball has no inside to move in.
    outside = (size.sum(dim, keepdim=True) > radius) | (radius == 0)
    above, mean, count = level(size, radius, dim)
    excess = torch.where(radius > 0, size - mean, 0.0 * size.detach()) + radius / count
    shrunk = torch.where(above, torch.sign(y.detach()) * excess, torch.zeros_like(y))
    return torch.where(outside, shrunk, y)


def l1_kinks(y: Tensor, radius: Any, dim: int) -> Tensor:
    """Entries at the level and, where that is nearer, the boundary of the ball."""
    size = y.abs()
    cut = level(size, radius, dim)
    away = (size - cut.mean + radius / cut.number).abs()
    gap = size.sum(dim, keepdim=True) - radius
    # n entries that move by d change the sum by at most nd.
    boundary = gap.abs() / y.shape[dim]
    return torch.where(gap > 0, torch.minimum(away, boundary), boundary)
