"""Losses of one residual each: Huber, hinge and quantile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import holds, require_nonnegative, require_tensor_or_number
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.base import Function, indicator
from legato.functions.complexity import by_moduli, moduli
from legato.functions.data import require_labels
from legato.functions.kernels import diagonal_hessian
from legato.functions.prox import clip, register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class Huber(Function):
    r"""A square near zero and a multiple of |x| beyond, with L = w.

    .. math:: g(x) = \sum_i w_i \min_z \tfrac12 (x_i − z)^2 + δ_i |z|

    Both a gradient and a prox; at ties, |y_i| = δ_i(1 + αw_i), the derivative of the prox is that
    of the square. Reference: Huber (1964).

    >>> f = lg.Huber(1.0)
    >>> f.grad(torch.tensor([0.5, -3.0])), f.prox(torch.tensor([1.0, 4.0]))
    (tensor([ 0.5000, -1.0000]), tensor([0.5000, 3.0000]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("delta", "weight")
    of_moduli: ClassVar[bool] = True

    delta: Tensor | float = 1.0
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.delta, "delta of Huber")
        require_nonnegative(self.weight, "The weight of Huber")

    def summands(self, x: Var) -> Tensor:
        x = moduli(x)
        bent = clip(x, -self.delta, self.delta)
        return self.weight * bent * (x - 0.5 * bent)

    @property
    def coupled(self) -> int:
        return 0

    def grad(self, x: Var) -> Var:
        return self.weight * by_moduli(lambda t: clip(t, -self.delta, self.delta), x)

    def hessian(self, x: Tensor) -> Tensor:
        curved = torch.where(x.abs() <= self.delta, 1.0, 0.0) + 0 * x  # which keeps NaN
        return diagonal_hessian(self.weight * curved, x)

    def lipschitz(self) -> Tensor | float:
        return self.weight

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (y.abs() - self.delta * (1 + step * self.weight)).abs()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """½ Σ p²/w on |p| ≤ wδ; where w = 0 the indicator of p = 0."""
        y = moduli(y)
        weight = torch.as_tensor(self.weight, dtype=y.dtype, device=y.device)
        square = 0.5 * y * y / torch.where(weight > 0, weight, 1.0)
        return sum_beyond(square + indicator(y.abs() - weight * self.delta), batch)


@register_prox(Huber, Euclidean)
def _(g: Huber, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    strength = alpha * g.weight
    return y - strength * clip(y / (1 + strength), -g.delta, g.delta)


@dataclass(frozen=True, eq=False, repr=False)
class Quantile(Function):
    r"""The pinball loss, whose minimum over constants is a quantile of the data.

    .. math:: g(x) = \sum_i w_i \max(−τ_i x_i, (1 − τ_i) x_i)

    ``Quantile(tau).shifted(y) @ A`` is quantile regression: of the residuals Ax − y a share τ is
    positive. Its conjugate is the indicator of −τw ≤ p ≤ (1 − τ)w. At ties, y = −ατw and
    y = α(1 − τ)w, the derivative of the prox is 0; where w = 0 it is 1.
    Reference: Koenker and Bassett (1978).

    >>> y = torch.tensor([0.0, 1.0, 2.0, 3.0, 10.0])
    >>> fit = lg.Quantile(0.25).shifted(y) @ torch.ones(5, 1)
    >>> fit(torch.tensor([1.0])) < fit(torch.tensor([2.0]))
    tensor(True)
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)

    tau: Tensor | float = 0.5
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of Quantile")
        require_tensor_or_number(self.tau, "tau of Quantile")
        inside = (self.tau >= 0) & (self.tau <= 1)
        if not holds(inside):
            raise InputError(f"tau of Quantile is a share between 0 and 1, not {self.tau!r}.")

    def _ends(self, factor: Any) -> tuple[Any, Any]:
        strength = factor * self.weight
        return -self.tau * strength, (1 - self.tau) * strength

    def summands(self, x: Var) -> Tensor:
        lo, hi = self._ends(1.0)
        return torch.maximum(lo * x, hi * x)

    @property
    def coupled(self) -> int:
        return 0

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        lo, hi = self._ends(step)
        return torch.minimum((y - lo).abs(), (y - hi).abs())

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        lo, hi = self._ends(1.0)
        return sum_beyond(indicator(torch.maximum(lo - y, y - hi)), batch)


@register_prox(Quantile, Euclidean)
def _(g: Quantile, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    lo, hi = g._ends(alpha)
    # Where both ends and y are 0, y is kept whatever the weight becomes.
    return torch.where((y == lo) & (y == hi), y, y - clip(y, lo, hi))


@dataclass(frozen=True, eq=False, repr=False)
class Hinge(Function):
    r"""The hinge loss of a support vector machine, for labels b ∈ {−1, 1}.

    .. math:: g(x) = \sum_i w_i \max(0, 1 − b_i x_i)

    Its conjugate is ⟨b, p⟩ on −w ≤ b p ≤ 0. At ties, b y = 1 and b y = 1 − αw, the derivative of
    the prox is 0; where w = 0 it is 1. Reference: Cortes and Vapnik (1995).

    >>> lg.Hinge(torch.tensor([1.0, 1.0, -1.0])).prox(torch.tensor([-2.0, 0.5, 3.0]))
    tensor([-1.,  1.,  2.])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)

    b: Tensor
    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_labels(self.b, "Hinge")
        require_nonnegative(self.weight, "The weight of Hinge")

    def summands(self, x: Var) -> Tensor:
        return self.weight * torch.clamp(1 - self.b * x, min=0)

    @property
    def coupled(self) -> int:
        return 0

    def start(self) -> Var:
        return torch.zeros_like(self.b)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        margin = self.b * y - 1
        return torch.minimum(margin.abs(), (margin + step * self.weight).abs())

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        slope = y / self.b
        outside = torch.maximum(slope, -self.weight - slope)
        return sum_beyond(slope + indicator(outside), batch)


@register_prox(Hinge, Euclidean)
def _(g: Hinge, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    # b² = 1; written out, the derivative in b is that of the formula for any b.
    return y - g.b * clip((g.b * y - 1) / (g.b * g.b), -alpha * g.weight, 0.0)
