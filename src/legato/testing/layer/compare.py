"""Gradients beside differences: every direction with every cotangent, at one point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.points import Direction, cotangents
from legato.testing.layer.slopes import Slopes, noise, none_refused, slopes
from legato.testing.layer.subject import Subject
from legato.testing.layer.words import Compared

Bounds = Sequence[tuple[float, float]]


@dataclass
class Place:
    """A point, its outputs, the cotangents, and the gradients there."""

    subject: Subject
    values: list[Any]
    at: Tensor
    cotangents: list[Tensor]
    gradients: list[list[Tensor | None]] = field(default_factory=list)
    noise: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def make(cls, subject: Subject, values: list[Any], dense: int, single: int) -> Place | None:
        """None where the layer refuses the point or is not finite there."""
        at = subject.attempt(values)
        if at is None:
            return None
        drawn = cotangents(at.numel(), dense, single, subject.seed + 1000, at.device)
        return cls(subject, values, at, drawn, [subject.gradients(values, c) for c in drawn])

    def gradient(self, c: int, i: int) -> Tensor:
        """With cotangent c, in value i, as float64."""
        found = self.gradients[c][self.subject.moving.index(i)]
        value = self.values[i]
        return torch.zeros_like(value, dtype=torch.float64) if found is None else found.double()

    def arrives(self, i: int) -> bool:
        k = self.subject.moving.index(i)
        return any(found[k] is not None for found in self.gradients)

    def slopes(
        self, i: int, direction: Direction, bounds: tuple[float, float]
    ) -> tuple[Slopes, Tensor] | None:
        x = self.values[i]
        eps = float(torch.finfo(x.dtype).eps)
        step = direction.step
        for again in (False, True):
            if again:  # into the domain, where zeros of the point may be its end
                step = torch.where((x == 0) | (x <= bounds[0]), step.abs(), step)
                step = torch.where(x >= bounds[1], -step.abs(), step)
                if torch.equal(step, direction.step):
                    return None

            def move(t: float, step: Tensor = step) -> Tensor | None:
                values = list(self.values)
                values[i] = (x.double() + t * step).to(x.dtype)
                return self.subject.attempt(values)

            if i not in self.noise:
                self.noise[i] = noise(move, self.at, eps)
            found = slopes(move, self.at, self.noise[i], none_refused(bounds, x, step))
            if found is not None:
                return found, step
        return None


def compare(
    place: Place, i: int, ways: Sequence[Direction], bounds: tuple[float, float], tolerance: float
) -> list[Compared]:
    """Each direction with each cotangent, in value i."""
    lines = [(d, place.slopes(i, d, bounds)) for d in ways]
    found = []
    for c, cotangent in enumerate(place.cotangents):
        gradient = place.gradient(c, i)
        rows = []
        for d, reached in lines:
            if reached is None:
                continue
            line, step = reached
            middle, radius = line.against(cotangent)
            rows.append((d, line, step, middle, radius, float((gradient * step).sum())))
        if not rows:
            continue
        root = max(1.0, gradient.numel() ** 0.5)
        sizes = [float(row[2].norm()) or 1.0 for row in rows]
        per_step = [abs(row[3]) / s for row, s in zip(rows, sizes, strict=True)]
        typical = max(
            float(gradient.norm()) / root if bool(gradient.isfinite().all()) else 0.0,
            (sum(p * p for p in per_step) / len(per_step)) ** 0.5 / (1 if root == 1 else 2),
        )
        # A slope that changes the output by less than this part of it is as good as none.
        nothing = 1e-2 * float(place.at.square().mean().sqrt() * cotangent.norm())
        for (d, line, step, middle, radius, slope), size in zip(rows, sizes, strict=True):
            scale = max(abs(middle), typical * size, nothing)
            one = d._replace(step=step)  # as it was taken, which may be into the domain
            found.append(Compared(one, c, slope, middle, radius, scale, line, tolerance))
    return found
