"""The Euclidean norm over several axes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var, square, sum_beyond
from legato.errors import InputError
from legato.functions.base import Function, indicator
from legato.functions.norms import require_one_each, root
from legato.functions.prox import register_prox
from legato.geometry import Euclidean

MOST_AXES = 16
"""More than a tensor of a problem ever has: the whole is coupled along all of its axes."""


@dataclass(frozen=True, eq=False, repr=False)
class L2Norm(Function):
    r"""The Euclidean norm, not squared, g(x) = w‖x‖₂, of the whole or over some axes.

    ``L2Norm(weight).shifted(y) @ A`` is the square-root lasso's data term. Along one axis it is
    :class:`GroupL1`. Its conjugate is the indicator of ‖p‖₂ ≤ w. At ties, ‖y‖ = αw > 0, the
    derivative of the prox is 0; where w = 0 it is that of y ↦ y, for y = 0 too.
    Reference: Parikh and Boyd (2014), Section 6.5.1.

    Args:
        weight: a number, or one for each norm: a tensor that broadcasts to the norms, which have
            size one along ``dims``.
        dims: axes that belong together, counted from the end; all of x if None.

    >>> x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    >>> lg.L2Norm()(x), lg.L2Norm().prox(x)
    (tensor(5.), tensor([[2.4000, 0.0000],
            [0.0000, 3.2000]]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    weight: Tensor | float = 1.0
    dims: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of L2Norm")
        if self.dims is not None and (not self.dims or any(d >= 0 for d in self.dims)):
            raise InputError(
                f"L2Norm counts its axes from the end, as in dims=(-2, -1), not {self.dims}."
            )

    def norms(self, x: Tensor) -> Tensor:
        """‖x‖ over ``dims``, which stay with size one."""
        axes = tuple(range(x.ndim)) if self.dims is None else self.dims
        norms = root(square(x).sum(axes, keepdim=True)) if axes else x.abs()
        require_one_each(self.weight, norms, "L2Norm: the weight")
        return norms

    def summands(self, x: Var) -> Tensor:
        return self.weight * self.norms(x)

    @property
    def coupled(self) -> int | None:
        return None if self.dims is None else -min(self.dims)

    def prox_couples(self) -> tuple[int, ...]:
        return tuple(range(-MOST_AXES, 0)) if self.dims is None else self.dims

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return (self.norms(y) - step * self.weight).abs()

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        return sum_beyond(indicator(self.norms(y) - self.weight), batch)


@register_prox(L2Norm, Euclidean)
def _(g: L2Norm, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    norms, threshold = g.norms(y), alpha * g.weight
    # A vector of norm 0 is kept if its weight is 0: nothing is taken from it.
    kept = ~(norms <= threshold) | (threshold == 0)
    ratio = threshold / torch.where(kept & (norms != 0), norms, torch.ones_like(norms))
    return y * torch.where(kept, 1 - ratio, torch.zeros_like(norms))
