"""Second derivatives in some directions only: BᵀHB for a few columns B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.graph import kept_as_they_are
from legato._support.rows import Rows
from legato._support.tree import Var

_MOST_ENTRIES = 2**24
"""Entries of directions that are multiplied at once."""


@dataclass(frozen=True)
class Columns:
    r"""Some columns B of an orthogonal matrix, for each element of a batch: unit vectors, mostly.

    .. math:: B = Q\,(e_{j_1}, …, e_{j_k})

    Args:
        rows: how a variable is written as rows, one for each element.
        index: j, of shape (elements, k); rows with fewer columns are filled up.
        valid: where ``index`` counts; the other columns are zero.
        turn: v ↦ Qv on rows; None where Q is the identity.
    """

    rows: Rows
    index: Tensor
    valid: Tensor
    turn: Callable[[Tensor], Tensor] | None = None

    @property
    def count(self) -> int:
        return self.index.shape[-1]

    def gather(self, v: Tensor) -> Tensor:
        """Qᵀv at the chosen places, for v that is turned already."""
        picked = v.expand(self.index.shape[0], -1).gather(-1, self.index)
        return torch.where(self.valid, picked, 0.0)

    def scatter(self, c: Tensor, size: int) -> Tensor:
        """The turned vector with c at the chosen places, and 0 elsewhere."""
        out = c.new_zeros(c.shape[0], size)
        return out.scatter_add(-1, self.index, torch.where(self.valid, c, 0.0))

    def directions(self, first: int, last: int, size: int) -> Tensor:
        """Columns ``first`` to ``last`` as vectors, (columns, elements, size)."""
        index, valid = self.index[:, first:last], self.valid[:, first:last]
        out = torch.zeros(*index.shape, size, device=index.device, dtype=self._dtype)
        out.scatter_(-1, index.unsqueeze(-1), valid.to(out).unsqueeze(-1))
        out = out.movedim(1, 0)
        return out if self.turn is None else self.turn(out)

    @property
    def _dtype(self) -> torch.dtype:
        return tree.leaves(self.rows.like)[0].dtype

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """Ranges of columns that fit into memory together."""
        step = max(1, _MOST_ENTRIES // max(1, size * self.index.shape[0]))
        return [(i, min(i + step, self.count)) for i in range(0, self.count, step)]

    def of(self, matrix: Tensor) -> Tensor | None:
        """matrix·B, (elements, m, k), for matrices (…, m, n) that act on rows as they are."""
        like = self.rows.like
        if not isinstance(like, Tensor) or self.rows.batch != like.ndim - 1:
            return None
        if self.turn is not None:
            directions = self.directions(0, self.count, like.shape[-1])
            return self._flat(matrix) @ directions.movedim(0, -1)
        if matrix.ndim == 2 and self.index.shape[0] == 1:
            return (matrix.index_select(1, self.index[0]) * self.valid).unsqueeze(0)
        picked = self._flat(matrix).gather(
            -1, self.index.unsqueeze(-2).expand(-1, matrix.shape[-2], -1)
        )
        return picked * self.valid.unsqueeze(-2)

    def between(self, matrix: Tensor) -> Tensor | None:
        """Bᵀ·matrix·B for square matrices."""
        part = self.of(matrix)
        if part is None:
            return None
        if self.turn is None:
            chosen = part.gather(-2, self.index.unsqueeze(-1).expand(-1, -1, self.count))
            return chosen * self.valid.unsqueeze(-1)
        directions = self.directions(0, self.count, matrix.shape[-1])
        return torch.einsum("kbn,bnj->bkj", directions, part)

    def _flat(self, matrix: Tensor) -> Tensor:
        axes = self.rows.like.shape[:-1]
        return matrix.expand(*axes, *matrix.shape[-2:]).reshape(-1, *matrix.shape[-2:])

    def each(self, values: Any) -> Tensor:
        """Values for the entries of Ax, (…, m), as (elements, m)."""
        axes = tree.leaves(self.rows.like)[0].shape[:-1]
        if not isinstance(values, Tensor) or values.ndim == 0:
            return torch.as_tensor(values)
        return values.expand(*axes, values.shape[-1]).reshape(-1, values.shape[-1])


def hessian_on(grad: Callable[[Var], Var], x: Var, columns: Columns) -> Tensor:
    r"""BᵀHB, (elements, k, k), by one product with the Hessian for each column.

    .. math:: H_{ij} = ∂(∇f)_i/∂x_j

    Reference: Griewank and Walther (2008), Section 5.4.
    """
    product = hessian_product(grad, x, columns.rows)
    elements, k = columns.index.shape
    if product is None or k == 0:
        return tree.leaves(x)[0].new_zeros(elements, k, k)
    size = columns.rows.flatten(x).numel() // elements
    every = [
        (columns.directions(i, j, size), product(columns.directions(i, j, size)))
        for i, j in columns.chunks(size)
    ]
    B = torch.cat([part for part, _ in every])
    HB = torch.cat([part for _, part in every])
    return torch.einsum("iab,jab->aij", B, HB)


def hessian_product(
    grad: Callable[[Var], Var], x: Var, rows: Rows
) -> Callable[[Tensor], Tensor] | None:
    """v ↦ Hv on rows, (elements, n) or (count, elements, n); None where the gradient is affine."""
    with torch.enable_grad(), kept_as_they_are():
        points = [t.detach().clone().requires_grad_() for t in tree.leaves(x)]
        slope = grad(tree.rebuild(x, points))
    outputs = tree.leaves(slope)
    if not any(s.requires_grad for s in outputs):
        return None

    def pull(cotangents: list[Tensor], *, batched: bool) -> list[Tensor]:
        live = [(s, c) for s, c in zip(outputs, cotangents, strict=True) if s.requires_grad]
        found = torch.autograd.grad(
            [s for s, _ in live], points, [c for _, c in live], retain_graph=True,
            allow_unused=True, is_grads_batched=batched,
        )  # fmt: skip
        return [torch.zeros_like(c) if g is None else g.detach()
                for g, c in zip(found, cotangents, strict=True)]  # fmt: skip

    def product(v: Tensor) -> Tensor:
        if v.ndim == 2:
            found = pull(tree.leaves(unflatten(rows, v)), batched=False)
            return flatten(rows, tree.rebuild(x, found))
        parts = [tree.leaves(unflatten(rows, row)) for row in v]
        try:
            stacked = [torch.stack(leaf) for leaf in zip(*parts, strict=True)]
            many = pull(stacked, batched=True)
            return torch.stack(
                [flatten(rows, tree.rebuild(x, [t[i] for t in many])) for i in range(len(v))]
            )
        except RuntimeError:  # an operation that cannot be batched
            return torch.stack([product(row) for row in v])

    return product


def flatten(rows: Rows, values: Var) -> Tensor:
    """A tree as (elements, n), also where there is no batch."""
    flat = rows.flatten(values)
    return flat.reshape(-1, flat.shape[-1])


def unflatten(rows: Rows, values: Tensor) -> Any:
    """The inverse of :func:`flatten`."""
    return rows.unflatten(values if rows.count else values.reshape(-1))
