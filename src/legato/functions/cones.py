"""Cones that couple entries: their indicators, and projections with their derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions.axes import AlongAxis, OfMatrices
from legato.functions.base import Function, indicator
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class SecondOrderCone(AlongAxis, Indicator):
    r"""The indicator of ‖v‖₂ ≤ t, where t is the first entry along ``dim`` and v are the others.

    .. math:: \mathrm{prox}(t, v) = \tfrac{t + ‖v‖}{2}\,(1, v/‖v‖) \quad\text{where } |t| < ‖v‖

    It is y inside the cone, and 0 where ‖v‖ ≤ −t. Its conjugate is the indicator of −(t, v) in the
    cone. At ties the derivative is that of the inside, where ‖v‖ = t, and 0 where ‖v‖ = −t > 0.
    Reference: Parikh and Boyd (2014), Section 6.3.2.

    >>> lg.SecondOrderCone().prox(torch.tensor([0.0, 3.0, 4.0]))
    tensor([2.5000, 1.5000, 2.0000])
    """

    dim: int = -1

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t, v and ‖v‖; the derivative of the norm is 0 at 0."""
        if x.ndim == 0 or x.shape[self.dim] < 2:
            raise InputError(
                f"{self!r} needs t and at least one more entry along axis {self.dim}, but x has "
                f"shape {tuple(x.shape)}."
            )
        t, v = x.narrow(self.dim, 0, 1), x.narrow(self.dim, 1, x.shape[self.dim] - 1)
        # In units of the largest entry: squares of 1e30 are no float32 numbers.
        unit = v.detach().abs().amax(self.dim, keepdim=True)
        unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1.0)
        return t, v, unit * torch.linalg.vector_norm(v / unit, dim=self.dim, keepdim=True)

    def violation(self, x: Var) -> Tensor:
        t, _, norm = self.parts(x)
        return norm - t

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        t, _, norm = self.parts(y)
        return (norm - t.abs()).abs()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        return sum_beyond(indicator(self.violation(-y)), batch)


@register_prox(SecondOrderCone, Euclidean)
def _(g: SecondOrderCone, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    t, v, norm = g.parts(y)
    inside, below = norm <= t, norm <= -t
    outside = ~(inside | below)
    safe = torch.where(outside, norm, torch.ones_like(norm))
    height = 0.5 * (t + safe)
    nearest = torch.cat([height, height / safe * v], g.dim)
    kept = torch.where(inside, y, torch.zeros_like(y))
    # NaN compares as False, and is outside.
    return torch.where(outside, nearest, kept)


@dataclass(frozen=True, eq=False, repr=False)
class PositiveSemidefinite(OfMatrices, Indicator):
    r"""The indicator of symmetric matrices, the last two axes of x, without negative eigenvalues.

    .. math:: \mathrm{prox}(y) = U \max(Λ, 0)\, Uᵀ \quad\text{for } \tfrac{y + yᵀ}2 = UΛUᵀ

    Its conjugate is the indicator of matrices whose symmetric part has no positive eigenvalue. At
    ties, eigenvalues of 0, the derivative is the mean of both sides; two eigenvalues that are equal
    are no tie.
    Reference: Higham (1988); Lewis and Sendov (2001).

    >>> lg.PositiveSemidefinite().prox(torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
    tensor([[2., 0.],
            [0., 0.]])
    """

    def violation(self, x: Var) -> Tensor:
        _require_square(self, x)
        skew = (x - x.mT).abs().amax((-2, -1), keepdim=True)
        return torch.maximum(-_eigenvalues(x)[..., None, :1], 0.5 * skew)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        _require_square(self, y)
        return _eigenvalues(y)[..., None, :].abs()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        _require_square(self, y)
        return sum_beyond(indicator(_eigenvalues(y)[..., None, -1:]), batch)


def _require_square(g: Function, x: Tensor) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise InputError(
            f"{g!r} takes square matrices, the last two axes of x, but x has shape "
            f"{tuple(x.shape)}."
        )


def _finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric part, 0 where an entry is no number, which LAPACK refuses; and where."""
    broken = ~torch.isfinite(x).all((-2, -1), keepdim=True)
    return torch.where(broken, 0.0, 0.5 * (x + x.mT)), broken[..., 0]


def _eigenvalues(x: Tensor) -> Tensor:
    symmetric, broken = _finite(x)
    return torch.where(broken, torch.nan, torch.linalg.eigvalsh(symmetric))


def _decomposed(y: Tensor) -> tuple[Tensor, Tensor]:
    symmetric, broken = _finite(y)
    values, U = torch.linalg.eigh(symmetric)
    return torch.where(broken, torch.nan, values), U


def _derivative(y: Tensor, direction: Tensor) -> Tensor:
    """U(Γ ∘ UᵀHU)Uᵀ with the divided differences Γ of max(λ, 0); it is its own adjoint."""
    values, U = _decomposed(y)
    # What is rounding beside the largest eigenvalue counts as 0, the kink of max(λ, 0).
    size = values.abs().amax(-1, keepdim=True)
    rounding = 4 * values.shape[-1] * torch.finfo(y.dtype).eps * size
    values = torch.where(values.abs() <= rounding, 0.0, values)
    positive = values.clamp(min=0)
    a, b = values.unsqueeze(-1), values.unsqueeze(-2)
    rise = positive.unsqueeze(-1) - positive.unsqueeze(-2)
    slope = 0.5 * (1 + values.sign())
    # Nearer than rounding, values count as equal: their quotient would be noise.
    near = (a - b).abs() <= 8 * torch.finfo(y.dtype).eps * torch.maximum(a.abs(), b.abs())
    mean = 0.5 * (slope.unsqueeze(-1) + slope.unsqueeze(-2))
    quotient = torch.where(near, mean, rise / torch.where(near, 1.0, a - b))
    symmetric = 0.5 * (direction + direction.mT)
    return U @ (quotient * (U.mT @ symmetric @ U)) @ U.mT


class _Projected(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        values, U = _decomposed(y)
        return (U * values.clamp(min=0).unsqueeze(-2)) @ U.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return _derivative(y, grad)

    @staticmethod
    def jvp(ctx: Any, of_y: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return _derivative(y, of_y)


@register_prox(PositiveSemidefinite, Euclidean)
def _(g: PositiveSemidefinite, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    _require_square(g, y)
    projected: Tensor = _Projected.apply(y)  # type: ignore[no-untyped-call]
    return projected
