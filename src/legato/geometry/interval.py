"""The two-sided entropy on an interval, whose inverse mirror map is a hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import require_below
from legato._support.tree import Var
from legato.geometry.base import Geometry, bounded_exp


@dataclass(frozen=True, repr=False, eq=False)
class Interval(Geometry):
    r"""Entropy of the distances to both ends of [lo, hi]; 1-strongly convex for any ends.

    .. math:: ψ(x) = \tfrac{r²}{2}\sum_i (1+t_i)\log(1+t_i) + (1−t_i)\log(1−t_i), \quad
              t = (x − m)/r, \; m = \tfrac{lo+hi}{2}, \; r = \tfrac{hi−lo}{2}

    so that ∇ψ(x) = r·artanh t and ∇ψ*(y) = m + r·tanh(y/r). Ends may be tensors and learned.
    Reference: Example 2 of Ochs et al. (2016).

    >>> psi = lg.Interval(0.0, 4.0)
    >>> psi.unmirror(torch.tensor([-50.0, 0.0, 50.0]))
    tensor([0., 2., 4.])
    """

    lo: Tensor | float = -1.0
    hi: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_below(self.lo, self.hi, strict=True, name="Interval(lo, hi)")

    @property
    def middle(self) -> Tensor | float:
        return (self.lo + self.hi) / 2

    @property
    def radius(self) -> Tensor | float:
        return (self.hi - self.lo) / 2

    def summands(self, x: Var) -> Tensor:
        r = self.radius
        t = (x - self.middle) / r
        entropy = torch.xlogy(1 + t, 1 + t) + torch.xlogy(1 - t, 1 - t)
        return 0.5 * r * r * entropy

    @property
    def coupled(self) -> int:
        return 0

    def modulus(self, bounds: tuple[Any, Any]) -> float:
        """ψ″ = 1/(1 − t²) ≥ 1."""
        return 1.0

    def mirror(self, x: Var) -> Var:
        return self.radius * torch.atanh((x - self.middle) / self.radius)

    def unmirror(self, y: Var) -> Var:
        if _is(self.radius, 1.0) and _is(self.middle, 0.0):  # the usual one, in one operation
            return torch.tanh(y)
        return self.middle + self.radius * torch.tanh(y / self.radius)

    def interior(self, x: Var) -> Tensor:
        return (x > self.lo) & (x < self.hi)

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        def log_metric(y: Tensor) -> Tensor:  # log sech²(y/r) up to a constant
            t = (y / self.radius).abs()
            return -2 * (t + torch.log1p(torch.exp(-2 * t)))

        return bounded_exp(log_metric(after) - log_metric(before)) * w

    def _advice(self) -> str:
        return "Interval needs lo < x < hi."


def _is(end: Tensor | float, number: float) -> bool:
    return not isinstance(end, Tensor) and end == number
