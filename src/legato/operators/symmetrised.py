"""Differences of second order: of vector fields, and of images by way of their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._support.tree import Var, real_like
from legato.errors import InputError
from legato.operators.base import Operator
from legato.operators.differences import Differences
from legato.operators.sampling import require_trailing


@dataclass(frozen=True, eq=False, repr=False)
class SymmetrisedGradient(Operator):
    r"""The symmetric part of the derivative of a vector field, with backward differences.

    .. math:: (Kw)_{kk} = ∂_k w_k, \qquad (Kw)_{kl} = (∂_k w_l + ∂_l w_k)/\sqrt 2 \quad (k < l)

    A field (…, 2, H, W), as :class:`Differences` makes it, becomes (…, 3, H, W): the diagonal, then
    the others, weighted so that Euclidean norms along that axis are Frobenius norms of matrices.
    ∂_k is zero where a neighbour is missing, and w_k counts as missing at the end of axis k, where
    differences are zero for want of one: the derivative of a constant slope is 0 up to the edges.
    ‖K‖ ≤ 2√(number of axes).
    Reference: Bredies, Kunisch, Pock (2010), total generalised variation.

    >>> ramp = torch.tensor([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]])
    >>> lg.SymmetrisedGradient()(lg.Differences()(ramp)).shape
    torch.Size([3, 2, 3])
    >>> bool((lg.SymmetrisedGradient()(lg.Differences()(ramp)) == 0).all())
    True
    """

    dims: tuple[int, ...] = (-2, -1)
    _sign: ClassVar[int] = -1

    def __post_init__(self) -> None:
        require_trailing(self.dims, "SymmetrisedGradient")

    @property
    def coupled(self) -> tuple[int, int]:
        axes = 1 - min(self.dims)
        return axes, axes

    @property
    def _axis(self) -> int:
        """Of components, in front of those of the grid."""
        return min(self.dims) - 1

    def _components(self, t: Tensor, count: int, what: str) -> tuple[Tensor, ...]:
        if t.ndim < -self._axis or t.shape[self._axis] != count:
            raise InputError(
                f"{what}{self!r} needs {count} components on axis {self._axis}, but got shape "
                f"{tuple(t.shape)}."
            )
        return t.unbind(self._axis)

    def _derivative(self, w: Tensor, own: int, along: int) -> Tensor:
        """∂ along one axis of the component that belongs to the axis ``own``."""
        there = w.narrow(own, 0, w.shape[own] - 1)
        count = there.shape[along] - 1
        if count < 1:
            return torch.zeros_like(w)
        here, behind = there.narrow(along, 1, count), there.narrow(along, 0, count)
        change = torch.add(here, behind, alpha=self._sign)
        return _padded(_padded(change, along, 1, 0), own, 0, 1)

    def _derivative_adjoint(self, t: Tensor, own: int, along: int) -> Tensor:
        there = t.narrow(own, 0, t.shape[own] - 1)
        count = there.shape[along] - 1
        if count < 1:
            return torch.zeros_like(t)
        flow = there.narrow(along, 1, count)
        here, behind = _padded(flow, along, 1, 0), _padded(flow, along, 0, 1)
        return _padded(torch.add(here, behind, alpha=self._sign), own, 0, 1)

    def __call__(self, x: Var) -> Var:
        parts = self._components(x, len(self.dims), "")
        fields = list(zip(parts, self.dims, strict=True))
        rows = [self._derivative(w, dim, dim) for w, dim in fields]
        for (w, one), (v, other) in combinations(fields, 2):
            mixed = self._derivative(v, other, one) + self._derivative(w, one, other)
            rows.append(mixed / math.sqrt(2))
        return torch.stack(rows, self._axis)

    def adjoint(self, y: Var) -> Var:
        count = len(self.dims)
        rows = self._components(y, count * (count + 1) // 2, "The adjoint of ")
        dims = self.dims
        found = [self._derivative_adjoint(rows[k], dims[k], dims[k]) for k in range(count)]
        for row, (k, m) in zip(rows[count:], combinations(range(count), 2), strict=True):
            half = row / math.sqrt(2)
            found[m] = found[m] + self._derivative_adjoint(half, dims[m], dims[k])
            found[k] = found[k] + self._derivative_adjoint(half, dims[k], dims[m])
        return torch.stack(found, self._axis)

    def norm(self, like: Var | None = None) -> Tensor:
        bound = 2 * math.sqrt(len(self.dims))
        return torch.tensor(bound) if like is None else real_like(like).new_full((), bound)

    def absolute(self) -> Operator:
        return _SymmetrisedSums(self.dims)


class _SymmetrisedSums(SymmetrisedGradient):
    """|K|: sums with the neighbours in place of differences."""

    _sign = 1


def _padded(t: Tensor, dim: int, before: int, after: int) -> Tensor:
    """t with zeros in front and behind along an axis counted from the end."""
    return pad(t, (0, 0) * (-dim - 1) + (before, after))


def SecondDifferences(dims: tuple[int, ...] = (-2, -1)) -> Operator:
    r"""All second differences of an image, an array of Hessians; ‖K‖ ≤ 4 · number of axes.

    .. math:: Kx = (∂_1∂_1 x,\; ∂_2∂_2 x,\; \sqrt 2\, ∂_1∂_2 x)

    Short for ``SymmetrisedGradient(dims) @ Differences(dims)``; an image (…, H, W) becomes
    (…, 3, H, W). ``GroupL1(w, dim=-3) @ SecondDifferences()`` penalises curvature, not slope.
    Reference: Lysaker, Lundervold, Tai (2003).

    >>> lg.SecondDifferences()
    SymmetrisedGradient() @ Differences()
    >>> lg.SecondDifferences((-1,))(torch.tensor([0.0, 1.0, 4.0, 9.0]))
    tensor([[0., 2., 2., 0.]])
    """
    return SymmetrisedGradient(dims) @ Differences(dims)
