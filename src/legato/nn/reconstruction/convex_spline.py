"""An even convex potential whose derivative is a piecewise linear curve that can be learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative, require_tensor
from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions import Function
from legato.functions.base import indicator
from legato.functions.kernels import diagonal_hessian


@dataclass(frozen=True, eq=False, repr=False)
class ConvexSpline(Function):
    r"""A potential that is even, convex and once differentiable, by its curvatures on intervals.

    .. math:: g(x) = \sum_i ψ(x_i), \qquad ψ''(t) = c_j \;\text{ where }\; jΔ ≤ |t| < (j + 1)Δ

    Beyond the J intervals it is straight: with one interval it is Huber's function. c_j ≥ 0 makes
    ψ' rise, which is all that convexity asks for. Smooth, with L = max c; at its knots, where ψ''
    jumps, the derivative of the gradient is that of the interval further out.
    Reference: Goujon et al. (2023), *A neural-network-based convex regularizer for inverse
    problems*.

    Args:
        curvatures: c, (…, J): the axes before the last broadcast against x, as (K, 1, 1, J) for one
            potential for each of K filters whose answers are (…, K, H, W). May be learned.
        spacing: Δ > 0, the length of an interval.

    >>> psi = ConvexSpline(torch.tensor([2.0, 1.0]), spacing=1.0)
    >>> x = torch.tensor([0.5, -1.5, 9.0])
    >>> psi.grad(x), psi(x[:2])
    (tensor([ 1.0000, -2.5000,  3.0000]), tensor(2.3750))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("curvatures",)

    curvatures: Tensor
    spacing: float = 1.0

    def __post_init__(self) -> None:
        require_tensor(self.curvatures, "The curvatures of ConvexSpline")
        require_nonnegative(self.curvatures, "The curvatures of ConvexSpline")
        if self.curvatures.ndim == 0 or self.curvatures.shape[-1] == 0:
            raise InputError(
                "ConvexSpline needs at least one curvature on the last axis, not shape "
                f"{tuple(self.curvatures.shape)}."
            )
        if not (isinstance(self.spacing, int | float) and 0 < self.spacing < math.inf):
            raise InputError(
                f"The spacing of ConvexSpline must be positive and finite, not {self.spacing!r}."
            )

    def _pieces(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which entry of the tables belongs to x, by its place; how far into it; |x|."""
        count, size = self.curvatures.shape[-1], x.abs()
        with torch.no_grad():
            piece = torch.nan_to_num(size / self.spacing, nan=0.0, posinf=count)
            piece = piece.clamp(max=count).floor()
            rows = self.curvatures.shape[:-1]
            first = torch.arange(math.prod(rows), device=x.device).reshape(rows) * (count + 1)
            place = (piece.long() + first).flatten()
        return place, size - piece * self.spacing, size

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """ψ'', and ψ' and ψ at the beginning of each piece, (…, J + 1); the last has no end."""
        c, step = self.curvatures, self.spacing
        none = torch.zeros_like(c[..., :1])
        slopes = torch.cat((none, step * c.cumsum(-1)), -1)
        rises = step * slopes[..., :-1] + 0.5 * step**2 * c
        return torch.cat((c, none), -1), slopes, torch.cat((none, rises.cumsum(-1)), -1)

    def _at(self, table: Tensor, place: Tensor, x: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x.shape, self.curvatures.shape[:-1])
        return table.flatten().index_select(0, place).reshape(shape)

    def summands(self, x: Var) -> Tensor:
        place, rest, _ = self._pieces(x)
        c, slope, value = (self._at(table, place, x) for table in self._tables())
        return value + rest * (slope + 0.5 * c * rest)

    @property
    def coupled(self) -> int:
        return 0

    def weight_shape(self) -> torch.Size:
        return self.curvatures.shape[:-1]

    def grad(self, x: Var) -> Var:
        place, rest, _ = self._pieces(x)
        curvature, slope, _ = self._tables()
        return x.sign() * self._at(slope, place, x) + self._at(curvature, place, x) * (
            rest * x.sign()
        )

    def hessian(self, x: Tensor) -> Tensor:
        place, _, _ = self._pieces(x)
        return diagonal_hessian(self._at(self._tables()[0], place, x) + 0 * x, x)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """⟨p, t⟩ − ψ(t) where ψ'(t) = p; infinite for p steeper than ψ ever is."""
        curvature, slopes, values = self._tables()
        size = y.abs()
        piece = (size.unsqueeze(-1) > slopes[..., 1:]).sum(-1)
        first = torch.arange(slopes[..., 0].numel(), device=y.device).reshape(slopes.shape[:-1])
        place = (piece + first * slopes.shape[-1]).flatten()
        c, slope, value = (self._at(table, place, y) for table in (curvature, slopes, values))
        rest = torch.where(c > 0, (size - slope) / torch.where(c > 0, c, 1.0), 0.0)
        found = size * (piece * self.spacing + rest) - value - rest * (slope + 0.5 * c * rest)
        return sum_beyond(found + indicator(size - slopes[..., -1]), batch)

    def lipschitz(self) -> Tensor | float:
        return self.curvatures.amax(-1)
