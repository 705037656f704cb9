"""Entrywise multiplication, and the identity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import require_tensor
from legato._support.tree import Var, largest_over
from legato.operators.base import Operator, entrywise


@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Operator):
    r"""Entrywise multiplication, (Kx)_i = d_i x_i, with ‖K‖ = max|d_i| along the last axis.

    ``entries`` broadcast against x without enlarging it.

    >>> K = lg.Diagonal(torch.tensor([2.0, -3.0]))
    >>> K(torch.ones(2)), K.norm()
    (tensor([ 2., -3.]), tensor(3.))
    """

    entries: Tensor

    def __post_init__(self) -> None:
        require_tensor(self.entries, "The entries of Diagonal")

    @property
    def coupled(self) -> tuple[int, int]:
        return min(1, self.entries.ndim), min(1, self.entries.ndim)

    def __call__(self, x: Var) -> Var:
        return entrywise(self, self.entries, x)

    def adjoint(self, y: Var) -> Var:
        return entrywise(self, self.entries.conj(), y)

    def norm(self, like: Var | None = None) -> Tensor:
        return largest_over(self.entries.abs(), 1)

    def absolute(self) -> Operator:
        return Diagonal(self.entries.abs())


@dataclass(frozen=True, eq=False, repr=False)
class Identity(Operator):
    """The identity, Kx = x, with ‖K‖ = 1.

    >>> lg.Identity()(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    >>> (2.0 * lg.Identity()).norm()
    tensor(2.)
    """

    @property
    def coupled(self) -> tuple[int, int]:
        return 0, 0

    def __call__(self, x: Var) -> Var:
        return x

    def adjoint(self, y: Var) -> Var:
        return y

    def norm(self, like: Var | None = None) -> Tensor:
        return (
            torch.tensor(1.0) if like is None else tree.real_like(tree.leaves(like)[0]).new_ones(())
        )

    def absolute(self) -> Operator:
        return self
