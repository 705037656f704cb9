"""Functions of the singular values of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function
from legato.functions.norms import require_one_each
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator
from legato.functions.singular_values import soft_threshold_singular_values
from legato.geometry import Euclidean


def _require_matrices(g: Function, x: Tensor, weight: Any) -> None:
    if x.ndim < 2:
        raise InputError(
            f"{g!r} takes matrices, the last two axes of x, but x has shape {tuple(x.shape)}."
        )
    require_one_each(weight, x[..., :1, :1], f"{type(g).__name__}: the weight")


@dataclass(frozen=True, eq=False, repr=False)
class Nuclear(Function):
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
        _require_matrices(self, x, self.weight)
        return self.weight * _singular_values(x).sum(-1)[..., None, None]

    @property
    def coupled(self) -> int:
        return 2

    def prox_couples(self) -> tuple[int, ...]:
        return (-2, -1)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (_singular_values(y)[..., None, :] - step * self.weight).abs()

    def make_conjugate(self) -> Function:
        return SpectralBall(self.weight)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralBall(Indicator):
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
        _require_matrices(self, x, self.radius)
        return _singular_values(x)[..., None, :1] - self.radius

    @property
    def coupled(self) -> int:
        return 2

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def prox_couples(self) -> tuple[int, ...]:
        return (-2, -1)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (_singular_values(y)[..., None, :] - self.radius).abs()

    def make_conjugate(self) -> Function:
        return Nuclear(self.radius)


def _singular_values(x: Tensor) -> Tensor:
    """Of each matrix, the largest first; NaN where an entry is no number, which LAPACK refuses."""
    broken = ~torch.isfinite(x).all((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(torch.where(broken, 0.0, x))
    return torch.where(broken[..., 0], torch.nan, values)


@register_prox(Nuclear, Euclidean)
def _(g: Nuclear, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    _require_matrices(g, y, g.weight)
    return soft_threshold_singular_values(y, alpha * g.weight)


@register_prox(SpectralBall, Euclidean)
def _(g: SpectralBall, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    _require_matrices(g, y, g.radius)
    return y - soft_threshold_singular_values(y, g.radius)  # Moreau's identity
