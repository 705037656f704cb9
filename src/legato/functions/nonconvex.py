"""Penalties that are not convex: nearly unbiased where entries are large, and sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import holds, require_nonnegative, require_tensor_or_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


class Folded(Function):
    """A penalty of |x_i| that is not convex: g only, without momentum, and minimisers are local.

    Its prox is found among the minimisers on the pieces of the penalty.
    """

    convex: ClassVar[bool] = False
    of_moduli: ClassVar[bool] = True

    def penalty(self, size: Tensor) -> Tensor:
        """w p(|x_i|) for each entry."""
        raise NotImplementedError

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        """Where ½(z − |y|)² + α w p(z), z ≥ 0, may have its minimum, the smallest first."""
        raise NotImplementedError

    def summands(self, x: Var) -> Tensor:
        return self.penalty(x.abs())

    @property
    def coupled(self) -> int:
        return 0


@register_prox(Folded, Euclidean)
def _(g: Folded, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    size = y.abs()

    @torch.no_grad()
    def energy(z: Tensor) -> Tensor:
        return 0.5 * (z - size) ** 2 + alpha * g.penalty(z)

    best, *others = g.pieces(size, alpha)
    for z in others:
        lower = ~(energy(z) >= energy(best))  # of equals the smaller; NaN stays NaN
        best = torch.where(lower, z, best)
    return torch.sign(y.detach()) * best


def _between(z: Tensor, lo: Any, hi: Any) -> Tensor:
    """z where it lies inside, else the end, with the derivative of the end."""
    z = torch.where(z < lo, lo + 0 * z.detach(), z)
    return torch.where(z > hi, hi + 0 * z.detach(), z)


@dataclass(frozen=True, eq=False, repr=False)
class MCP(Folded):
    r"""The minimax concave penalty, g(x) = Σ p(x_i): w|x| that bends to a constant at |x| = γw.

    .. math:: p(x) = w|x| − \tfrac{x^2}{2γ} \text{ for } |x| ≤ γw, \qquad \tfrac12 γw^2
        \text{ beyond}

    Not convex: a solver finds a stationary point. For α < γ its prox is continuous, for α ≥ γ it is
    the hard threshold; of two minimisers it takes the smaller. At ties the derivative is 0 for
    entries that just become 0. Reference: Zhang (2010).

    >>> legato.functions.MCP(1.0, 3.0).prox(torch.tensor([0.5, 2.0, 5.0]))
    tensor([0.0000, 1.5000, 5.0000])
    """

    weight: Tensor | float = 1.0
    gamma: Tensor | float = 3.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of MCP")
        require_above(self.gamma, 0.0, "gamma of MCP")

    def penalty(self, size: Tensor) -> Tensor:
        near = _between(size, 0.0, self.gamma * self.weight)
        return self.weight * near - near * near / (2 * self.gamma)

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        end = self.gamma * self.weight
        bend = torch.as_tensor(1 - alpha / self.gamma, dtype=size.dtype, device=size.device)
        convex = bend > 0
        inner = (size - alpha * self.weight) / torch.where(convex, bend, 1.0)
        inner = torch.where(convex, _between(inner, 0.0, end), 0 * size)
        return [0 * size.detach(), inner, torch.where(size < end, end + 0 * size.detach(), size)]


@dataclass(frozen=True, eq=False, repr=False)
class SCAD(Folded):
    r"""The smoothly clipped absolute deviation, g(x) = Σ p(x_i): w|x| up to w, constant from aw.

    .. math:: p′(x) = w \text{ for } x ≤ w, \quad \tfrac{aw − x}{a − 1} \text{ for } w ≤ x ≤ aw,
        \quad 0 \text{ beyond}

    Not convex: a solver finds a stationary point. For α < a − 1 its prox is continuous; of two
    minimisers it takes the smaller. At ties the derivative is 0 for entries that just become 0.
    Reference: Fan and Li (2001).

    >>> legato.functions.SCAD(1.0, 3.7).prox(torch.tensor([0.5, 1.5, 5.0]))
    tensor([0.0000, 0.5000, 5.0000])
    """

    weight: Tensor | float = 1.0
    a: Tensor | float = 3.7

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of SCAD")
        require_above(self.a, 2.0, "a of SCAD")

    def penalty(self, size: Tensor) -> Tensor:
        w = self.weight
        near = _between(size, 0.0, w)
        bent = _between(size, w, self.a * w) - w
        return w * near + w * bent - bent * bent / (2 * (self.a - 1))

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        w, end = self.weight, self.a * self.weight
        near = _between(size - alpha * w, 0.0, w)
        bend = torch.as_tensor(1 - alpha / (self.a - 1), dtype=size.dtype, device=size.device)
        convex = bend > 0
        middle = (size - alpha * end / (self.a - 1)) / torch.where(convex, bend, 1.0)
        middle = torch.where(convex, _between(middle, w, end), near)
        return [near, middle, torch.where(size < end, end + 0 * size.detach(), size)]


@dataclass(frozen=True, eq=False, repr=False)
class LogSum(Folded):
    r"""The log-sum penalty, g(x) = Σ w_i log(1 + |x_i|/ε_i).

    .. math:: \mathrm{prox}(y) = \tfrac12\bigl(|y| − ε + \sqrt{(|y| + ε)^2 − 4αw}\bigr)
        \text{ or } 0

    Not convex: a solver finds a stationary point. For αw ≤ ε² its prox is continuous; of two
    minimisers it takes 0. At ties the derivative is 0 for entries that just become 0.
    Reference: Candès, Wakin, Boyd (2008).

    >>> legato.functions.LogSum(1.0, 0.5).prox(torch.tensor([1.0, 3.5]))
    tensor([0.0000, 3.2321])
    """

    weight: Tensor | float = 1.0
    epsilon: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of LogSum")
        require_above(self.epsilon, 0.0, "epsilon of LogSum")

    def penalty(self, size: Tensor) -> Tensor:
        return self.weight * torch.log1p(size / self.epsilon)

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        # (s + ε)² − 4αw as a product, so that no square overflows.
        half = 2 * torch.sqrt(torch.as_tensor(alpha * self.weight, dtype=size.dtype))
        low, high = size + self.epsilon - half, size + self.epsilon + half
        real = low > 0
        root = torch.sqrt(torch.where(real, low, 1.0)) * torch.sqrt(high)
        outer = 0.5 * (size - self.epsilon + root)
        stays = real & (outer > 0) | size.isnan()
        return [0 * size.detach(), torch.where(stays, outer, 0 * size.detach())]


def require_above(value: Tensor | float, least: float, name: str) -> None:
    """Refuse numbers that are not larger than the least."""
    require_tensor_or_number(value, name)
    if not holds(value > least):
        smallest = float(torch.as_tensor(value).detach().min())
        raise InputError(f"{name} must be larger than {least:g}, not {smallest:g}.")
