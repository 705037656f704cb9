"""The number of entries that are not 0, as a penalty, and a limit on it, or on that of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.checks import require_nonnegative, require_whole
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.axes import AlongAxis, coupled_along
from legato.functions.base import Function
from legato.functions.norms import group_norms
from legato.functions.prox import register_prox
from legato.functions.shapes import most_coupled
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


class _AtMost(AlongAxis):
    """A limit on how many sizes along ``dim`` are not 0."""

    convex: ClassVar[bool] = False

    count: int
    dim: int

    def __post_init__(self) -> None:
        require_whole(self.count, f"The count of {type(self).__name__}", least=0)

    def sizes(self, x: Tensor) -> Tensor:
        """Of what is counted, against x."""
        raise NotImplementedError

    def summands(self, x: Var) -> Tensor:
        size = self.sizes(x)
        more = (size != 0).sum(self.dim, keepdim=True) > self.count
        rest = 0 * size.detach().sum(self.dim, keepdim=True)  # which keeps NaN
        return torch.where(more & ~rest.isnan(), torch.inf, rest)


@dataclass(frozen=True, eq=False, repr=False)
class L0Ball(_AtMost):
    r"""The indicator of at most ``count`` entries along ``dim`` that are not 0.

    .. math:: \mathrm{prox}(y) = \text{the } k \text{ largest } |y_i|, \text{ 0 elsewhere}

    Not convex: with :class:`~legato.ForwardBackward` it is iterative hard thresholding, which finds
    a stationary point. At ties, where several are the k-th largest, the first of them are kept.
    Reference: Blumensath, Davies (2008).

    >>> legato.functions.L0Ball(2).prox(torch.tensor([1.0, -3.0, 2.0]))
    tensor([ 0., -3.,  2.])
    """

    of_moduli: ClassVar[bool] = True

    count: int
    dim: int = -1

    def sizes(self, x: Tensor) -> Tensor:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        return x.abs()


@dataclass(frozen=True, eq=False, repr=False)
class GroupL0Ball(_AtMost):
    r"""The indicator of at most ``count`` groups along ``dim`` that are not 0.

    .. math:: \mathrm{prox}(y) = \text{the } k \text{ groups of largest } ‖y_G‖, \text{ 0 elsewhere}

    A group is what lies along ``group_dim``: of a matrix, by default, a column, so that at most
    ``count`` columns are kept. Not convex: a solver finds a stationary point. At ties, where
    several are the k-th largest, the first of them are kept.
    Reference: Baraniuk, Cevher, Duarte, Hegde (2010).

    Args:
        count: a whole number.
        dim: the axis along which groups are counted.
        group_dim: the axis along which the entries of one group lie.

    >>> legato.functions.GroupL0Ball(1).prox(torch.tensor([[1.0, 3.0, 2.0], [1.0, 0.0, 3.0]]))
    tensor([[0., 0., 2.],
            [0., 0., 3.]])
    """

    takes_complex: ClassVar[bool] = True

    count: int
    dim: int = -1
    group_dim: int = -2

    @property
    def coupled(self) -> int | None:
        return most_coupled(map(coupled_along, self.prox_couples()))

    def prox_couples(self) -> tuple[int, ...]:
        return self.dim, self.group_dim

    def sizes(self, x: Tensor) -> Tensor:
        axes = {axis + x.ndim if axis < 0 else axis for axis in (self.dim, self.group_dim)}
        if len(axes) < 2 or not axes <= set(range(x.ndim)):
            raise InputError(
                f"{self!r} needs two axes, dim of the groups and group_dim of their entries, but x "
                f"has shape {tuple(x.shape)}."
            )
        return group_norms(x, self.group_dim)


@register_prox(_AtMost, Euclidean)
def _(g: _AtMost, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    size = torch.nan_to_num(g.sizes(y).detach(), nan=torch.inf)  # NaN is kept
    order = size.argsort(dim=g.dim, descending=True, stable=True)
    kept = order.narrow(g.dim, 0, min(g.count, y.shape[g.dim]))
    mask = torch.zeros_like(size, dtype=torch.bool).scatter(g.dim, kept, True)
    return torch.where(mask, y, torch.zeros_like(y))
