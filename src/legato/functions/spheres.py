"""Spheres, the points at one distance from 0: sets that are not convex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.tree import Var, product
from legato.errors import InputError
from legato.functions.axes import AlongAxis
from legato.functions.nonconvex import require_above
from legato.functions.norms import group_norms, require_one_each
from legato.functions.prox import register_prox
from legato.functions.sets import Indicator, Simplex
from legato.geometry import Euclidean


class _Sphere(AlongAxis, Indicator):
    """One norm along ``dim`` is the radius; g only, without momentum, and minimisers are local."""

    convex: ClassVar[bool] = False

    radius: Tensor | float

    def __post_init__(self) -> None:
        require_above(self.radius, 0.0, f"The radius of {type(self).__name__}")

    def norms(self, x: Tensor) -> Tensor:
        """The norm along ``dim``, which stays with size one."""
        raise NotImplementedError

    def violation(self, x: Var) -> Tensor:
        self.require_axis(x)
        return (self.norms(x) - self.radius).abs()

    def bounds(self) -> tuple[Any, Any]:
        return -self.radius, self.radius

    def require_axis(self, x: Tensor) -> None:
        if x.ndim == 0:
            raise InputError(f"{self!r} needs an axis, but x has shape (): it is one number.")
        require_one_each(
            self.radius, x.narrow(self.dim, 0, 1), f"{type(self).__name__}: the radius"
        )


@dataclass(frozen=True, eq=False, repr=False)
class L2Sphere(_Sphere):
    r"""The indicator of ‖x‖₂ = radius along ``dim``, a set that is not convex.

    .. math:: \mathrm{prox}(y) = r\, y/‖y‖

    A solver finds a stationary point. Of y = 0 all points are nearest: it takes (r, 0, …, 0), with
    derivative 0. Reference: Absil, Mahony, Sepulchre (2008).

    >>> legato.functions.L2Sphere(10.0).prox(torch.tensor([3.0, 4.0]))
    tensor([6., 8.])
    """

    takes_complex: ClassVar[bool] = True

    radius: Tensor | float = 1.0
    dim: int = -1

    def norms(self, x: Tensor) -> Tensor:
        return group_norms(x, self.dim)

    def range_projector(self, y: Var) -> Callable[[Var], Var]:
        norms = self.norms(y)
        n = torch.where(norms > 0, y / torch.where(norms > 0, norms, 1.0), torch.zeros_like(y))
        return lambda v: (norms > 0) * (v - n * product(n, v).sum(self.dim, keepdim=True))


@dataclass(frozen=True, eq=False, repr=False)
class L1Sphere(_Sphere):
    r"""The indicator of ‖x‖₁ = radius along ``dim``, a set that is not convex.

    .. math:: \mathrm{prox}(y)_i = ± \max(|y_i| − τ, 0), \qquad \sum_i \max(|y_i| − τ, 0) = r

    A solver finds a stationary point. Inside, τ is negative: entries grow, those that are 0 towards
    positive numbers, though both are as near.
    Reference: Duchi, Shalev-Shwartz, Singer, Chandra (2008) for τ.

    >>> legato.functions.L1Sphere(2.0).prox(torch.tensor([[3.0, -2.0], [0.5, -0.5]]))
    tensor([[ 1.5000, -0.5000],
            [ 1.0000, -1.0000]])
    """

    radius: Tensor | float = 1.0
    dim: int = -1

    def norms(self, x: Tensor) -> Tensor:
        return x.abs().sum(self.dim, keepdim=True)


@register_prox(L2Sphere, Euclidean)
def _(g: L2Sphere, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    g.require_axis(y)
    norms = g.norms(y)
    zero = norms == 0
    first = torch.zeros_like(y)
    first.narrow(g.dim, 0, 1).fill_(1.0)
    return g.radius * torch.where(zero, first, y / torch.where(zero, 1.0, norms))


@register_prox(L1Sphere, Euclidean)
def _(g: L1Sphere, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    g.require_axis(y)
    side = torch.where(y.detach() < 0, -1.0, 1.0).to(y.dtype)
    return g.radius * side * Simplex(g.dim).prox(side * y / g.radius)
