"""Penalties that are not convex and whose proxes are roots: a slope that falls, and is convex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato.functions.entmax import HALVINGS
from legato.functions.nonconvex import Folded, require_above


class _Concave(Folded):
    """w p(|x_i|) with p concave and p′ convex on x_i ≥ 0.

    Then ½(z − s)² + αw p(z) has at most one minimum at a z > 0, the largest root of its slope,
    which rises from where it is least, at ``turn``, up to s.
    """

    def slope(self, z: Tensor) -> Tensor:
        """w p′(z)."""
        raise NotImplementedError

    def bend(self, z: Tensor) -> Tensor:
        """w p″(z)."""
        raise NotImplementedError

    def turn(self, alpha: Any) -> Any:
        """Where 1 + αw p″(z) = 0; negative if nowhere on z ≥ 0."""
        raise NotImplementedError

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        zero = 0 * size.detach()
        with torch.no_grad():
            turn = torch.as_tensor(self.turn(alpha), dtype=size.dtype, device=size.device)
            low, high = torch.minimum(turn.clamp(min=0) + zero, size), size
            # NaN has a root, and stays.
            rooted = ~(low - size + alpha * self.slope(low) > 0)
            for _ in range(HALVINGS.get(size.dtype, 60)):
                middle = 0.5 * (low + high)
                above = middle - size + alpha * self.slope(middle) > 0
                low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        root = high
        for _ in range(2):  # Newton's method, from which the root has its derivatives
            rise = 1 + alpha * self.bend(root)
            rise = torch.where(rise > torch.finfo(size.dtype).eps, rise, 1.0)
            root = root - (root - size + alpha * self.slope(root)) / rise
        root = torch.where(size.isinf(), size, root)
        return [zero, torch.where(rooted, root.clamp(min=0), zero)]


@dataclass(frozen=True, eq=False, repr=False)
class ExponentialType(_Concave):
    r"""The exponential-type penalty, from w|x| for γ → 0 to w[x ≠ 0] for γ → ∞.

    .. math:: g(x) = \sum_i w_i \frac{1 − e^{−γ|x_i|}}{1 − e^{−γ}}

    Not convex: a solver finds a stationary point. For αwγ² ≤ 1 − e^{−γ} its prox is continuous; of
    two minimisers it takes 0. At ties the derivative is 0 for entries that just become 0.
    Reference: Gao, Wang, Yang, Zhang (2011).

    >>> legato.functions.ExponentialType(1.0, 2.0).prox(torch.tensor([0.5, 3.0]))
    tensor([0.0000, 2.9942])
    """

    weight: Tensor | float = 1.0
    gamma: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of ExponentialType")
        require_above(self.gamma, 0.0, "gamma of ExponentialType")

    def _scale(self, like: Tensor) -> Tensor:
        gamma = torch.as_tensor(self.gamma, dtype=like.dtype, device=like.device)
        return self.weight / -torch.expm1(-gamma)

    def penalty(self, size: Tensor) -> Tensor:
        return self._scale(size) * -torch.expm1(-self.gamma * size)

    def slope(self, z: Tensor) -> Tensor:
        return self._scale(z) * self.gamma * torch.exp(-self.gamma * z)

    def bend(self, z: Tensor) -> Tensor:
        return -self.gamma * self.slope(z)

    def turn(self, alpha: Any) -> Any:
        gamma = torch.as_tensor(self.gamma)
        most = torch.as_tensor(alpha * self.weight) * gamma * gamma / -torch.expm1(-gamma)
        return torch.log(most) / gamma


@dataclass(frozen=True, eq=False, repr=False)
class Geman(_Concave):
    r"""Geman's penalty, g(x) = Σ w_i|x_i|/(|x_i| + γ_i), which tends to w_i where x_i is large.

    .. math:: \mathrm{prox}(y) = z \text{ with } z + \frac{αwγ}{(z + γ)^2} = |y|, \text{ or } 0

    Not convex: a solver finds a stationary point. For 2αw ≤ γ² its prox is continuous; of two
    minimisers it takes 0. At ties the derivative is 0 for entries that just become 0.
    Reference: Geman and Yang (1995).

    >>> legato.functions.Geman(1.0, 0.5).prox(torch.tensor([1.0, 3.0]))
    tensor([0.0000, 2.9582])
    """

    weight: Tensor | float = 1.0
    gamma: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of Geman")
        require_above(self.gamma, 0.0, "gamma of Geman")

    def penalty(self, size: Tensor) -> Tensor:
        # Of infinity it is the limit, not ∞/∞.
        return self.weight * (1 - self.gamma / (size + self.gamma))

    def slope(self, z: Tensor) -> Tensor:
        return self.weight * self.gamma / (z + self.gamma) ** 2

    def bend(self, z: Tensor) -> Tensor:
        return -2 * self.slope(z) / (z + self.gamma)

    def turn(self, alpha: Any) -> Any:
        return torch.as_tensor(2 * alpha * self.weight * self.gamma) ** (1 / 3) - self.gamma


@dataclass(frozen=True, eq=False, repr=False)
class TruncatedQuadratic(Folded):
    r"""A square that costs no more than ``most``, the relaxed penalty of Mumford and Shah.

    .. math:: g(x) = \sum_i \min\bigl(\tfrac12 w_i x_i^2, κ_i\bigr), \qquad
        \mathrm{prox}(y) = \tfrac{y}{1 + αw} \text{ where } y^2 ≤ \tfrac{2κ}w(1 + αw),
        \; y \text{ beyond}

    Small entries are smoothed, large ones, outliers or jumps, are left alone. Not convex: a solver
    finds a stationary point; of two minimisers the prox takes the smaller.
    Reference: Strekalovskiy and Cremers (2014).

    >>> legato.functions.TruncatedQuadratic(1.0, 0.5).prox(torch.tensor([1.0, 3.0]))
    tensor([0.5000, 3.0000])
    """

    weight: Tensor | float = 1.0
    most: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of TruncatedQuadratic")
        require_nonnegative(self.most, "most of TruncatedQuadratic")

    def penalty(self, size: Tensor) -> Tensor:
        square = 0.5 * self.weight * size * size
        most = torch.as_tensor(self.most, dtype=size.dtype, device=size.device)
        return torch.where(square > most, most + 0 * size.detach(), square)

    def pieces(self, size: Tensor, alpha: Any) -> list[Tensor]:
        return [size / (1 + alpha * self.weight), size]
