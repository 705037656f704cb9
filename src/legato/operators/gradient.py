"""Finite differences on a grid: along axes, or towards any neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._tree import Var
from legato.errors import InputError
from legato.operators.base import Operator

Offset = tuple[int, ...]


class _Edges:
    """Where the edges along one offset start and end, as slices and as paddings back to size."""

    def __init__(self, offset: Offset) -> None:
        ahead = tuple(
            slice(step, None) if step > 0 else slice(None, step or None) for step in offset
        )
        behind = tuple(
            slice(None, -step) if step > 0 else slice(-step or None, None) for step in offset
        )
        self.tails, self.tips = (..., *behind), (..., *ahead)
        self.to_tails = [p for step in reversed(offset) for p in (max(-step, 0), max(step, 0))]
        self.to_tips = [p for step in reversed(offset) for p in (max(step, 0), max(-step, 0))]


class _GridDifferences(Operator):
    """What all finite differences share; ``_sign`` is +1 for the sums that bound |K|."""

    weights: Tensor | float | None
    _sign: ClassVar[int] = -1
    _offsets: tuple[Offset, ...]
    _edges: tuple[_Edges, ...]

    def _prepare(self, offsets: tuple[Offset, ...]) -> None:
        """Work out once what every call needs."""
        object.__setattr__(self, "_offsets", offsets)
        object.__setattr__(self, "_edges", tuple(_Edges(offset) for offset in offsets))

    @property
    def _axes(self) -> int:
        return len(self._offsets[0])

    def __call__(self, x: Var) -> Var:
        if x.ndim < self._axes:
            raise InputError(
                f"{self!r} needs at least {self._axes} axes, but x has shape {tuple(x.shape)}."
            )
        differences = []
        for edges in self._edges:
            here, there = x[edges.tails], x[edges.tips]
            change = there - here if self._sign < 0 else there + here
            differences.append(pad(change, edges.to_tails))
        # A negative index refers to the result: the directions come before the spatial axes.
        try:
            stacked = torch.stack(differences, dim=-self._axes - 1)
        except RuntimeError:
            raise InputError(
                f"The offsets {self._offsets} reach beyond a grid of shape {tuple(x.shape)}."
            ) from None
        return stacked if self.weights is None else self.weights * stacked

    def adjoint(self, y: Var) -> Var:
        if self.weights is not None:
            y = self.weights * y
        parts = torch.unbind(y, dim=-self._axes - 1)
        if len(parts) != len(self._offsets):
            raise InputError(
                f"The adjoint of {self!r} needs {len(self._offsets)} directions on axis "
                f"{-self._axes - 1}, but y has shape {tuple(y.shape)}."
            )
        total = None
        for edges, part in zip(self._edges, parts, strict=True):
            flow = part[edges.tails]
            arriving, leaving = pad(flow, edges.to_tips), pad(flow, edges.to_tails)
            term = arriving - leaving if self._sign < 0 else arriving + leaving
            total = term if total is None else total + term
        return total

    @torch.no_grad()
    def norm(self, like: Var | None = None) -> Tensor:
        bound = 2 * math.sqrt(len(self._offsets))
        if isinstance(self.weights, Tensor):
            return bound * self.weights.detach().abs().amax()
        scale = 1.0 if self.weights is None else abs(self.weights)
        return torch.tensor(bound * scale) if like is None else like.new_tensor(bound * scale)

    def absolute(self) -> Operator:
        weights = self.weights
        if weights is not None:
            weights = weights.detach().abs() if isinstance(weights, Tensor) else abs(weights)
        return _Sums(self._offsets, weights)


@dataclass(frozen=True, eq=False)
class Gradient(_GridDifferences):
    r"""Forward differences along ``dims``, zero at the last entry, with optional weights.

    .. math:: (K u)_{k, i} = w_{k, i}\,(u_{i + e_k} − u_i), \quad 0 \text{ at the last } i
              \text{ along axis } k

    The axis of directions k is inserted before the first of the axes ``dims``: an image
    (…, H, W) becomes (…, 2, H, W). ``dims`` count from the end. ``weights`` broadcast to the
    result and may be learned. ‖K‖ ≤ 2·√(number of axes)·max|w|.
    Reference: Section 7.1 of Ochs et al. (2016).

    >>> lg.Gradient()(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    tensor([[[3., 6.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 0.],
             [4., 0.]]])
    >>> lg.Gradient(dims=(-1,))(torch.tensor([1.0, 4.0, 9.0]))
    tensor([[3., 5., 0.]])
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
        axes = -min(self.dims)
        self._prepare(tuple(tuple(int(a - axes == d) for a in range(axes)) for d in self.dims))


@dataclass(frozen=True, eq=False)
class Differences(_GridDifferences):
    r"""Differences to the neighbours at given ``offsets``, zero where these lie outside the grid.

    .. math:: (K u)_{k, i} = w_{k, i}\,(u_{i + o_k} − u_i)

    ``offsets=((1, 0), (0, 1), (1, 1), (1, -1))`` is the 8-neighbourhood of an image (…, H, W), with
    result (…, 4, H, W). ‖K‖ ≤ 2·√(number of offsets)·max|w|. Reference: Boykov and Kolmogorov
    (2003), metrication.

    >>> K = lg.Differences(((1,), (2,)))
    >>> K(torch.tensor([1.0, 2.0, 4.0]))
    tensor([[1., 2., 0.],
            [3., 0., 0.]])
    """

    offsets: tuple[Offset, ...]
    weights: Tensor | float | None = None

    def __post_init__(self) -> None:
        lengths = {len(o) for o in self.offsets}
        if len(lengths) != 1 or any(not any(o) for o in self.offsets):
            raise InputError(
                "Differences needs at least one offset, all of the same length and none zero, not "
                f"{self.offsets}."
            )
        self._prepare(self.offsets)


class _Sums(Differences):
    """|K|: sums with the neighbours in place of differences."""

    _sign = 1
