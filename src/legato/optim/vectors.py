"""Arithmetic on lists of tensors that may live on several devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Vector = Sequence[Tensor]


def dot(x: Vector, y: Vector) -> float:
    """⟨x, y⟩, read by the host once a device."""
    totals: dict[torch.device, list[Tensor]] = {}
    for a, b in zip(x, y, strict=True):
        totals.setdefault(a.device, []).append((a * b).sum().double())
    return sum(float(torch.stack(parts).sum()) for parts in totals.values())


def norm(x: Vector) -> float:
    """‖x‖₂."""
    return math.sqrt(dot(x, x))


def difference(x: Vector, y: Vector) -> list[Tensor]:
    """x − y."""
    return [a - b for a, b in zip(x, y, strict=True)]


def combine(x: Vector, t: float, y: Vector) -> list[Tensor]:
    """x + t·y."""
    return [a + t * b for a, b in zip(x, y, strict=True)]


def copy(x: Vector) -> list[Tensor]:
    """Detached copies."""
    return [a.detach().clone() for a in x]


def same(x: Vector, y: Vector) -> bool:
    """Whether two vectors are equal in every bit that counts."""
    return all(torch.equal(a, b) for a, b in zip(x, y, strict=True))


def finite(x: Vector) -> bool:
    return all(bool(torch.isfinite(a).all()) for a in x)


@torch.no_grad()
def write(x: Vector, values: Vector) -> None:
    """x ← values, in place."""
    for a, b in zip(x, values, strict=True):
        a.copy_(b)
