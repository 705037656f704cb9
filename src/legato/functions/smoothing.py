"""Smooth stand-ins for constraints and norms, to which the implicit function theorem applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from legato._support.tree import Var, square
from legato.functions.base import Function

if TYPE_CHECKING:
    from legato.functions.norms import GroupL1


@dataclass(frozen=True, eq=False, repr=False)
class LogBarrier(Function):
    r"""The logarithmic barrier of lo < x < hi, +∞ outside.

    .. math:: f(x) = −μ \sum_i \log(x_i − lo_i) + \log(hi_i − x_i)

    Its gradient is not Lipschitz: solve with :class:`~legato.Backtracking` from an interior start.
    Reference: Section 4.1 and the toy example of Ochs et al. (2016).

    >>> barrier = lg.NonNegative().smoothed(0.1)
    >>> barrier, barrier.grad(torch.tensor([0.5, 2.0]))
    (LogBarrier(0.1), tensor([-0.2000, -0.0500]))
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("lo", "hi")

    mu: Tensor | float
    lo: Tensor | float = 0.0
    hi: Tensor | float = torch.inf

    def summands(self, x: Var) -> Tensor:
        return self._barrier(x - self.lo) + self._barrier(self.hi - x)

    def _barrier(self, slack: Tensor) -> Tensor:
        inside = (slack > 0) & torch.isfinite(slack)  # an infinite end has no barrier
        safe = torch.where(inside, slack, 1.0)
        # +∞ outside, where the logarithm would be NaN: a line search can compare it.
        outside = torch.where(slack > 0, 0.0, torch.inf).to(slack)
        return torch.where(inside, -self.mu * torch.log(safe), outside)

    @property
    def coupled(self) -> int:
        return 0

    def bounds(self) -> tuple[Any, Any]:
        return self.lo, self.hi

    def grad(self, x: Var) -> Var:
        return self.mu * (_inverse(self.hi - x) - _inverse(x - self.lo))

    def hessian(self, x: Tensor) -> Tensor:
        above, below = _inverse(self.hi - x), _inverse(x - self.lo)
        return torch.diag_embed(self.mu * (above**2 + below**2))


def _inverse(slack: Tensor) -> Tensor:
    """1/slack, 0 at an infinite end in all its derivatives as well, where 1/∞ has NaN."""
    infinite = torch.isinf(slack)
    return torch.where(infinite, 0.0, 1 / torch.where(infinite, 1.0, slack))


@dataclass(frozen=True, eq=False, repr=False)
class SmoothAbsolute(Function):
    r"""A smooth ℓ1 norm, f(x) = Σ w_i √(x_i² + μ²), with L = max w/μ.

    Reference: Charbonnier et al. (1997).

    >>> lg.L1(2.0).smoothed(0.1), lg.L1(2.0).smoothed(0.1)(torch.zeros(1))
    (SmoothAbsolute(2, 0.1), tensor(0.2000))
    """

    takes_complex: ClassVar[bool] = True

    weight: Tensor | float
    mu: Tensor | float

    def summands(self, x: Var) -> Tensor:
        return self.weight * torch.sqrt(square(x) + self.mu**2)

    @property
    def coupled(self) -> int:
        return 0

    def grad(self, x: Var) -> Var:
        return self.weight * x / torch.sqrt(square(x) + self.mu**2)

    def hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self.weight * self.mu**2 * (x * x + self.mu**2) ** -1.5)

    def lipschitz(self) -> Tensor | float:
        return self.weight / self.mu


@dataclass(frozen=True, eq=False, repr=False)
class SmoothSlopes(Function):
    r"""A smooth function with the slopes lo and hi far out, both finite.

    .. math:: f(x) = \sum_i \tfrac{hi_i + lo_i}{2} x_i + \tfrac{hi_i − lo_i}{2} \sqrt{x_i² + μ²}

    >>> lg.AsymmetricL1(0.0, 2.0).smoothed(0.1).grad(torch.tensor([0.0, 5.0])).round(decimals=3)
    tensor([1., 2.])
    """

    lo: Tensor | float
    hi: Tensor | float
    mu: Tensor | float

    @property
    def _mean(self) -> Tensor | float:
        return (self.hi + self.lo) / 2

    @property
    def _half(self) -> Tensor | float:
        return (self.hi - self.lo) / 2

    def summands(self, x: Var) -> Tensor:
        return self._mean * x + self._half * torch.sqrt(x * x + self.mu**2)

    @property
    def coupled(self) -> int:
        return 0

    def grad(self, x: Var) -> Var:
        return self._mean + self._half * x / torch.sqrt(x * x + self.mu**2)

    def hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self._half * self.mu**2 * (x * x + self.mu**2) ** -1.5)

    def lipschitz(self) -> Tensor | float:
        return _largest(self._half / self.mu)


@dataclass(frozen=True, eq=False, repr=False)
class SmoothGroups(Function):
    r"""A sum of smooth group norms, f(x) = Σ_G w_G √(‖x_G‖² + μ²), with L = max w/μ.

    >>> lg.GroupL1(2.0).smoothed(0.1)(torch.zeros(2))
    tensor(0.2000)
    """

    groups: GroupL1
    mu: Tensor | float

    def _roots(self, x: Tensor) -> Tensor:
        return torch.sqrt(self.groups.norms(x) ** 2 + self.mu**2)

    def summands(self, x: Var) -> Tensor:
        return self.groups.weight * self._roots(x)

    @property
    def coupled(self) -> int | None:
        return self.groups.coupled

    def grad(self, x: Var) -> Var:
        return x * self.groups.spread(self.groups.weight / self._roots(x))

    def lipschitz(self) -> Tensor | float:
        return _largest(self.groups.weight / self.mu)


def _largest(bound: Tensor | float) -> Tensor | float:
    return bound.amax() if isinstance(bound, Tensor) else bound
