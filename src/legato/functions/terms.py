"""Prox-friendly terms: norms and indicator functions. Their proxes are in the table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.checks import require_below, require_nonnegative
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function, indicator


class _Indicator(Function):
    """0 on a closed convex set and +∞ outside (beyond rounding)."""

    @abstractmethod
    def violation(self, x: Var) -> Tensor:
        """How far each entry, or slice, of x violates the constraint; at most 0 inside."""

    def value(self, x: Var) -> Tensor:
        return indicator(self.violation(x))


@dataclass(frozen=True, eq=False)
class L1(Function):
    r"""The weighted ℓ1 norm, g(x) = Σ w_i|x_i|; the weight is a number or broadcasts to x.

    Its conjugate is the indicator of |y_i| ≤ w_i. Reference: Donoho (1995), soft thresholding.

    >>> lg.prox(lg.L1(1.0), lg.Euclidean(), torch.tensor([3.0, -0.5, -2.0]), 1.0)
    tensor([ 2.,  0., -1.])
    >>> lg.L1(torch.tensor([1.0, 10.0])).value(torch.tensor([2.0, 3.0]))
    tensor(32.)
    """

    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of L1")

    def value(self, x: Var) -> Tensor:
        return (self.weight * x.abs()).sum()

    def conjugate(self, y: Var) -> Tensor:
        return indicator(y.abs() - self.weight)

    def dual(self) -> Box:
        """The conjugate as a function, for the dual of a Saddle problem."""
        return Box(-self.weight, self.weight)


@dataclass(frozen=True, eq=False)
class GroupL1(Function):
    r"""A sum of group norms, g(x) = Σ_G w_G ‖x_G‖₂.

    Groups are the slices along ``dim``, or, given ``groups`` (an integer label for each entry of
    the last axis), the entries with the same label; ``weight`` is then a number or one per label.
    Reference: Yuan and Lin (2006).

    >>> x = torch.tensor([3.0, 4.0, 0.0, 5.0])
    >>> lg.GroupL1(groups=torch.tensor([0, 0, 1, 1])).norms(x)
    tensor([5., 5.])
    >>> lg.GroupL1().value(x.reshape(2, 2))
    tensor(10.)
    """

    weight: Tensor | float = 1.0
    dim: int = -1
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of GroupL1")
        if self.groups is not None and (self.groups.ndim != 1 or self.groups.is_floating_point()):
            raise InputError("groups must be a vector of integer labels, one for each entry.")

    def norms(self, x: Tensor) -> Tensor:
        """‖x_G‖ for each group, with a zero (not NaN) derivative where the group is zero."""
        wide = x if x.device.type == "mps" else x.double()  # float32 squares of 1e±20 are lost
        square = self._sum(wide * wide)
        positive = (
            square > torch.finfo(x.dtype).tiny ** 2
        )  # what is less has no digits to divide by
        root = torch.sqrt(torch.where(positive, square, torch.ones_like(square)))
        return torch.where(positive, root, torch.zeros_like(root)).to(x.dtype)

    def _sum(self, entries: Tensor) -> Tensor:
        if self.groups is None:
            return entries.sum(self.dim, keepdim=True)
        if entries.shape[-1] != self.groups.shape[0]:
            raise InputError(
                f"groups labels {self.groups.shape[0]} entries, but x has {entries.shape[-1]}."
            )
        count = int(self.groups.max()) + 1
        totals = entries.new_zeros(*entries.shape[:-1], count)
        return totals.index_add(-1, self.groups, entries)

    def spread(self, per_group: Tensor) -> Tensor:
        """One value per group, repeated for the group's entries."""
        return per_group if self.groups is None else per_group[..., self.groups]

    def value(self, x: Var) -> Tensor:
        return (self.weight * self.norms(x)).sum()

    def conjugate(self, y: Var) -> Tensor:
        return indicator(self.norms(y) - self.weight)

    def shared_dims(self) -> tuple[int, ...]:
        return (self.dim,) if self.groups is None else (-1,)

    def dual(self) -> L2Ball:
        """The conjugate as a function, for the dual of a Saddle problem."""
        if self.groups is not None:
            raise InputError("GroupL1 with labels has no dual ball along an axis; use dim instead.")
        return L2Ball(self.weight, self.dim)


@dataclass(frozen=True, eq=False)
class AsymmetricL1(Function):
    r"""A separable positively one-homogeneous term, g(x) = Σ max(lo_i x_i, hi_i x_i).

    With lo = −∞ it is an ℓ1 norm on x ≥ 0. Its conjugate is the indicator of [lo, hi].
    Reference: Example 8 of Ochs et al. (2016).

    >>> g = lg.AsymmetricL1(-float("inf"), 1.0)  # |x| where x ≥ 0
    >>> lg.prox(g, lg.Euclidean(), torch.tensor([3.0, -2.0]), 1.0)
    tensor([2., 0.])
    """

    lo: Tensor | float = -1.0
    hi: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_below(self.lo, self.hi, strict=False, name="AsymmetricL1(lo, hi)")

    def value(self, x: Var) -> Tensor:
        zero = torch.zeros_like(x)  # 0·∞ counts 0: infinite slopes are constraints
        return torch.where(x > 0, self.hi * x, torch.where(x < 0, self.lo * x, zero)).sum()

    def conjugate(self, y: Var) -> Tensor:
        return self.dual().value(y)

    def dual(self) -> Box:
        """The conjugate as a function, for the dual of a Saddle problem."""
        return Box(self.lo, self.hi)


