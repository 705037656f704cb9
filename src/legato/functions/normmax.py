"""The soft maximum whose regulariser is a norm, and that norm on the simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.functions.base import Function, indicator
from legato.functions.entmax import HALVINGS, OnTheSimplex


class _OfANorm(OnTheSimplex):
    """α > 1, of which ‖·‖_α is strictly convex on the simplex."""

    above: ClassVar[float] = 1.0
    meaning: ClassVar[str] = (
        "near 1 all falls to the largest entry, 2 is the Euclidean norm; far beyond, float64 "
        "cannot tell small p from 0."
    )


@dataclass(frozen=True, eq=False, repr=False)
class NormMaximum(_OfANorm):
    r"""A smooth largest entry along ``dim``, whose gradient is normmax.

    .. math:: f(x) = \max_{p ∈ Δ}\; ⟨p, x⟩ − ‖p‖_α = τ, \quad
        \sum_i \max(x_i − τ, 0)^{α/(α − 1)} = 1, \qquad ∇f(x)_i ∝ \max(x_i − τ, 0)^{1/(α − 1)}

    As :class:`SoftMaximum` with α-entmax, but for a norm in place of an entropy. Probabilities may
    be 0. Any α in (1, 32] is one number, or one for each slice, and may be learned; beyond 2 slopes
    are infinite where a probability vanishes. Entries of −∞ are left out. Its gradient has a
    Lipschitz constant for α ≤ 2, n/(α − 1), which grows with the number n of entries.
    Its conjugate is :class:`SimplexNorm`, and f(x) + ‖q‖_α − ⟨q, x⟩ the Fenchel–Young loss of x for
    a target q. Reference: Blondel, Martins, Niculae (2020).

    >>> x = torch.tensor([1.0, 0.5, -2.0])
    >>> lg.NormMaximum(2.0).grad(x).round(decimals=3)
    tensor([0.6890, 0.3110, 0.0000])
    >>> lg.NormMaximum(2.0)(x).round(decimals=3)
    tensor(0.0890)
    """

    alpha: Tensor | float = 2.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        self.check(x)
        largest = x.detach().amax(self.dim, keepdim=True)
        return largest - _above_the_level(x, self.alpha, self.dim)[1].to(x.dtype)

    def grad(self, x: Var) -> Var:
        self.check(x)
        return _above_the_level(x, self.alpha, self.dim)[0].to(x.dtype)

    def make_conjugate(self) -> Function:
        return SimplexNorm(self.alpha, self.dim)


@dataclass(frozen=True, eq=False, repr=False)
class SimplexNorm(_OfANorm):
    r"""The norm ‖p‖_α on the unit simplex along ``dim``, +∞ elsewhere.

    .. math:: Ω(p) = \bigl(\sum_i p_i^α\bigr)^{1/α}, \qquad p ≥ 0, \; \sum_i p_i = 1

    Its conjugate is :class:`NormMaximum`. Reference: Blondel, Martins, Niculae (2020).

    >>> lg.SimplexNorm(2.0)(torch.tensor([0.6, 0.4])), lg.SimplexNorm(2.0).conjugate()
    (tensor(0.7211), NormMaximum())
    """

    alpha: Tensor | float = 2.0
    dim: int = -1

    def summands(self, x: Var) -> Tensor:
        self.check(x)
        imbalance = (x.sum(self.dim, keepdim=True) - 1).abs()
        outside = torch.maximum(-x, imbalance).amax(self.dim, keepdim=True)
        powers = torch.clamp(x, min=0) ** self.alpha
        return powers.sum(self.dim, keepdim=True) ** (1 / self.alpha) + indicator(outside)

    def bounds(self) -> tuple[Any, Any]:
        return 0.0, 1.0

    def make_conjugate(self) -> Function:
        return NormMaximum(self.alpha, self.dim)


def _above_the_level(x: Tensor, alpha: Any, dim: int) -> tuple[Tensor, Tensor]:
    """p and t = max x − τ, in double precision.

    With q = max(x − τ, 0) and s = α/(α − 1), Σq^s = 1 and p = q^{s − 1}/Σq^{s − 1}. t is found by
    halving an interval; two steps of Newton's method from there, which autograd sees, give it the
    derivatives of the root, first and second.
    """
    x = x.double()
    power = 1 / (torch.as_tensor(alpha, dtype=x.dtype, device=x.device) - 1)
    # Around the largest, so that rounding does not see how far from 0 all are.
    z = x - x.detach().amax(dim, keepdim=True)
    seen = ~torch.isneginf(z)
    z = torch.where(seen, z, 0.0)
    with torch.no_grad():
        # The largest q, which is t, is 1 at most, and as small as n^{−1/s} where all are equal.
        count = torch.as_tensor(float(x.shape[dim]), dtype=x.dtype, device=x.device)
        root = torch.zeros_like(z.narrow(dim, 0, 1)) + count ** (-1 / (power + 1))
        length = 1 - root
        for _ in range(HALVINGS[x.dtype]):
            length = length / 2
            q, raised = _raised(z, root + length, power, seen)
            root = torch.where((q * raised).sum(dim, keepdim=True) <= 1, root + length, root)
    for _ in range(2):
        q, raised = _raised(z, root, power, seen)
        excess = (q * raised).sum(dim, keepdim=True) - 1
        root = root - excess / ((power + 1) * raised.sum(dim, keepdim=True))
    _, raised = _raised(z, root, power, seen)
    return raised / raised.sum(dim, keepdim=True), root


def _raised(z: Tensor, t: Tensor, power: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """q = max(z + t, 0) and q^power; what rounding leaves of a q that is 0 counts as 0."""
    q = z + t
    inside = seen & ~(q <= 8 * torch.finfo(q.dtype).eps)  # NaN is inside, and stays
    q = torch.where(inside, q, 1.0)
    raised = torch.exp(power * torch.log(q))
    return torch.where(inside, q, 0.0), torch.where(inside, raised, 0.0)
