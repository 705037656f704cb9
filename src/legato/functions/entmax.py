"""Soft maxima whose gradients are softmax, sparsemax and what lies between, and their entropies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import holds, require_tensor_or_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.axes import coupled_along
from legato.functions.base import Function, indicator
from legato.functions.norms import require_one_each

_LARGEST = 32
"""The largest α: from there on p^(α − 1) underflows for p that count."""
HALVINGS = {torch.float32: 30, torch.float64: 60}
"""Until an interval of length 1 is as short as rounding."""


class OnTheSimplex(Function):
    """What a soft maximum and its regulariser on the simplex share."""

    alpha: Tensor | float
    dim: int

    above: ClassVar[float] = 0.0
    """What α is larger than."""
    meaning: ClassVar[str] = (
        "1 is softmax, 2 is sparsemax; far beyond, float64 cannot tell small p from 0."
    )
    """What its values mean, for who gives another."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_tensor_or_number(self.alpha, f"alpha of {name}")
        if not holds((self.alpha > self.above) & (self.alpha <= _LARGEST)):
            given = torch.as_tensor(self.alpha).detach()
            worst = given.min() if bool(given.min() <= self.above) else given.max()
            raise InputError(
                f"alpha of {name} is larger than {self.above:g} and at most {_LARGEST}, not "
                f"{float(worst):g}: {self.meaning}"
            )

    @property
    def coupled(self) -> int | None:
        return coupled_along(self.dim)

    def check(self, x: Tensor) -> None:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        if isinstance(self.alpha, Tensor) and self.alpha.ndim > 0:
            require_one_each(self.alpha, x.narrow(self.dim, 0, 1), f"{type(self).__name__}: alpha")


def _is_softmax(alpha: Tensor | float) -> bool:
    return not isinstance(alpha, Tensor) and alpha == 1


@dataclass(frozen=True, eq=False, repr=False)
class SoftMaximum(OnTheSimplex):
    r"""A smooth largest entry along ``dim``, whose gradient is α-entmax; L = 1 for α ≤ 2.

    .. math:: f(x) = \max_{p ∈ Δ}\; ⟨p, x⟩ − Ω_α(p), \qquad ∇f(x) = p

    α = 1 is log-sum-exp with softmax; α = 2 has sparsemax, the projection onto the simplex; from
    α > 1 on, probabilities may be 0. Any α in (0, 32] is one number, or one for each slice, and may
    be learned. Entries of −∞ are left out. Its conjugate Ω is :class:`Tsallis`, and
    f(x) + Ω(q) − ⟨q, x⟩ the Fenchel–Young loss of x for a target q.
    Reference: Peters, Niculae, Martins (2019); Correia, Niculae, Martins (2019).

    >>> x = torch.tensor([1.0, 0.5, -2.0])
    >>> lg.SoftMaximum(1.0).grad(x).round(decimals=3), lg.SoftMaximum(2.0).grad(x)
    (tensor([0.6040, 0.3660, 0.0300]), tensor([0.7500, 0.2500, 0.0000]))
    >>> lg.SoftMaximum(1.5).grad(x).round(decimals=3)
    tensor([0.6740, 0.3260, 0.0000])
    """

    alpha: Tensor | float = 1.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        self.check(x)
        if _is_softmax(self.alpha):
            return torch.logsumexp(x, self.dim, keepdim=True)
        p = self.grad(x)
        gain = p * torch.where(torch.isneginf(x), 0.0, x)
        return (gain - tsallis(p, self.alpha)).sum(self.dim, keepdim=True)

    def grad(self, x: Var) -> Var:
        self.check(x)
        return (
            torch.softmax(x, self.dim)
            if _is_softmax(self.alpha)
            else entmax(x, self.alpha, self.dim)
        )

    def lipschitz(self) -> float | None:
        """Ω″ = p^(α − 2) ≥ 1 on the simplex for α ≤ 2; beyond, slopes grow as entries vanish."""
        return 1.0 if holds(self.alpha <= 2) else None

    def make_conjugate(self) -> Function:
        return Tsallis(self.alpha, self.dim)


@dataclass(frozen=True, eq=False, repr=False)
class Tsallis(OnTheSimplex):
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
        self.check(x)
        imbalance = (x.sum(self.dim, keepdim=True) - 1).abs()
        inside = torch.clamp(x, min=0)
        entropy = (
            torch.xlogy(inside, inside) if _is_softmax(self.alpha) else tsallis(inside, self.alpha)
        )
        return entropy + indicator(torch.maximum(-x, imbalance))

    def bounds(self) -> tuple[Any, Any]:
        return 0.0, 1.0

    def make_conjugate(self) -> Function:
        return SoftMaximum(self.alpha, self.dim)


