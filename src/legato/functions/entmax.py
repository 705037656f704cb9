"""Soft maxima whose gradients are softmax, sparsemax and what lies between, and their entropies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import holds, require_tensor_or_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function, indicator
from legato.functions.norms import coupled_along

_HALVINGS = {torch.float32: 30, torch.float64: 60}
"""Until an interval of length 1 is as short as rounding."""


class _OnTheSimplex(Function):
    """What a soft maximum and its entropy share."""

    alpha: Tensor | float
    dim: int

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_tensor_or_number(self.alpha, f"alpha of {name}")
        if isinstance(self.alpha, Tensor) and self.alpha.numel() != 1:
            raise InputError(f"alpha of {name} is one number, not {tuple(self.alpha.shape)}.")
        least = (self.alpha > 1) if isinstance(self.alpha, Tensor) else (self.alpha >= 1)
        if not holds(least & (self.alpha <= 2)):
            raise InputError(
                f"alpha of {name} lies between 1, softmax, and 2, sparsemax, not at "
                f"{float(self.alpha):g}; a tensor, which may be learned, is larger than 1."
            )

    @property
    def coupled(self) -> int | None:
        return coupled_along(self.dim)

    @property
    def _is_softmax(self) -> bool:
        return not isinstance(self.alpha, Tensor) and self.alpha == 1


@dataclass(frozen=True, eq=False, repr=False)
class SoftMaximum(_OnTheSimplex):
    r"""A smooth largest entry along ``dim``, whose gradient is α-entmax; L = 1.

    .. math:: f(x) = \max_{p ∈ Δ}\; ⟨p, x⟩ − Ω_α(p), \qquad ∇f(x) = p

    α = 1 is log-sum-exp with softmax; α = 2 has sparsemax, the projection onto the simplex; from
    α > 1 on, probabilities may be 0. α may be learned. Its conjugate Ω is :class:`Tsallis`, and
    f(x) + Ω(q) − ⟨q, x⟩ the Fenchel–Young loss of x for a target q.
    Reference: Peters, Niculae, Martins (2019).

    >>> x = torch.tensor([1.0, 0.5, -2.0])
    >>> lg.SoftMaximum(1.0).grad(x).round(decimals=3), lg.SoftMaximum(2.0).grad(x)
    (tensor([0.6040, 0.3660, 0.0300]), tensor([0.7500, 0.2500, 0.0000]))
    >>> lg.SoftMaximum(1.5).grad(x).round(decimals=3)
    tensor([0.6740, 0.3260, 0.0000])
    """

    alpha: Tensor | float = 1.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        if self._is_softmax:
            return torch.logsumexp(x, self.dim, keepdim=True)
        p = self.grad(x)
        return (p * x - tsallis(p, self.alpha)).sum(self.dim, keepdim=True)

    def grad(self, x: Var) -> Var:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        return torch.softmax(x, self.dim) if self._is_softmax else entmax(x, self.alpha, self.dim)

    def lipschitz(self) -> float:
        """Ω″ = p^(α − 2) ≥ 1 on the simplex."""
        return 1.0

    def make_conjugate(self) -> Function:
        return Tsallis(self.alpha, self.dim)


@dataclass(frozen=True, eq=False, repr=False)
class Tsallis(_OnTheSimplex):
    r"""The negative Tsallis entropy on the unit simplex along ``dim``, +∞ elsewhere.

    .. math:: Ω_α(p) = \sum_i \frac{p_i^α − p_i}{α(α − 1)}, \qquad Ω_1(p) = \sum_i p_i \log p_i

    Its conjugate is :class:`SoftMaximum`, whose gradient maximises ⟨p, x⟩ − Ω(p): α-entmax.
    Reference: Tsallis (1988).

    >>> uniform = torch.full((2,), 0.5)
    >>> lg.Tsallis(2.0)(uniform), lg.Tsallis(2.0).conjugate()
    (tensor(-0.2500), SoftMaximum(2))
    """

    alpha: Tensor | float = 1.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        imbalance = (x.sum(self.dim, keepdim=True) - 1).abs()
        inside = torch.clamp(x, min=0)
        entropy = torch.xlogy(inside, inside) if self._is_softmax else tsallis(inside, self.alpha)
        return entropy + indicator(torch.maximum(-x, imbalance))

    def bounds(self) -> tuple[Any, Any]:
        return 0.0, 1.0

    def make_conjugate(self) -> Function:
        return SoftMaximum(self.alpha, self.dim)


def tsallis(p: Tensor, alpha: Any) -> Tensor:
    """(p^α − p)/(α(α − 1)) entrywise, with derivatives at p = 0."""
    positive = ~(p <= 0)  # NaN stays NaN
    power = torch.where(positive, torch.where(positive, p, 1.0) ** alpha, 0.0)
    return (power - p) / (alpha * (alpha - 1))


def entmax(x: Tensor, alpha: Any, dim: int) -> Tensor:
    r"""The p ≥ 0 of sum 1 with p = max((α − 1)x − τ, 0)^{1/(α − 1)}.

    τ is found by halving an interval; two steps of Newton's method from there, which autograd sees,
    give it the derivatives of the root, first and second.
    """
    scaled = (alpha - 1) * x
    with torch.no_grad():
        top = scaled.amax(dim, keepdim=True)
        power = torch.as_tensor(1 / (alpha - 1), dtype=x.dtype, device=x.device)
        lo, length = top - 1, 1.0
        for _ in range(_HALVINGS.get(x.dtype, 60)):
            length = length / 2
            middle = lo + length
            total = (torch.clamp(scaled - middle, min=0) ** power).sum(dim, keepdim=True)
            lo = torch.where(total >= 1, middle, lo)
        support = ~(scaled <= lo)  # NaN is in it, and stays
    # Around the largest, so that rounding does not see how far from 0 all are.
    scaled, root = scaled - top, lo - top
    for _ in range(2):
        height = torch.where(support, scaled - root, 1.0)
        height = torch.where(height <= 0, torch.finfo(x.dtype).tiny, height)
        power = 1 / (alpha - 1)
        total = torch.where(support, height**power, 0.0).sum(dim, keepdim=True)
        slope = torch.where(support, power * height ** (power - 1), 0.0).sum(dim, keepdim=True)
        root = root + (total - 1) / slope
    height = torch.where(support, scaled - root, 1.0)
    height = torch.where(height <= 0, torch.finfo(x.dtype).tiny, height)
    return torch.where(support, height ** (1 / (alpha - 1)), 0.0)
