"""The derivative of a Euclidean prox as a diagonal matrix, in coordinates that suit it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.graph import kept_as_they_are
from legato._support.rows import Rows
from legato._support.tree import Var
from legato.errors import InputError
from legato.functions import Function, Separable, Zero, mirror_prox
from legato.functions.restricted import flatten, unflatten
from legato.geometry import Euclidean

LARGEST_BLOCK = 2048
"""Entries that one prox may couple: their derivative is written out, and its eigenvectors."""


@dataclass(frozen=True)
class Leaf:
    """How one tensor falls into blocks, and the eigenvectors of the derivative in each."""

    shape: torch.Size
    batch: int
    axes: tuple[int, ...]
    """The axes, counted from the end, along which the prox mixes entries."""
    vectors: Tensor | None = None
    """(elements, blocks, c, c), eigenvectors in columns; None where nothing is mixed."""

    def blocks(self, t: Tensor) -> Tensor:
        """(…, elements, blocks, c); further leading axes of t stay."""
        extra = t.ndim - len(self.shape)
        size = math.prod(self.shape[axis] for axis in self.axes)
        moved = t.movedim(self.axes, tuple(range(-len(self.axes), 0))) if self.axes else t
        elements = math.prod(self.shape[: self.batch])
        return moved.reshape(*t.shape[:extra], elements, -1, size)

    def joined(self, blocks: Tensor) -> Tensor:
        """The inverse of :meth:`blocks`."""
        extra = blocks.shape[:-3]
        kept = [s for i, s in enumerate(self.shape) if i - len(self.shape) not in self.axes]
        moved = blocks.reshape(*extra, *kept, *(self.shape[axis] for axis in self.axes))
        return moved.movedim(tuple(range(-len(self.axes), 0)), self.axes) if self.axes else moved

    def turned(self, blocks: Tensor, back: bool) -> Tensor:
        if self.vectors is None:
            return blocks
        matrix = self.vectors if back else self.vectors.mT
        return (matrix @ blocks.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Facet:
    r"""∂prox_{αg}(u) = Q diag(p) Qᵀ with 0 ≤ p ≤ 1 for convex g: what p > 0 is free to move.

    For a separable prox Q is the identity and p the mask of what is active. Where entries are
    coupled (a simplex, groups, sorted penalties), Q holds the eigenvectors of each block.
    Reference: Moreau (1965): a prox is the gradient of a convex function.
    """

    rows: Rows
    leaves: tuple[Leaf, ...]
    p: Tensor

    @property
    def turns(self) -> bool:
        return any(leaf.vectors is not None for leaf in self.leaves)

    def into(self, values: Tensor) -> Tensor:
        """Qᵀv on rows (…, elements, n)."""
        return self._through(values, back=False)

    def out(self, values: Tensor) -> Tensor:
        """Qv on rows (…, elements, n)."""
        return self._through(values, back=True)

    def _through(self, values: Tensor, *, back: bool) -> Tensor:
        if not self.turns:
            return values
        parts, at = [], 0
        for leaf in self.leaves:
            size = leaf.shape.numel() // values.shape[-2]
            part = values[..., at : at + size].reshape(*values.shape[:-2], *leaf.shape)
            turned = leaf.joined(leaf.turned(leaf.blocks(part), back))
            parts.append(turned.reshape(*values.shape[:-1], size))
            at += size
        return torch.cat(parts, -1)


def mixed_axes(core: Function, t: Tensor, batch: int) -> tuple[int, ...]:
    """The axes of t, from the end, along which the prox of a core mixes entries."""
    named = core.prox_couples()
    if not named and (core.coupled == 0 or isinstance(core, Zero)):
        return ()
    inner = t.ndim - batch
    if named:
        found = {axis if axis < 0 else axis - t.ndim for axis in named}
        return tuple(sorted(axis for axis in found if axis >= -t.ndim))
    count = inner if core.coupled is None else min(core.coupled, inner)
    return tuple(range(-count, 0))


def facet_of(g: Function, u: Var, alpha: Any, batch: int) -> Facet:
    """The derivative of the prox of αg at u."""
    rows = Rows(u, batch)
    core = g.prox_parts(Euclidean()).core
    tensors = tree.leaves(u)
    if isinstance(core, Separable) and isinstance(u, tuple):
        cores = [c for block, part in zip(core.blocks, u, strict=True) for c in _cores(block, part)]
    else:
        cores = [core] * len(tensors)
    with torch.enable_grad(), kept_as_they_are():
        points = [t.detach().clone().requires_grad_() for t in tensors]
        outputs = tree.leaves(mirror_prox(g, Euclidean(), tree.rebuild(u, points), alpha))
    parts = []
    leaves = []
    # Without a batch that all leaves share, everything is one element.
    shared = batch if rows.count else 0
    for point, out, own in zip(points, outputs, cores, strict=True):
        leaf = Leaf(point.shape, shared, mixed_axes(own, point, shared))
        leaf, p = _derivative(leaf, point, out, own)
        leaves.append(leaf)
        parts.append(leaf.joined(p))
    return Facet(rows, tuple(leaves), flatten(rows, tree.rebuild(u, parts)))


def _cores(block: Function, part: Var) -> list[Function]:
    core = block.prox_parts(Euclidean()).core
    return [core] * len(tree.leaves(part))


def _derivative(leaf: Leaf, point: Tensor, out: Tensor, core: Function) -> tuple[Leaf, Tensor]:
    """The leaf with its eigenvectors, and the eigenvalues in blocks."""
    blocks = leaf.blocks(point.detach())
    size = blocks.shape[-1]
    if not out.requires_grad:
        return leaf, torch.zeros_like(blocks)
    if size > LARGEST_BLOCK:
        raise InputError(
            f"Newton writes out what the prox of {core!r} couples, {size} entries here, and does "
            f"so for at most {LARGEST_BLOCK}. Use ForwardBackward or PrimalDual."
        )
    if size == 1:
        (p,) = torch.autograd.grad(out, point, torch.ones_like(out), allow_unused=True)
        return leaf, torch.zeros_like(blocks) if p is None else leaf.blocks(p)
    columns = []
    for j in range(size):
        unit = torch.zeros_like(blocks)
        unit[..., j] = 1
        (column,) = torch.autograd.grad(
            out, point, leaf.joined(unit), retain_graph=True, allow_unused=True
        )
        columns.append(torch.zeros_like(blocks) if column is None else leaf.blocks(column))
    P = torch.stack(columns, -1)
    sound = torch.isfinite(P).all(-1).all(-1)[..., None, None]
    P = torch.where(sound, 0.5 * (P + P.mT), 0.0)
    values, vectors = torch.linalg.eigh(P)
    return Leaf(leaf.shape, leaf.batch, leaf.axes, vectors), values


__all__ = ["Facet", "facet_of", "flatten", "unflatten"]