def tsallis(p: Tensor, alpha: Any) -> Tensor:
    """(p^α − p)/(α(α − 1)) entrywise, with derivatives at p = 0 and at α = 1."""
    positive = ~(p <= 0)  # NaN stays NaN
    log = torch.log(torch.where(positive, p, 1.0))
    growth = _smooth_at_0((alpha - 1) * log, torch.expm1, _EXPM1)
    return torch.where(positive, p * log * growth, 0.0 * p) / alpha


def entmax(x: Tensor, alpha: Any, dim: int) -> Tensor:
    r"""The p ≥ 0 of sum 1 with p = (1 + κ(x − max x − t))^{1/κ}, κ = α − 1, which is exp for κ = 0.

    t ≥ 0 is found by halving an interval; two steps of Newton's method from there, which autograd
    sees, give it the derivatives of the root, first and second.
    """
    kind, steep = x.dtype, isinstance(alpha, Tensor) or alpha > 2
    if steep:  # 1 + κz may be less than single precision tells from 0
        x = x.double()
    kappa = torch.as_tensor(alpha, dtype=x.dtype, device=x.device) - 1
    # Around the largest, so that rounding does not see how far from 0 all are.
    x = x - x.detach().amax(dim, keepdim=True)
    seen = ~torch.isneginf(x)
    x = torch.where(seen, x, 0.0)
    with torch.no_grad():
        # The largest p is at most 1 and at least 1/n.
        log_n = torch.log(torch.as_tensor(float(x.shape[dim]), dtype=x.dtype, device=x.device))
        length = log_n * _smooth_at_0(-kappa * log_n, torch.expm1, _EXPM1)
        root = torch.zeros_like(x.narrow(dim, 0, 1))
        for _ in range(HALVINGS.get(x.dtype, 60)):
            length = length / 2
            p, _ = _power(x - (root + length), kappa, seen)
            root = torch.where(p.sum(dim, keepdim=True) >= 1, root + length, root)
        known = _powers(x, root, kappa, seen, dim) if steep else None
    for _ in range(2):
        p, slope = _power(x - root, kappa, seen, known)
        excess = p.sum(dim, keepdim=True) - 1
        # Beyond sparsemax slopes are infinite where p vanishes: a step would only add noise.
        excess = torch.where(kappa > 1, excess - excess.detach(), excess)
        root = root + excess / slope.sum(dim, keepdim=True)
    return _power(x - root, kappa, seen, known)[0].to(kind)


def _powers(x: Tensor, root: Tensor, kappa: Tensor, seen: Tensor, dim: int) -> Tensor:
    """p^κ = 1 + κz for κ > 1, where rounding takes what matters from the sum: p is its κ-th root.

    Of all p between those of a root a little smaller and of one a little larger, those count that
    have the sum 1.
    """
    rounding = 4 * torch.finfo(x.dtype).eps / kappa.clamp(min=1)
    most, least = (_power(x - t, kappa, seen)[0] for t in (root - rounding, root + rounding))
    total, spread = least.sum(dim, keepdim=True), (most - least).sum(dim, keepdim=True)
    share = ((1 - total) / spread).clamp(0, 1)
    return (least + share * (most - least)) ** kappa


def _power(
    z: Tensor, kappa: Tensor, seen: Tensor, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(1 + κz)^{1/κ} and its slope in z; 0 where 1 + κz ≤ 0, and for what is not seen.

    ``known`` is the value of 1 + κz for κ > 1.
    """
    base = 1 + kappa * z
    if known is not None:
        base = torch.where(kappa > 1, known + (base - base.detach()), base)
    inside = seen & ~(base <= 0)  # NaN is inside, and stays
    z, base = torch.where(inside, z, 0.0), torch.where(inside, base, 1.0)
    steep = kappa > 1
    z = torch.where(steep, 0.0, z)
    log = torch.log(torch.where(steep, base, 1.0)) / torch.where(steep, kappa, 1.0)
    p = torch.exp(torch.where(steep, log, z * _smooth_at_0(kappa * z, torch.log1p, _LOG1P)))
    p = torch.where(inside, p, 0.0)
    return p, p / base


_LOG1P = [(-1.0) ** k / (k + 1) for k in range(9)]
_EXPM1 = [1 / math.factorial(k + 1) for k in range(9)]


def _smooth_at_0(u: Tensor, function: Callable[[Tensor], Tensor], series: list[float]) -> Tensor:
    """function(u)/u by its series near u = 0, where derivatives of the quotient would be noise."""
    near = u.abs() < 0.02
    little, much = torch.where(near, u, 0.0), torch.where(near, 1.0, u)
    total = torch.full_like(little, series[-1])
    for coefficient in reversed(series[:-1]):
        total = coefficient + little * total
    return torch.where(near, total, function(much) / much)
