"""Finite differences along any number of axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._tree import Var
from legato.errors import InputError
from legato.operators.base import Operator


@dataclass(frozen=True, eq=False)
class Gradient(Operator):
    r"""Forward differences along ``dims``, zero at the last entry, with optional weights.

    .. math:: (K u)_{k, i} = w_{k, i}\,(u_{i + e_k} − u_i), \quad 0 \text{ at the last } i
              \text{ along axis } k

    The axis of directions k is inserted before the first of the axes ``dims``: an image
    (…, H, W) becomes (…, 2, H, W). ``dims`` count from the end. ``weights`` broadcast to the
    result and may be learned. ‖K‖ ≤ 2·√(number of axes)·max|w|.
    Reference: Section 7.1 of Ochs et al. (2016).
    """

    dims: tuple[int, ...] = (-2, -1)
    weights: Tensor | float | None = None

    def __post_init__(self) -> None:
        if not self.dims or any(d >= 0 for d in self.dims):
            raise InputError(
                f"Gradient counts its axes from the end, as in dims=(-2, -1), not {self.dims}."
            )
        if len(set(self.dims)) != len(self.dims):
            raise InputError(f"Gradient needs distinct axes, not {self.dims}.")

    @property
    def _direction_axis(self) -> int:
        return min(self.dims) - 1

    def __call__(self, x: Var) -> Var:
        if x.ndim < -min(self.dims):
            raise InputError(
                f"Gradient along axes {self.dims} needs at least {-min(self.dims)} axes, "
                f"but x has shape {tuple(x.shape)}."
            )
        differences = [pad(torch.diff(x, dim=d), _padding(d, 0, 1)) for d in self.dims]
        # An axis of negative index refers to the result: inserting it before `min(dims)`.
        stacked = torch.stack(differences, dim=self._direction_axis)
        return stacked if self.weights is None else self.weights * stacked

    def adjoint(self, y: Var) -> Var:
        if self.weights is not None:
            y = self.weights * y
        parts = torch.unbind(y, dim=self._direction_axis)
        if len(parts) != len(self.dims):
            raise InputError(
                f"The adjoint of Gradient along {len(self.dims)} axes needs {len(self.dims)} "
                f"directions on axis {self._direction_axis}, but y has shape {tuple(y.shape)}."
            )
        total = None
        for d, part in zip(self.dims, parts, strict=True):
            inner = part.narrow(d, 0, part.shape[d] - 1)
            term = pad(inner, _padding(d, 1, 0)) - pad(inner, _padding(d, 0, 1))
            total = term if total is None else total + term
        return total

    @torch.no_grad()
    def norm(self, like: Var | None = None) -> Tensor:
        bound = 2 * math.sqrt(len(self.dims))
        if isinstance(self.weights, Tensor):
            return bound * self.weights.detach().abs().amax()
        scale = 1.0 if self.weights is None else abs(self.weights)
        return torch.tensor(bound * scale) if like is None else like.new_tensor(bound * scale)

    def absolute(self) -> Operator:
        if isinstance(self.weights, Tensor):
            return _Sums(self.dims, self.weights.detach().abs())
        return _Sums(self.dims, None if self.weights is None else abs(self.weights))


@dataclass(frozen=True, eq=False)
class _Sums(Gradient):
    """|K|: sums of neighbours in place of differences."""

    def __call__(self, x: Var) -> Var:
        sums = [
            pad(x.narrow(d, 0, x.shape[d] - 1) + x.narrow(d, 1, x.shape[d] - 1), _padding(d, 0, 1))
            for d in self.dims
        ]
        stacked = torch.stack(sums, dim=self._direction_axis)
        return stacked if self.weights is None else self.weights * stacked

    def adjoint(self, y: Var) -> Var:
        if self.weights is not None:
            y = self.weights * y
        total = None
        for d, part in zip(self.dims, torch.unbind(y, dim=self._direction_axis), strict=True):
            inner = part.narrow(d, 0, part.shape[d] - 1)
            term = pad(inner, _padding(d, 1, 0)) + pad(inner, _padding(d, 0, 1))
            total = term if total is None else total + term
        return total


def _padding(dim: int, before: int, after: int) -> tuple[int, ...]:
    """Arguments of torch's pad for one axis counted from the end."""
    return (0, 0) * (-dim - 1) + (before, after)
