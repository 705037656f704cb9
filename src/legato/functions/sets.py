"""Indicators of convex sets: 0 inside, +∞ outside (beyond rounding). Proxes are projections."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_below, require_nonnegative
from legato._support.tree import Var, product, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.base import Function, indicator
from legato.functions.norms import (
    L1,
    AsymmetricL1,
    GroupL1,
    group_norms,
    require_one_each,
)


class Indicator(Function):
    """The indicator of a closed convex set, given by how far a point violates it."""

    @abstractmethod
    def violation(self, x: Var) -> Tensor:
        """How far each entry, or slice, of x violates the constraint; at most 0 inside."""

    def summands(self, x: Var) -> Tensor:
        return indicator(self.violation(x))


@dataclass(frozen=True, eq=False, repr=False)
class NonNegative(Indicator):
    """The indicator of x ≥ 0; its conjugate is the indicator of y ≤ 0.

    At the tie y = 0 the derivative of the projection is 1.
    Reference: Example 5 of Ochs et al. (2016).

    >>> lg.NonNegative().prox(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def violation(self, x: Var) -> Tensor:
        return -x

    @property
    def coupled(self) -> int:
        return 0

    def bounds(self) -> tuple[Any, Any]:
        return 0.0, torch.inf

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return y.abs()

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import LogBarrier

        return LogBarrier(mu)

    def make_conjugate(self) -> Function:
        return Box(-torch.inf, 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Box(Indicator):
    r"""The indicator of lo ≤ x ≤ hi; its conjugate is :class:`AsymmetricL1`.

    Ends are numbers or broadcast to x, may be learned, and may be infinite. At a tie, y = lo or
    y = hi, the derivative of the projection is 1 in y. Where lo = hi, x is that number: the
    derivative is 0 in y and 1 in the end that y is beyond; for y = lo = hi it is ½ in each.
    Reference: Parikh and Boyd (2014), Section 6.2.

    >>> lg.Box(0.0, 1.0).prox(torch.tensor([-2.0, 0.5, 7.0]))
    tensor([0.0000, 0.5000, 1.0000])
    >>> lg.Box(0.0, 1.0)(torch.tensor([2.0]))
    tensor(inf)
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lo", "hi")

    lo: Tensor | float = -1.0
    hi: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_below(self.lo, self.hi, strict=False, name="Box(lo, hi)")

    def violation(self, x: Var) -> Tensor:
        return torch.maximum(self.lo - x, x - self.hi)

    @property
    def coupled(self) -> int:
        return 0

    def bounds(self) -> tuple[Any, Any]:
        return self.lo, self.hi

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.minimum((y - self.lo).abs(), (y - self.hi).abs())

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import LogBarrier

        return LogBarrier(mu, self.lo, self.hi)

    def make_conjugate(self) -> Function:
        return AsymmetricL1(self.lo, self.hi)


@dataclass(frozen=True, eq=False, repr=False)
class LInfBall(Indicator):
    """The indicator of |x_i| ≤ radius_i, whose conjugate is the ℓ1 norm :class:`L1`.

    At ties, |y_i| = radius_i > 0, the derivative of the projection is 1 in y; where the radius is 0
    it is 0 in y and sign(y_i) in the radius.
    Reference: Parikh and Boyd (2014), Section 6.5.

    >>> lg.LInfBall(1.0).prox(torch.tensor([3.0, -0.5]))
    tensor([ 1.0000, -0.5000])
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("radius",)
    nonnegative: ClassVar[tuple[str, ...]] = ("radius",)
    of_moduli: ClassVar[bool] = True

    radius: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of LInfBall")

    def violation(self, x: Var) -> Tensor:
        return x.abs() - self.radius

    @property
    def coupled(self) -> int:
        return 0

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (y.abs() - self.radius).abs()

    def smoothed(self, mu: Tensor | float) -> Function:
        from legato.functions.smoothing import LogBarrier

        return LogBarrier(mu, -self.radius, self.radius)

    def make_conjugate(self) -> Function:
        return L1(self.radius)


@dataclass(frozen=True, eq=False, repr=False)
class Simplex(AlongAxis, Indicator):
    r"""The indicator of the unit simplex along ``dim``: x ≥ 0 and Σ x = 1.

    Its conjugate is the largest entry along ``dim``. At a tie, where the projection just sets an
    entry to 0, its derivative lets it stay 0. Reference: Duchi et al. (2008).

    >>> y = torch.tensor([1.0, 0.5, -2.0])
    >>> lg.Simplex().prox(y)
    tensor([0.7500, 0.2500, 0.0000])
    >>> torch.allclose(lg.prox(lg.Simplex(), lg.Entropy(), y, 1.0), torch.softmax(y, 0))
    True
    """

    dim: int = -1

    def violation(self, x: Var) -> Tensor:
        imbalance = (self.on_an_axis(x).sum(self.dim, keepdim=True) - 1).abs()
        return torch.maximum(-x, imbalance)

    def on_an_axis(self, x: Tensor) -> Tensor:
        """x itself, refused where it is one number: that would be 1, whatever it is."""
        if x.ndim == 0:
            raise InputError(
                f"{self!r} needs an axis to sum over, but x has shape (): it is one number. Pass a "
                "vector, e.g. x.unsqueeze(0)."
            )
        return x

    def bounds(self) -> tuple[Any, Any]:
        return 0.0, 1.0

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        from legato.functions.prox import simplex_threshold

        y = y - y.amax(self.dim, keepdim=True)
        return (y - simplex_threshold(y, self.dim)).abs()

    def smoothed(self, mu: Tensor | float) -> Function:
        """Not smooth: the equality stays with the prox, x ≥ 0 becomes an entropy."""
        from legato.functions.kernels import NegativeEntropy

        return self + NegativeEntropy(mu)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        return sum_beyond(y.amax(self.dim, keepdim=True), batch)


@dataclass(frozen=True, eq=False, repr=False)
class L2Ball(AlongAxis, Indicator):
    r"""The indicator of ‖x‖₂ ≤ radius along ``dim``; its conjugate is :class:`GroupL1`.

    At ties, ‖y‖ = radius > 0, the derivative of the projection is that inside, the identity; where
    the radius is 0 it is 0 in y, for y = 0 too.
    Reference: Parikh and Boyd (2014), Section 6.5.

    >>> lg.L2Ball(1.0).prox(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    >>> lg.L2Ball(2.0).conjugate()(torch.tensor([3.0, 4.0]))
    tensor(10.)
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("radius",)
    takes_complex: ClassVar[bool] = True

    radius: Tensor | float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of L2Ball")

    def norms(self, x: Tensor) -> Tensor:
        """‖x‖ along ``dim``, which stays with size one."""
        norms = group_norms(x, self.dim)
        require_one_each(self.radius, norms, "L2Ball: the radius")
        return norms

    def violation(self, x: Var) -> Tensor:
        return self.norms(x) - self.radius

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def range_projector(self, y: Var) -> Callable[[Var], Var]:
        """Outside the ball the derivative is a multiple of I − nnᵀ for n = y/‖y‖, or 0 if r = 0."""
        norms = self.norms(y)
        outside = norms > self.radius
        n = torch.where(outside, y / norms, torch.zeros_like(y))
        kept = torch.as_tensor(self.radius, device=y.device) != 0
        return lambda v: kept * (v - n * product(n, v).sum(self.dim, keepdim=True))

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (self.norms(y) - self.radius).abs()

    def make_conjugate(self) -> Function:
        return GroupL1(self.radius, self.dim)
