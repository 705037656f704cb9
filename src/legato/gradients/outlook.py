"""What a GPU is asked once, after a backward solve: whether anything needs a closer look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato.engine.at_once import at_once
from legato.gradients.base import Linearisation
from legato.gradients.linear import LinearResult
from legato.gradients.linear.base import norm

FAR = 3e-3
"""Estimated relative distance from the solution above which kinks may lie in between: a gradient
on the wrong side of one is wrong by any amount."""

VANISHED = 1e5
"""How many times smaller than its start an iterate is that may be on its way to 0, where its own
size says nothing about the way left to go."""


@dataclass(frozen=True)
class Outlook:
    """The largest of all elements of a batch that the loss sees.

    Args:
        moved: the last change, relative to the iterate as it is now.
        spread: the same times ‖w‖/‖ξ‖.
        turned: the last change, relative to the largest iterate.
        bent: the same times ‖w‖/‖ξ‖.
        lost: whether an element is so much smaller than it was that its change says nothing.
        beside: whether one is so much smaller than its dual.
    """

    moved: float
    spread: float
    turned: float
    bent: float
    lost: bool
    beside: bool

    @classmethod
    def after(
        cls, linearisation: Linearisation, last_change: Tensor, result: LinearResult, xi: Tensor
    ) -> Outlook:
        present, share = linearisation.present_change, linearisation.share
        tensors = last_change, present, share, result.solution, xi
        numbers = at_once(linearisation.engine, _looked_at, *tensors)[0].tolist()
        moved, spread, turned, bent, lost, beside = numbers
        return cls(moved, spread, turned, bent, bool(lost), bool(beside))


def rows_of(values: Tensor, seen: Tensor) -> Tensor:
    """One number for each row, or the largest for all."""
    known = values.reshape(-1) if values.numel() == len(seen) else values.amax()
    return known.to(seen)


def growth(w: Tensor, seen: Tensor) -> Tensor:
    """‖w‖/‖ξ‖, row by row."""
    return norm(w).reshape(-1) / torch.where(seen > 0, seen, 1.0)


def changes_now(last_change: Tensor, present: Tensor, seen: Tensor) -> Tensor:
    """The last change of each element that the loss sees, relative to its iterate as it is now.

    The start may have been far larger than the solution, and the last change relative to it.
    """
    changes, present = rows_of(last_change, seen), rows_of(present, seen)
    shrunk = (changes < present) & (present < VANISHED * changes)
    return torch.where(seen > 0, torch.where(shrunk, present, changes), 0.0)


def vanished(last_change: Tensor, present: Tensor, seen: Tensor) -> Tensor:
    """Which elements have become so small that their own size says nothing."""
    changes, present = rows_of(last_change, seen), rows_of(present, seen)
    return (seen > 0) & (present > FAR) & (present >= VANISHED * changes)


def small_beside_dual(share: Tensor, seen: Tensor) -> Tensor:
    """Which elements are so much smaller than their dual that a change of both says nothing."""
    share = rows_of(share, seen)
    return (seen > 0) & (share > 0) & (VANISHED * share <= 1)


def _looked_at(
    last_change: Tensor, present: Tensor, share: Tensor, w: Tensor, xi: Tensor
) -> tuple[Tensor]:
    seen = norm(xi).reshape(-1)
    grown = growth(w, seen)
    now = changes_now(last_change, present, seen)
    last = torch.where(seen > 0, rows_of(last_change, seen), 0.0)
    sizes = torch.stack([now, now * grown, last, last * grown])
    # What is no number hides nothing from the others.
    largest = torch.nan_to_num(sizes, nan=0.0, posinf=torch.inf).amax(-1)
    lost = vanished(last_change, present, seen).any()
    beside = small_beside_dual(share, seen).any()
    return (torch.cat([largest, torch.stack([lost, beside]).to(largest)]),)
