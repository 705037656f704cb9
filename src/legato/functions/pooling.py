"""Blocks of neighbours along the last axis that have one value, and their means."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.checks import is_concrete


class Blocks:
    """Runs of neighbours, one value each; ``starts`` says which entries begin one."""

    def __init__(self, starts: Tensor) -> None:
        self.starts = starts
        self.labels = starts.cumsum(-1) - 1

    def sums(self, y: Tensor) -> Tensor:
        """The sum over the block of each entry."""
        labels = self.labels.expand(y.shape)
        return torch.zeros_like(y).scatter_add(-1, labels, y).gather(-1, labels)

    def sizes(self, y: Tensor) -> Tensor:
        """The number of entries in the block of each entry."""
        return self.sums(torch.ones_like(y))

    def means(self, y: Tensor) -> Tensor:
        """The mean over the block of each entry, which has the derivative of the projection."""
        return self.sums(y) / self.sizes(y)


def pooled(y: Tensor) -> Blocks:
    r"""The blocks of the projection of y onto x₁ ≤ … ≤ x_n, by pooling adjacent violators.

    All runs of decreasing means are pooled at once; pooling is right in any order. That takes a
    few rounds, at most n. Where values are hidden, as in torch.func.vmap, it takes n.
    Reference: Barlow, Bartholomew, Bremner, Brunk (1972).
    """
    with torch.no_grad():
        y = y.detach()
        blocks = Blocks(torch.ones_like(y, dtype=torch.bool))
        for _ in range(y.shape[-1] - 1):
            means = blocks.means(y)
            violated = means[..., :-1] > means[..., 1:]
            if is_concrete() and not bool(violated.any()):
                break
            kept = blocks.starts[..., 1:] & ~violated
            blocks = Blocks(torch.cat([blocks.starts[..., :1], kept], -1))
    return blocks
