"""A geometry for tuples of variables, one geometry a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import as_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.geometry.base import Geometry


class Product(Geometry):
    r"""The sum of geometries over the blocks of a tuple.

    .. math:: ψ(x_1, …, x_k) = ψ_1(x_1) + … + ψ_k(x_k)

    >>> psi = lg.Product(lg.Euclidean(), lg.Entropy())
    >>> psi.value((torch.tensor([2.0]), torch.tensor([1.0])))
    tensor(2.)
    """

    def __init__(self, *blocks: Geometry) -> None:
        if not blocks:
            raise InputError("Product needs at least one geometry.")
        self.blocks = blocks

    def _each(self, call: Callable[..., Any], *args: Var) -> tuple[Any, ...]:
        for arg in args:
            if not isinstance(arg, tuple) or len(arg) != len(self.blocks):
                raise InputError(
                    f"{self!r} acts on tuples of {len(self.blocks)} variables, not on "
                    f"{type(arg).__name__}{f' of {len(arg)}' if isinstance(arg, tuple) else ''}."
                )
        return tuple(call(block, *parts) for block, *parts in zip(self.blocks, *args, strict=True))

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    def values(self, x: Var, batch: int) -> Tensor:
        return torch.stack(self._each(lambda g, x: g.values(x, batch), x)).sum(0)

    def modulus(self, bounds: tuple[Any, ...]) -> Tensor | float | None:
        pairs = bounds if isinstance(bounds[0], tuple) else (bounds,) * len(self.blocks)
        moduli = self._each(lambda g, pair: g.modulus(pair), pairs)
        return None if None in moduli else min(moduli, key=as_number)

    def mirror(self, x: Var) -> Var:
        return self._each(lambda g, x: g.mirror(x), x)

    def unmirror(self, y: Var) -> Var:
        return self._each(lambda g, y: g.unmirror(y), y)

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        return torch.stack(self._each(lambda g, x, z: g.distances(x, z, batch), x, z)).sum(0)

    def interior(self, x: Var) -> Tensor:
        return torch.stack(self._each(lambda g, x: g.interior(x).all(), x))

    def mirror_interior(self, y: Var) -> Tensor:
        return torch.stack(self._each(lambda g, y: g.mirror_interior(y).all(), y))

    def centre(self, like: Var) -> Var:
        return self._each(lambda g, t: g.centre(t), like)

    def metric(self, y: Var, v: Var) -> Var:
        return self._each(lambda g, y, v: g.metric(y, v), y, v)

    def inverse_metric(self, y: Var, v: Var) -> Var:
        return self._each(lambda g, y, v: g.inverse_metric(y, v), y, v)

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        return self._each(lambda g, b, a, w: g.transport(b, a, w), before, after, w)

    def attach_drift(self, before: Var, after: Var) -> Var:
        return self._each(lambda g, b, a: g.attach_drift(b, a), before, after)

    def require_interior(self, x: Var, name: str = "x0") -> None:
        self._each(lambda g, i, t: g.require_interior(t, f"{name}[{i}]"), tuple(range(len(x))), x)

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.blocks))})"
