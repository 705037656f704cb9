"""The number of non-zero entries: a penalty with a prox that is not convex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative
from legato._support.tree import Var
from legato.functions.base import Function
from legato.functions.prox import register_prox
from legato.geometry import Euclidean


@dataclass(frozen=True, eq=False, repr=False)
class L0(Function):
    r"""The weighted number of non-zero entries, g(x) = Σ w_i [x_i ≠ 0], for optimisers only.

    .. math:: \mathrm{prox}_{αg}(y) = y · [y² > 2αw]

    Where y² = 2αw, prox and derivative are 0; in w there is none.
    Not convex: use it with :class:`~legato.optim.NonConvexStep` or a small constant step.
    Reference: Blumensath, Davies (2008).

    >>> legato.functions.L0(1.0).value(torch.tensor([0.0, 2.0, -3.0]))
    tensor(2.)
    """

    weight: Tensor | float = 1.0
    convex: ClassVar[bool] = False
    of_moduli: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_nonnegative(self.weight, "The weight of L0")

    def summands(self, x: Var) -> Tensor:
        size = x.abs()
        return self.weight * torch.where(size.isnan(), size, (size != 0).to(size.dtype))

    @property
    def coupled(self) -> int:
        return 0


@register_prox(L0, Euclidean)
def _(g: L0, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    # Asked this way round, NaN stays NaN.
    return torch.where(y * y <= 2 * alpha * g.weight, torch.zeros_like(y), y)
