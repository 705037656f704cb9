"""Norms: positively homogeneous terms with a kink at zero. Their proxes are in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import is_concrete, require_below, require_nonnegative
from legato._support.tree import Var, square, sum_beyond
from legato.errors import InputError
from legato.functions.axes import coupled_along
from legato.functions.base import Function, indicator


@dataclass(frozen=True, eq=False, repr=False)
class L1(Function):
    r"""The weighted ℓ1 norm, g(x) = Σ w_i|x_i|; the weight is a number or broadcasts to x.

    Its conjugate is :class:`LInfBall`. At ties, |y_i| = αw_i > 0, the derivative of the prox is 0;
    where w_i = 0 it is 1 in y and −α sign(y_i) in w.
    Reference: Donoho (1995), soft thresholding.

    >>> lg.L1(1.0).prox(torch.tensor([3.0, -0.5, -2.0]))
    tensor([ 2.,  0., -1.])
    >>> lg.L1(torch.tensor([1.0, 10.0]))(torch.tensor([2.0, 3.0]))
    tensor(32.)
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    of_moduli: ClassVar[bool] = True

    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of L1")

    def summands(self, x: Var) -> Tensor:
        return self.weight * x.abs()

    @property
    def coupled(self) -> int:
        return 0

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (y.abs() - step * self.weight).abs()

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import SmoothAbsolute

        return SmoothAbsolute(self.weight, mu)

    def make_conjugate(self) -> Function:
        from legato.functions.sets import LInfBall

        return LInfBall(self.weight)


@dataclass(frozen=True, eq=False, repr=False)
class AsymmetricL1(Function):
    r"""A separable term with two slopes, g(x) = Σ max(lo_i x_i, hi_i x_i).

    With lo = −∞ it is an ℓ1 norm on x ≥ 0. Its conjugate is the indicator of [lo, hi]. At ties,
    y = α lo or y = α hi, the derivative of the prox is 0, and 1 if lo = hi.
    Reference: Example 8 of Ochs et al. (2016).

    >>> g = lg.AsymmetricL1(-float("inf"), 1.0)  # |x| where x ≥ 0
    >>> g.prox(torch.tensor([3.0, -2.0]))
    tensor([2., 0.])
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lo", "hi")

    lo: Tensor | float = -1.0
    hi: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_below(self.lo, self.hi, strict=False, name="AsymmetricL1(lo, hi)")

    def summands(self, x: Var) -> Tensor:
        # Slopes may be infinite (constraints): 0·∞ counts as 0, in the derivative too.
        above, below = x > 0, x < 0
        rise = self.hi * torch.where(above, x, 1.0)
        fall = self.lo * torch.where(below, x, 1.0)
        rest = torch.where(x == 0, torch.zeros_like(x), x)  # NaN is on no side, and stays
        return torch.where(above, rise, torch.where(below, fall, rest))

    @property
    def coupled(self) -> int:
        return 0

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.minimum((y - step * self.lo).abs(), (y - step * self.hi).abs())

    def make_conjugate(self) -> Function:
        from legato.functions.sets import Box

        return Box(self.lo, self.hi)

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import SmoothSlopes

        ends = [torch.as_tensor(t).detach() for t in (self.lo, self.hi)]
        if is_concrete() and not all(bool(torch.isfinite(t).all()) for t in ends):
            raise InputError(
                "A slope of AsymmetricL1 is infinite, which is a constraint: no smoothing of the "
                "two together is known. Write the constraint as a term, NonNegative() or Box."
            )
        return SmoothSlopes(self.lo, self.hi, mu)


@dataclass(frozen=True, eq=False, repr=False)
class GroupL1(Function):
    r"""A sum of group norms, g(x) = Σ_G w_G ‖x_G‖₂.

    Its conjugate is the indicator of ‖y_G‖₂ ≤ w_G for all G. At ties, ‖y_G‖ = αw_G > 0, the
    derivative of the prox is 0; where w_G = 0 it is that of y ↦ y, for y_G = 0 too.
    Reference: Yuan and Lin (2006).

    Args:
        weight: a number, or one weight a group: a tensor that broadcasts to the norms, which have
            size one along ``dim``, or one entry a label.
        dim: groups are the slices along this axis; the last one if None. Behind
            :class:`Differences` it has to be given: see :func:`IsotropicTV`.
        groups: an integer label for each entry of the last axis, instead of ``dim``.

    >>> x = torch.tensor([3.0, 4.0, 0.0, 5.0])
    >>> lg.GroupL1(groups=torch.tensor([0, 0, 1, 1])).norms(x)
    tensor([5., 5.])
    >>> lg.GroupL1()(x.reshape(2, 2))
    tensor(10.)
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    weight: Tensor | float = 1.0
    dim: int | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of GroupL1")
        if self.groups is not None and (self.groups.ndim != 1 or self.groups.is_floating_point()):
            raise InputError("groups must be a vector of integer labels, one for each entry.")

    @property
    def axis(self) -> int:
        """The axis whose slices are the groups."""
        return -1 if self.dim is None else self.dim

    def norms(self, x: Tensor) -> Tensor:
        """‖x_G‖ for each group."""
        if self.groups is None:
            return group_norms(x, self.axis)
        if x.shape[-1] != self.groups.shape[0]:
            raise InputError(
                f"groups labels {self.groups.shape[0]} entries, but x has {x.shape[-1]}."
            )
        count = int(self.groups.max()) + 1
        squares = square(x)
        totals = squares.new_zeros(*x.shape[:-1], count)
        return root(totals.index_add(-1, self.groups, squares))

    def spread(self, per_group: Tensor) -> Tensor:
        """One value per group, repeated for the group's entries."""
        return per_group if self.groups is None else per_group[..., self.groups]

    def _weighted(self, norms: Tensor) -> Tensor:
        require_one_each(self.weight, norms, "GroupL1: the weight")
        return self.weight * norms

    def summands(self, x: Var) -> Tensor:
        return self._weighted(self.norms(x))

    @property
    def coupled(self) -> int | None:
        return coupled_along(self.prox_couples()[0])

    def prox_couples(self) -> tuple[int, ...]:
        return (self.axis,) if self.groups is None else (-1,)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (self.norms(y) - step * self.weight).abs()

    def make_conjugate(self) -> Function:
        from legato.functions.sets import L2Ball

        return L2Ball(self.weight, self.axis) if self.groups is None else super().make_conjugate()

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import SmoothGroups

        return SmoothGroups(self, mu)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        return sum_beyond(indicator(self.norms(y) - self.weight), batch)


def group_norms(x: Tensor, dim: int) -> Tensor:
    """Euclidean norms along an axis, which stays with size one; derivative 0, not NaN, at 0."""
    return root(square(x).sum(dim, keepdim=True))


def root(square: Tensor) -> Tensor:
    """√square, with derivative 0, not infinite, at 0."""
    zero = square == 0  # asked this way round, NaN stays NaN
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, square)))


def require_one_each(weight: Tensor | float, norms: Tensor, what: str) -> None:
    """Refuse weights that do not belong to norms of this shape, where they would broadcast."""
    if isinstance(weight, Tensor) and weight.ndim > 0:
        try:
            fits = torch.broadcast_shapes(weight.shape, norms.shape) == norms.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise InputError(
                f"{what} has shape {tuple(weight.shape)}, but there is one group norm for each "
                f"entry of shape {tuple(norms.shape)}. Reshape it to broadcast to that."
            )
