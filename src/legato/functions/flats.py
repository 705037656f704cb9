"""Flat sets: where linear equations hold, matrices of a pattern, and one side of a plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import describe, is_concrete, require_tensor
from legato._support.tree import Var, real_dtype, sum_beyond
from legato.errors import InputError
from legato.functions.axes import OfMatrices
from legato.functions.base import indicator
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.geometry import Euclidean

_SINGULAR = {torch.float32: 1e-5, torch.float64: 1e-12}
"""How much smaller than its largest the smallest singular value of A may be."""


def _times(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x.unsqueeze(-1)).squeeze(-1)


class _AlongTheLastAxis(Indicator):
    """What the flat sets share."""

    @property
    def coupled(self) -> int:
        return 1

    def prox_couples(self) -> tuple[int, ...]:
        return (-1,)


@dataclass(frozen=True, eq=False, repr=False)
class AffineSet(_AlongTheLastAxis):
    r"""The indicator of Ax = b along the last axis, for a matrix with independent rows.

    .. math:: \mathrm{prox}(y) = y − Aᵀ(AAᵀ)^{-1}(Ay − b)

    Projecting costs a factorisation of AAᵀ. Where A is large, or an operator, write
    ``Equality(b) @ A``. Its conjugate is ⟨b, ν⟩ for y = Aᵀν, and +∞ elsewhere. There are no ties.
    Reference: Parikh and Boyd (2014), Section 6.2.

    >>> lg.AffineSet(torch.ones(1, 2), torch.ones(1)).prox(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 0.5000])
    """

    A: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        require_tensor(self.A, "A of AffineSet")
        require_tensor(self.b, "b of AffineSet")
        if self.A.ndim < 2 or self.b.ndim < 1 or self.A.shape[-2] != self.b.shape[-1]:
            raise InputError(
                f"AffineSet(A, b) needs a matrix (…, p, n) and a vector (…, p), not "
                f"{describe(self.A)} and {describe(self.b)}."
            )
        if not is_concrete() or self.A.is_meta:
            return
        if not bool(torch.isfinite(self.A.detach()).all()):
            raise InputError(
                "A of AffineSet holds NaN or infinity, and no point satisfies such an equation. "
                "Look at what it was computed from."
            )
        sizes = torch.linalg.svdvals(self.A.detach())
        least = _SINGULAR.get(self.A.dtype, 1e-5) * sizes[..., :1]
        if self.A.shape[-2] > self.A.shape[-1] or bool((sizes[..., -1:] <= least).any()):
            raise InputError(
                "The rows of A in AffineSet depend on one another: leave out those that others "
                "imply, or write Equality(b) @ A, which does not mind."
            )

    def violation(self, x: Var) -> Tensor:
        return (_times(self.A, x) - self.b).abs().amax(-1, keepdim=True)

    def multipliers(self, y: Tensor, right: Tensor | float) -> Tensor:
        """(AAᵀ)⁻¹(Ay − right)."""
        gram = self.A @ self.A.mT
        missing = _times(self.A, y) - right
        return torch.linalg.solve(
            gram.expand(*missing.shape[:-1], *gram.shape[-2:]), missing.unsqueeze(-1)
        ).squeeze(-1)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.full_like(y, torch.inf)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        nu = self.multipliers(y, 0.0)
        stray = (y - _times(self.A.mT, nu)).abs().amax(-1, keepdim=True)
        value = (self.b * nu).sum(-1, keepdim=True) + indicator(stray)
        return sum_beyond(value, batch)


@register_prox(AffineSet, Euclidean)
def _(g: AffineSet, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    return y - _times(g.A.mT, g.multipliers(y, g.b))


@dataclass(frozen=True, eq=False, repr=False)
class Hankel(OfMatrices, Indicator):
    r"""The indicator of matrices, the last two axes of x, that are constant along antidiagonals.

    .. math:: x_{ij} = h_{i+j}, \qquad \mathrm{prox}(y)_{ij} = \text{the mean of } y_{kl}
        \text{ with } k + l = i + j

    Its conjugate is 0 where the sums along antidiagonals are, and +∞ elsewhere. There are no ties.
    Together with :class:`Nuclear` it finds sums of few exponentials.
    Reference: Fazel, Pong, Sun, Tseng (2013).

    >>> legato.functions.Hankel().prox(torch.tensor([[1.0, 2.0], [4.0, 5.0]]))
    tensor([[1., 3.],
            [3., 5.]])
    """

    takes_complex: ClassVar[bool] = True

    def violation(self, x: Var) -> Tensor:
        return (x - _averaged(x)).abs()

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.full_like(y, torch.inf, dtype=real_dtype(y.dtype))

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        return sum_beyond(indicator(_averaged(y).abs()), batch)


def _averaged(x: Tensor) -> Tensor:
    """Means along antidiagonals, in their place."""
    if x.ndim < 2:
        raise InputError(
            f"Hankel() takes matrices, the last two axes of x, but x has shape {tuple(x.shape)}."
        )
    rows, columns = x.shape[-2:]
    down, along = torch.arange(rows, device=x.device), torch.arange(columns, device=x.device)
    number = (down[:, None] + along).flatten()
    all_of_them = max(rows + columns - 1, 1)
    place = torch.arange(all_of_them, device=x.device)
    count = torch.minimum(place + 1, all_of_them - place).clamp(max=max(min(rows, columns), 1))
    sums = x.new_zeros(*x.shape[:-2], all_of_them)
    means = sums.index_add(-1, number, x.flatten(-2)) / count
    return means.index_select(-1, number).unflatten(-1, (rows, columns))


@register_prox(Hankel, Euclidean)
def _(g: Hankel, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    return _averaged(y)


@dataclass(frozen=True, eq=False, repr=False)
class Halfspaces(_AlongTheLastAxis):
    r"""The indicator of ⟨a, x⟩ ≤ β along the last axis: a half-space for each slice of x.

    .. math:: \mathrm{prox}(y) = y − \frac{\max(⟨a, y⟩ − β, 0)}{‖a‖²}\, a

    ``beta`` is a number or has the leading axes of a. At ties, ⟨a, y⟩ = β, the derivative is the
    identity. Several inequalities at once are ``Box(-inf, h) @ G``. Its conjugate is βs for y = sa
    with s ≥ 0, and +∞ elsewhere.
    Reference: Parikh and Boyd (2014), Section 6.2.2.

    >>> lg.Halfspaces(torch.tensor([1.0, 1.0]), 1.0).prox(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 0.5000])
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ()

    a: Tensor
    beta: Tensor | float

    def __post_init__(self) -> None:
        require_tensor(self.a, "a of Halfspaces")
        if self.a.ndim == 0:
            raise InputError("a of Halfspaces is a vector along the last axis of x, not a number.")
        if is_concrete() and not self.a.is_meta and bool((self.a.detach() == 0).all(-1).any()):
            raise InputError("a of Halfspaces is zero in a slice: that is no half-space.")

    @property
    def _beta(self) -> Tensor | float:
        return self.beta.unsqueeze(-1) if isinstance(self.beta, Tensor) else self.beta

    def violation(self, x: Var) -> Tensor:
        return (self.a * x).sum(-1, keepdim=True) - self._beta

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return self.violation(y).abs() / self.a.norm(dim=-1, keepdim=True)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        square = self.a.square().sum(-1, keepdim=True)
        s = (self.a * y).sum(-1, keepdim=True) / square
        stray = (y - s * self.a).abs().amax(-1, keepdim=True)
        value = s * self._beta + indicator(torch.maximum(stray, -s))
        return sum_beyond(value, batch)


@register_prox(Halfspaces, Euclidean)
def _(g: Halfspaces, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    excess = g.violation(y)
    excess = torch.where(excess > 0, excess, torch.zeros_like(excess))
    return y - excess / g.a.square().sum(-1, keepdim=True) * g.a
