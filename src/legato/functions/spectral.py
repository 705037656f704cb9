"""Functions of the singular values of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.axes import OfMatrices
from legato.functions.base import Function
from legato.functions.largest import l1_kinks
from legato.functions.levels import level
from legato.functions.norms import require_one_each
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.functions.singular_values import leading_directions, soft_threshold_singular_values
from legato.geometry import Euclidean


def require_matrices(g: Function, x: Tensor, weight: Any = 1.0) -> None:
    """Refuse vectors, and weights that are not one for each matrix."""
    if x.ndim < 2:
        raise InputError(
            f"{g!r} takes matrices, the last two axes of x, but x has shape {tuple(x.shape)}."
        )
    require_one_each(weight, x[..., :1, :1], f"{type(g).__name__}: the weight")


@dataclass(frozen=True, eq=False, repr=False)
class Nuclear(OfMatrices):
    r"""The nuclear norm of matrices, the last two axes of x: the sum of their singular values.

    .. math:: g(x) = w \sum_i σ_i(x)

    Its conjugate is :class:`SpectralBall`. At ties, σ_i = αw > 0, the derivative of the prox is 0
    along that singular value; where w = 0 it is that of y ↦ y.
    Reference: Cai, Candès, Shen (2010), singular value thresholding.

    >>> lg.Nuclear().prox(torch.tensor([[3.0, 0.0], [0.0, -0.5]]))
    tensor([[2., 0.],
            [0., 0.]])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of Nuclear")

    def summands(self, x: Var) -> Tensor:
        require_matrices(self, x, self.weight)
        return self.weight * singular_values(x).sum(-1)[..., None, None]

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (singular_values(y)[..., None, :] - step * self.weight).abs()

    def make_conjugate(self) -> Function:
        return SpectralBall(self.weight)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralBall(OfMatrices, Indicator):
    r"""The indicator of matrices, the last two axes of x, with singular values at most the radius.

    .. math:: σ_1(x) ≤ r

    Its conjugate is :class:`Nuclear`. At ties, σ_i = r > 0, the derivative of the projection is
    that inside; where the radius is 0 it is 0 in y.
    Reference: Parikh and Boyd (2014), Section 6.7.3.

    >>> lg.SpectralBall().prox(torch.tensor([[3.0, 0.0], [0.0, -0.5]]))
    tensor([[ 1.0000,  0.0000],
            [ 0.0000, -0.5000]])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("radius",)
    takes_complex: ClassVar[bool] = True

    radius: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of SpectralBall")

    def violation(self, x: Var) -> Tensor:
        require_matrices(self, x, self.radius)
        return singular_values(x)[..., None, :1] - self.radius

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (singular_values(y)[..., None, :] - self.radius).abs()

    def make_conjugate(self) -> Function:
        return Nuclear(self.radius)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralNorm(OfMatrices):
    r"""The largest singular value of matrices, the last two axes of x.

    .. math:: g(x) = w\, σ_1(x)

    Its conjugate is :class:`NuclearBall`. At ties, where a singular value is just not cut, the
    derivative of the prox is 1 along it; where Σσ_i = αw > 0 it is 0; where w = 0 it is that of
    y ↦ y. Reference: Parikh and Boyd (2014), Section 6.7.3.

    >>> lg.SpectralNorm().prox(torch.tensor([[3.0, 0.0], [0.0, -0.5]]))
    tensor([[ 2.0000,  0.0000],
            [ 0.0000, -0.5000]])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    weight: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of SpectralNorm")

    def summands(self, x: Var) -> Tensor:
        require_matrices(self, x, self.weight)
        return self.weight * singular_values(x)[..., None, :1]

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return l1_kinks(singular_values(y)[..., None, :], step * self.weight, -1)

    def make_conjugate(self) -> Function:
        return NuclearBall(self.weight)


@dataclass(frozen=True, eq=False, repr=False)
class NuclearBall(OfMatrices, Indicator):
    r"""The indicator of matrices, the last two axes of x, with a nuclear norm of at most a radius.

    .. math:: \sum_i σ_i(x) ≤ r

    Its conjugate is :class:`SpectralNorm`. At ties, where the projection just sets a singular value
    to 0, its derivative lets it stay 0; where Σσ_i = r > 0 it is the identity; where the radius is
    0 it is 0 in y. Reference: Parikh and Boyd (2014), Section 6.7.3.

    >>> lg.NuclearBall(2.0).prox(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
    tensor([[ 1.5000,  0.0000],
            [ 0.0000, -0.5000]])
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("radius",)
    takes_complex: ClassVar[bool] = True

    radius: Tensor | float = 1.0

    def __post_init__(self) -> None:
        require_nonnegative(self.radius, "The radius of NuclearBall")

    def violation(self, x: Var) -> Tensor:
        require_matrices(self, x, self.radius)
        return singular_values(x).sum(-1)[..., None, None] - self.radius

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return l1_kinks(singular_values(y)[..., None, :], self.radius, -1)

    def make_conjugate(self) -> Function:
        return SpectralNorm(self.radius)


def singular_values(x: Tensor) -> Tensor:
    """Of each matrix, the largest first; NaN where an entry is no number, which LAPACK refuses."""
    broken = ~torch.isfinite(x).all((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(torch.where(broken, 0.0, x))
    return torch.where(broken[..., 0], torch.nan, values)


@register_prox(Nuclear, Euclidean)
def _(g: Nuclear, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y, g.weight)
    return soft_threshold_singular_values(y, alpha * g.weight)


@register_prox(SpectralBall, Euclidean)
def _(g: SpectralBall, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y, g.radius)
    return y - soft_threshold_singular_values(y, g.radius)  # Moreau's identity


@register_prox(SpectralNorm, Euclidean)
def _(g: SpectralNorm, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y, g.weight)
    return y - _within(y, alpha * g.weight)  # Moreau's identity


@register_prox(NuclearBall, Euclidean)
def _(g: NuclearBall, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    require_matrices(g, y, g.radius)
    return _within(y, g.radius)


def _within(y: Tensor, radius: Any) -> Tensor:
    """Soft thresholding of singular values by the level that leaves the radius, outside of it."""
    sizes = singular_values(y)[..., None, :]
    radius = torch.as_tensor(radius, dtype=sizes.dtype, device=y.device)
    _, mean, count = level(sizes, radius, -1)
    outside = sizes.sum(-1, keepdim=True) > radius
    # Inside, a threshold of 0 takes nothing away.
    threshold = torch.where(outside, mean - radius / count, torch.zeros_like(mean))
    shrunk = soft_threshold_singular_values(y, threshold)
    # A ball of radius 0 has no inside to move in; with the radius it grows along the largest.
    return torch.where(radius > 0, shrunk, radius / count * leading_directions(y).detach())