@dataclass(frozen=True, eq=False)
class NonNegative(_Indicator):
    """The indicator of x ≥ 0; its conjugate is the indicator of y ≤ 0.

    Reference: Example 5 of Ochs et al. (2016).

    >>> lg.prox(lg.NonNegative(), lg.Euclidean(), torch.tensor([-1.0, 2.0]), 1.0)
    tensor([0., 2.])
    """

    def violation(self, x: Var) -> Tensor:
        return -x

    def conjugate(self, y: Var) -> Tensor:
        return indicator(y)


@dataclass(frozen=True, eq=False)
class Box(_Indicator):
    r"""The indicator of lo ≤ x ≤ hi; its conjugate is Σ max(lo_i y_i, hi_i y_i).

    Ends are numbers or broadcast to x, may be learned, and may be infinite.
    Reference: Parikh and Boyd (2014), Section 6.2.

    >>> lg.prox(lg.Box(0.0, 1.0), lg.Euclidean(), torch.tensor([-2.0, 0.5, 7.0]), 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    >>> lg.Box(0.0, 1.0).value(torch.tensor([2.0]))
    tensor(inf)
    """

    lo: Tensor | float = -1.0
    hi: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_below(self.lo, self.hi, strict=False, name="Box(lo, hi)")

    def violation(self, x: Var) -> Tensor:
        return torch.maximum(self.lo - x, x - self.hi)

    def conjugate(self, y: Var) -> Tensor:
        return AsymmetricL1(self.lo, self.hi).value(y)


def LInfBall(radius: Tensor | float = 1.0) -> Box:
    """The indicator of ‖x‖_∞ ≤ radius, the dual of an ℓ1 norm.

    Reference: Parikh and Boyd (2014), Section 6.5.

    >>> lg.prox(lg.LInfBall(1.0), lg.Euclidean(), torch.tensor([3.0, -0.5]), 1.0)
    tensor([ 1.0000, -0.5000])
    """
    require_nonnegative(radius, "The radius of LInfBall")
    return Box(-radius, radius)


@dataclass(frozen=True, eq=False)
class Simplex(_Indicator):
    r"""The indicator of the unit simplex along ``dim``: x ≥ 0 and Σ x = 1.

    Its conjugate is the largest entry, summed over batches. Reference: Duchi et al. (2008).

    >>> y = torch.tensor([1.0, 0.5, -2.0])
    >>> lg.prox(lg.Simplex(), lg.Euclidean(), y, 1.0)
    tensor([0.7500, 0.2500, 0.0000])
    >>> torch.allclose(lg.prox(lg.Simplex(), lg.Entropy(), y, 1.0), torch.softmax(y, 0))
    True
    """

    dim: int = -1

    def violation(self, x: Var) -> Tensor:
        imbalance = (x.sum(self.dim, keepdim=True) - 1).abs()
        return torch.maximum(-x, imbalance)

    def conjugate(self, y: Var) -> Tensor:
        return y.amax(self.dim).sum()

    def shared_dims(self) -> tuple[int, ...]:
        return (self.dim,)


@dataclass(frozen=True, eq=False)
class L2Ball(_Indicator):
    r"""The indicator of ‖x‖₂ ≤ radius along ``dim``; its conjugate is Σ radius·‖y‖₂.

    Reference: Parikh and Boyd (2014), Section 6.5.

    >>> lg.prox(lg.L2Ball(1.0), lg.Euclidean(), torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    >>> lg.L2Ball(2.0).conjugate(torch.tensor([3.0, 4.0]))
    tensor(10.)
    """

    radius: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of L2Ball")

    def violation(self, x: Var) -> Tensor:
        return GroupL1(dim=self.dim).norms(x) - self.radius

    def conjugate(self, y: Var) -> Tensor:
        return GroupL1(self.radius, self.dim).value(y)

    def shared_dims(self) -> tuple[int, ...]:
        return (self.dim,)

    def range_projector(self, y: Var) -> Callable[[Var], Var]:
        """Outside the ball the derivative is a multiple of I − nnᵀ for n = y/‖y‖, or 0 if r = 0."""
        norms = GroupL1(dim=self.dim).norms(y)
        outside = norms > self.radius
        n = torch.where(outside, y / norms, torch.zeros_like(y))
        kept = ~(outside & (torch.as_tensor(self.radius, device=y.device) == 0))
        return lambda v: kept * (v - n * (n * v).sum(self.dim, keepdim=True))
