"""Which axis is a batch: the inputs that are cut into elements, and the outputs that follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.calling import said
from legato.testing.layer.points import has_many_ties, jittered
from legato.testing.layer.subject import Subject, apart, is_float


@dataclass(frozen=True)
class Elements:
    """A batch along the first axis of the inputs ``cut``."""

    size: int
    cut: tuple[int, ...]

    def one(self, values: Sequence[Any], k: int) -> list[Any]:
        """Element k as a batch of one."""
        return self.chosen(values, [k])

    def chosen(self, values: Sequence[Any], order: Sequence[int]) -> list[Any]:
        picked = list(values)
        for i in self.cut:
            picked[i] = values[i][list(order)]
        return picked

    def scaled(
        self, values: Sequence[Any], factors: Sequence[float], which: Sequence[int]
    ) -> list[Any]:
        """Each element of the inputs ``which`` times its own factor."""
        changed = list(values)
        for i in which:
            factor = torch.tensor(list(factors)).to(values[i])
            changed[i] = values[i] * factor.reshape(-1, *[1] * (values[i].ndim - 1))
        return changed


@dataclass(frozen=True)
class NoElements:
    """Why there is no batch, and whether that had to be guessed."""

    why: str
    doubtful: bool = False


def elements_of(
    subject: Subject, outputs: Sequence[Tensor], batch: bool | None
) -> Elements | NoElements:
    """The batch, found by calling the layer with single elements; ``batch`` is what is known."""
    if batch is False:
        return NoElements("the layer has no batch, as stated")
    least = 1 if batch else 2  # the axis of a vector is hardly ever a batch
    moving = [subject.values[i] for i in subject.moving if i < subject.count]
    sizes = [v.shape[0] for v in moving if v.ndim >= least]
    if not sizes or moving[0].ndim < least:
        return NoElements("the input has no axis for a batch")
    # A matrix may come before the batch that it acts on.
    fits = (n for n in sizes if all(o.ndim and o.shape[0] == n for o in outputs))
    size = next(fits, sizes[0])
    if any(o.ndim == 0 or o.shape[0] != size for o in outputs):
        return NoElements(
            f"the output has no first axis of size {size}, as the input has", doubtful=bool(batch)
        )
    if subject.random:
        return NoElements("the layer draws random numbers, others for each element")
    closest, refused = float("inf"), ""
    values = untied(subject)  # where all is zero, any layer looks like a batch
    outputs = outputs if values is subject.values else subject.outputs(values)
    for cut in _subsets(subject, size):
        elements = Elements(size, cut)
        try:
            off = max(difference(subject, elements, values, outputs))
        except Exception as error:
            refused = said(error)
            continue
        if off <= 1e-3:
            return elements
        closest = min(closest, off)
    if closest == float("inf"):
        return NoElements(f"an element alone is refused: {refused}", doubtful=bool(batch))
    if closest <= 0.02 and size > 1:  # nearly a batch: elements see each other a little
        return Elements(size, next(_subsets(subject, size)))
    return NoElements(f"an element alone gives another result, {closest:.1e} off", doubtful=True)


def difference(
    subject: Subject, elements: Elements, values: list[Any], outputs: Sequence[Tensor]
) -> list[float]:
    """How far each element alone is from the same element in the batch, whatever its axes are."""
    found = []
    for k in range(elements.size):
        alone = subject.outputs(elements.one(values, k))
        pairs = [(a, o[k : k + 1], float(o.norm())) for a, o in zip(alone, outputs, strict=True)]
        pairs = [(a.reshape_as(b) if a.numel() == b.numel() else a, b, n) for a, b, n in pairs]
        found.append(max(apart(a, b, 1e-12 * n) for a, b, n in pairs))
    return found


def _subsets(subject: Subject, size: int) -> Iterator[tuple[int, ...]]:
    """Inputs that may be cut together: all with such an axis first, then fewer."""
    tensors = [i for i in range(subject.count) if isinstance(subject.values[i], Tensor)]
    may = [i for i in tensors if subject.values[i].ndim and subject.values[i].shape[0] == size]
    first = next(i for i in subject.moving if i in may and is_float(subject.values[i]))
    for count in range(len(may), 0, -1):
        yield from (c for c in combinations(may, count) if first in c)


def untied(subject: Subject) -> list[Any]:
    """The given point, or one nearby if it has ties, where a gradient may be any of several."""
    if not any(has_many_ties(subject.values[i]) for i in subject.moving):
        return subject.values
    near = [
        jittered(v, 1e-2, subject.seed + 15 + i) if i in subject.moving else v
        for i, v in enumerate(subject.values)
    ]
    return subject.values if subject.attempt(near) is None else near
