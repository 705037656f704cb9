"""One function for each block of a tuple of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from legato._support.checks import as_number
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions.base import Function


class Separable(Function):
    r"""One function for each block of a tuple.

    .. math:: g(x_1, …, x_k) = g_1(x_1) + … + g_k(x_k)

    Goes with :class:`~legato.Product` and :class:`~legato.Stack`; at ties each block keeps its own
    convention. Reference: Condat (2013).

    >>> g = lg.Separable(lg.NonNegative(), lg.L1(1.0))
    >>> g.prox((torch.tensor([-1.0]), torch.tensor([3.0])))
    (tensor([0.]), tensor([2.]))
    """

    def __init__(self, *blocks: Function) -> None:
        if not blocks:
            raise InputError("Separable needs at least one function.")
        self.blocks = blocks

    def paired(self, x: Var) -> list[tuple[Function, Var]]:
        """Each function with its block."""
        if not isinstance(x, tuple) or len(x) != len(self.blocks):
            got = f"{len(x)}" if isinstance(x, tuple) else f"a {type(x).__name__}"
            raise InputError(
                f"{self!r} takes a tuple of {len(self.blocks)} blocks, one for each function, but "
                f"got {got}."
            )
        return list(zip(self.blocks, x, strict=True))

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    def values(self, x: Var, batch: int) -> Tensor:
        parts = [g.values(part, batch) for g, part in self.paired(x)]
        return sum(parts[1:], start=parts[0])

    def start(self) -> Var | None:
        parts = tuple(block.start() for block in self.blocks)
        return None if any(p is None for p in parts) else parts

    def bounds(self) -> tuple[Any, ...]:
        return tuple(block.bounds() for block in self.blocks)

    @property
    def is_smooth(self) -> bool:
        return all(block.is_smooth for block in self.blocks)

    def grad(self, x: Var) -> Var:
        return tuple(g.grad(part) for g, part in self.paired(x))

    def lipschitz(self) -> Tensor | float | None:
        largest: Tensor | float = 0.0
        for block in self.blocks:
            constant = block.lipschitz()
            if constant is None or (isinstance(constant, Tensor) and constant.ndim):
                return None
            largest = max(largest, constant, key=as_number)
        return largest

    def range_projector(self, y: Var) -> Callable[[Var], Var] | None:
        found = [g.range_projector(part) for g, part in self.paired(y)]
        projectors = [project for project in found if project is not None]
        if len(projectors) < len(found):
            return None
        return lambda v: tuple(p(part) for p, part in zip(projectors, v, strict=True))

    def make_conjugate(self) -> Function:
        return Separable(*(block.conjugate() for block in self.blocks))

    def __repr__(self) -> str:
        return f"Separable({', '.join(map(repr, self.blocks))})"
