"""Finite differences on a grid, along axes or towards any neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato._support.checks import require_tensor_or_number
from legato._support.tree import Var, largest_over, real_like
from legato.errors import InputError
from legato.operators.base import Operator, conjugated, entrywise

Offset = tuple[int, ...]


class _Edges:
    """Where the edges along one offset start and end, as slices and as paddings back to size.

    ``both`` pads the flow on edges so far that ``arriving`` and ``leaving`` are slices of it, and
    an offset along one axis says which, and how far, so that all neighbours are two pieces put
    together: those that there are, and for the rest each entry itself.
    """

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
        self.both = [abs(step) for step in reversed(offset) for _ in range(2)]
        first = [slice(None, -abs(step) or None) for step in offset]
        last = [slice(abs(step), None) for step in offset]
        forth = [a if step > 0 else b for step, a, b in zip(offset, first, last, strict=True)]
        back = [b if step > 0 else a for step, a, b in zip(offset, first, last, strict=True)]
        self.arriving, self.leaving = (..., *forth), (..., *back)
        moves = [d for d, step in enumerate(offset) if step]
        self.axis, self.step = moves[0] - len(offset), offset[moves[0]]
        self.straight = len(moves) == 1

    def neighbours(self, x: Tensor) -> Tensor:
        """x_{i + o}, and x_i where that lies outside; along one axis."""
        size = x.shape[self.axis]
        if self.step > 0:
            parts = (
                x.narrow(self.axis, self.step, size - self.step),
                x.narrow(self.axis, size - self.step, self.step),
            )
        else:
            parts = x.narrow(self.axis, 0, -self.step), x.narrow(self.axis, 0, size + self.step)
        return torch.cat(parts, self.axis)


@dataclass(frozen=True, eq=False, repr=False)
class Differences(Operator):
    r"""Finite differences on a grid, zero where the neighbour lies outside, with optional weights.

    .. math:: (K u)_{k, i} = w_{k, i}\,(u_{i + o_k} − u_i)

    An image (…, H, W) becomes (…, 2, H, W): the axis of directions k is inserted before the grid's
    axes. ‖K‖ ≤ 2·√(number of directions)·max|w|.

    Args:
        dims: axes along which to take forward differences, counted from the end.
        weights: a number, or a tensor that broadcasts to the result; may be learned. Of either
            sign: norms of Ku are even in them, so that at exactly 0 their derivatives are 0, the
            mean of both sides. A weight that may reach 0 belongs to the norm, as in
            ``L1(w) @ Differences()``, which has the one-sided derivative there.
        offsets: neighbours o_k instead of axes; ``((1, 0), (0, 1), (1, 1), (1, -1))`` is the
            8-neighbourhood of an image.

    Reference: Section 8.1 of Ochs et al. (2016).

    >>> lg.Differences()(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
    tensor([[[3., 6.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 0.],
             [4., 0.]]])
    >>> lg.Differences(dims=(-1,))(torch.tensor([1.0, 4.0, 9.0]))
    tensor([[3., 5., 0.]])
    >>> lg.Differences(offsets=((1,), (2,)))(torch.tensor([1.0, 2.0, 4.0]))
    tensor([[1., 2., 0.],
            [3., 0., 0.]])
    """

    dims: tuple[int, ...] = (-2, -1)
    weights: Tensor | float | None = None
    offsets: tuple[Offset, ...] | None = None
    _sign: ClassVar[int] = -1
    _offsets: tuple[Offset, ...] = field(init=False)
    _edges: tuple[_Edges, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.weights is not None:
            require_tensor_or_number(self.weights, "The weights of Differences")
        offsets = self._along_axes() if self.offsets is None else self.offsets
        lengths = {len(o) for o in offsets}
        if len(lengths) != 1 or any(not any(o) for o in offsets):
            raise InputError(
                "Differences needs at least one offset, all of the same length and none zero, not "
                f"{offsets}."
            )
        # What every call needs is worked out once.
        object.__setattr__(self, "_offsets", offsets)
        object.__setattr__(self, "_edges", tuple(_Edges(offset) for offset in offsets))

    def _along_axes(self) -> tuple[Offset, ...]:
        if not isinstance(self.dims, tuple | list):
            raise InputError(
                f"Differences takes a tuple of axes, as in dims=(-1,), not {self.dims!r}."
            )
        if not self.dims or any(d >= 0 for d in self.dims):
            raise InputError(
                f"Differences counts its axes from the end, as in dims=(-2, -1), not {self.dims}."
            )
        if len(set(self.dims)) != len(self.dims):
            raise InputError(f"Differences needs distinct axes, not {self.dims}.")
        axes = -min(self.dims)
        return tuple(tuple(int(a - axes == d) for a in range(axes)) for d in self.dims)

    @property
    def coupled(self) -> tuple[int, int]:
        return self._axes, self._axes + 1

    @property
    def _axes(self) -> int:
        return len(self._offsets[0])

    def __call__(self, x: Var) -> Var:
        if x.ndim < self._axes:
            raise InputError(
                f"{self!r} needs at least {self._axes} axes, but x has shape {tuple(x.shape)}."
            )
        self._require_room(x)
        # A negative index refers to the result: the directions come before the spatial axes.
        axis = -self._axes - 1
        if self._sign < 0 and all(edges.straight for edges in self._edges):
            there = torch.stack([edges.neighbours(x) for edges in self._edges], dim=axis)
            stacked = there - x.unsqueeze(axis)
        else:
            differences = []
            for edges in self._edges:
                here, there = x[edges.tails], x[edges.tips]
                change = there - here if self._sign < 0 else there + here
                differences.append(pad(change, edges.to_tails))
            stacked = torch.stack(differences, dim=axis)
        return stacked if self.weights is None else entrywise(self, self.weights, stacked)

    def adjoint(self, y: Var) -> Var:
        if y.ndim <= self._axes:
            raise InputError(
                f"The adjoint of {self!r} needs at least {self._axes + 1} axes, of which the first "
                f"are directions, but y has shape {tuple(y.shape)}."
            )
        self._require_room(y)
        if self.weights is not None:
            y = entrywise(self, conjugated(self.weights), y)
        parts = torch.unbind(y, dim=-self._axes - 1)
        if len(parts) != len(self._offsets):
            raise InputError(
                f"The adjoint of {self!r} needs {len(self._offsets)} directions on axis "
                f"{-self._axes - 1}, but y has shape {tuple(y.shape)}."
            )
        total = None
        for edges, part in zip(self._edges, parts, strict=True):
            flow = pad(part[edges.tails], edges.both)
            arriving, leaving = flow[edges.arriving], flow[edges.leaving]
            term = arriving - leaving if self._sign < 0 else arriving + leaving
            total = term if total is None else total + term
        return total

    def _require_room(self, x: Var) -> None:
        grid = x.shape[-self._axes :]
        if any(abs(s) > n for o in self._offsets for s, n in zip(o, grid, strict=True)):
            raise InputError(
                f"The offsets {self._offsets} reach beyond a grid of shape {tuple(x.shape)}."
            )

    def norm(self, like: Var | None = None) -> Tensor:
        bound = 2 * math.sqrt(len(self._offsets))
        if isinstance(self.weights, Tensor):
            return bound * largest_over(self.weights.abs(), self._axes + 1)
        scale = 1.0 if self.weights is None else abs(self.weights)
        if like is None:
            return torch.tensor(bound * scale)
        return real_like(like).new_full((), bound * scale)

    def absolute(self) -> Operator:
        weights = self.weights
        if weights is not None:
            weights = weights.abs() if isinstance(weights, Tensor) else abs(weights)
        return _Sums(weights=weights, offsets=self._offsets)


class _Sums(Differences):
    """|K|: sums with the neighbours in place of differences."""

    _sign = 1
