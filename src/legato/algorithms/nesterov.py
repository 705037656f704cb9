"""Nesterov's momentum, and when to drop it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.lazy import lazy
from legato._support.momentum import next_t
from legato._support.tree import Var, tree_map
from legato.errors import InputError


@dataclass(frozen=True)
class Nesterov:
    r"""The momentum of FISTA: β_k = (t_k − 1)/t_{k+1} with t_{k+1} = (1 + √(1 + 4t_k²))/2.

    ``restart=True`` drops the momentum, t_{k+1} = 1, wherever the last step turned against it:
    after a = y + β(y − y₋) ↦ y⁺, if ⟨a − y⁺, x⁺ − x⟩ > 0 for mirror coordinates y of points x. Each
    element of a batch decides for itself; the decisions carry no derivative. ``restart=400`` drops
    it every 400 iterations. Without restarts the derivatives of the iterates may swing, or even
    grow, long after the iterates have settled.
    Reference: Beck and Teboulle (2009); O'Donoghue and Candès (2015) for ``restart``.

    >>> f = lg.Quadratic(torch.diag(torch.tensor([1.0, 0.01])), torch.tensor([0.0, -0.01]))
    >>> fast = lg.ForwardBackward(inertia=lg.Nesterov())
    >>> lg.solve(lg.Composite(f), fast, stop=lg.Stop(200)).x.round(decimals=2)
    tensor([0., 1.])
    >>> plain = lg.ForwardBackward(inertia=0.0)
    >>> lg.solve(lg.Composite(f), plain, stop=lg.Stop(200)).x.round(decimals=2)
    tensor([0.0000, 0.8700])
    >>> for rule in lg.Nesterov(), lg.Nesterov(restart=True):
    ...     algorithm = lg.ForwardBackward(inertia=rule)
    ...     print(lg.solve(lg.Composite(f), algorithm, stop=lg.Stop(5000, tol=1e-6)).iterations)
    397
    73
    """

    restart: bool | int = False

    def __post_init__(self) -> None:
        if not isinstance(self.restart, int) or self.restart < 0:
            raise InputError(
                f"restart must be True, False or a number of iterations, not {self.restart!r}."
            )

    def advance(self, t: Any) -> Any:
        """t_{k+1}, of a number or of a tensor."""
        if not isinstance(t, Tensor):
            return next_t(t)
        return (t * t + 0.25).sqrt() + 0.5

    @lazy
    def longest(self) -> float:
        """Restart once t exceeds this: the midpoint between the last t allowed and the next one,
        so that rounding cannot shift the restart by an iteration."""
        if isinstance(self.restart, bool):
            return math.inf
        t = last = 1.0
        for _ in range(self.restart):
            t, last = next_t(t), t
        return (t + last) / 2


def turn_of(ahead: Var, new: Var, before: Var, after: Var, like: Tensor) -> Tensor:
    """⟨ahead − new, after − before⟩, summed down to the shape of the momentum's t.

    A tensor, so that neither a GPU nor a transform has to read it.
    """
    with torch.no_grad():
        force, move = tree_map(torch.sub, ahead, new), tree_map(torch.sub, after, before)
        pairs = zip(tree.leaves(force), tree.leaves(move), strict=True)
        parts = [_inner(f, m, like.shape) for f, m in pairs]
        return sum(parts[1:], parts[0])


def _inner(a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """Re⟨a, b⟩, summed down to ``shape``."""
    if not shape and not a.is_complex():
        return torch.dot(a.reshape(-1), b.reshape(-1))
    return tree.product(a, b).sum_to_size(shape)
