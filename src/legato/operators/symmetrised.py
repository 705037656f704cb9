"""Differences of second order: of vector fields, and of images by way of their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

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
    ∂_k is minus the adjoint of the forward difference, and ‖K‖ ≤ 2√(number of axes).
    Reference: Bredies, Kunisch, Pock (2010), total generalised variation.

    >>> w = torch.zeros(2, 3, 3)
    >>> lg.SymmetrisedGradient()(w).shape
    torch.Size([3, 3, 3])
    """

    dims: tuple[int, ...] = (-2, -1)

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

    def _backward(self, t: Tensor, dim: int) -> Tensor:
        """−Dᵀ of the forward difference D along one axis."""
        return -Differences((dim,)).adjoint(t.unsqueeze(dim - 1))

    def _backward_adjoint(self, t: Tensor, dim: int) -> Tensor:
        return -Differences((dim,))(t).squeeze(dim - 1)

    def __call__(self, x: Var) -> Var:
        parts = self._components(x, len(self.dims), "")
        rows = [self._backward(w, dim) for w, dim in zip(parts, self.dims, strict=True)]
        for k, m in combinations(range(len(self.dims)), 2):
            mixed = self._backward(parts[m], self.dims[k]) + self._backward(parts[k], self.dims[m])
            rows.append(mixed / math.sqrt(2))
        return torch.stack(rows, self._axis)

    def adjoint(self, y: Var) -> Var:
        count = len(self.dims)
        rows = self._components(y, count * (count + 1) // 2, "The adjoint of ")
        found = [self._backward_adjoint(rows[k], self.dims[k]) for k in range(count)]
        for row, (k, m) in zip(rows[count:], combinations(range(count), 2), strict=True):
            half = row / math.sqrt(2)
            found[m] = found[m] + self._backward_adjoint(half, self.dims[k])
            found[k] = found[k] + self._backward_adjoint(half, self.dims[m])
        return torch.stack(found, self._axis)

    def norm(self, like: Var | None = None) -> Tensor:
        bound = 2 * math.sqrt(len(self.dims))
        return torch.tensor(bound) if like is None else real_like(like).new_full((), bound)


def SecondDifferences(dims: tuple[int, ...] = (-2, -1)) -> Operator:
    r"""All second differences of an image, an array of Hessians; ‖K‖ ≤ 4 · number of axes.

    .. math:: Kx = (∂_1∂_1 x,\; ∂_2∂_2 x,\; \sqrt 2\, ∂_1∂_2 x)

    Short for ``SymmetrisedGradient(dims) @ Differences(dims)``; an image (…, H, W) becomes
    (…, 3, H, W). ``GroupL1(w, dim=-3) @ SecondDifferences()`` penalises curvature, not slope.
    Reference: Lysaker, Lundervold, Tai (2003).

    >>> lg.SecondDifferences()
    SymmetrisedGradient() @ Differences()
    >>> lg.SecondDifferences((-1,))(torch.tensor([0.0, 1.0, 4.0, 9.0]))
    tensor([[ 1.,  2.,  2., -5.]])
    """
    return SymmetrisedGradient(dims) @ Differences(dims)
