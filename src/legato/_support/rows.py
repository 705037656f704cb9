"""A state as a matrix: one row for each element of a batch, which is a problem of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree


@dataclass(frozen=True)
class Rows:
    r"""The entries of a tree of tensors as rows, (s_{b,1}, …, s_{b,n}) for batch element b.

    Complex entries are two real ones each, for derivatives of maps between complex numbers are only
    ℝ-linear. Without a batch there is one vector instead. Elements of a batch are separate systems:
    each is solved to the tolerance, and none is judged by the size of another.

    Args:
        like: a tree of the shape in question.
        batch: how many leading axes of each of its tensors are a batch; it counts as none where
            they differ in them.
    """

    like: Any
    batch: int = 0

    @property
    def count(self) -> tuple[int, ...]:
        """(number of elements,), or () without a batch."""
        shapes = {t.shape[: self.batch] for t in tree.leaves(self.like)}
        if self.batch == 0 or len(shapes) != 1:
            return ()
        (shape,) = shapes
        return (shape.numel(),) if len(shape) == self.batch and shape.numel() else ()

    def flatten(self, values: Any) -> Tensor:
        """A tree shaped like ``like`` as (elements, n), or (n,)."""
        count = self.count
        return torch.cat([tree.as_real(t).reshape(*count, -1) for t in tree.leaves(values)], -1)

    def unflatten(self, rows: Tensor) -> Any:
        """The inverse of :meth:`flatten`; axes in front of it stay in front."""
        count = rows.shape[: rows.ndim - len(self.count) - 1]
        elements = math.prod(self.count)
        targets = tree.leaves(self.like)
        parts = rows.split([tree.entries(t) // elements for t in targets], -1)
        shaped = [tree.shaped(t, part, count) for t, part in zip(targets, parts, strict=True)]
        return tree.rebuild(self.like, shaped)
