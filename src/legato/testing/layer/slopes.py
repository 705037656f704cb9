r"""Slopes of a layer along a line by differences, with what they leave open.

Three step sizes on both sides of the point,

.. math:: \frac{F(x + hd) - F(x)}{h} \quad\text{and}\quad \frac{F(x) - F(x - hd)}{h},

give every output an interval that its slope lies in. Where the sides come together as h shrinks, it
is narrow: rounding and curvature. Where they do not there is a kink, and it spans both sides. Where
the layer refuses one side (the end of its domain) the other one decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

RATIO = 8.0
"""Between one step size and the next."""


@dataclass(frozen=True)
class Slopes:
    """For each output: the middle and half-width of what differences allow, whether it kinks."""

    middle: Tensor
    radius: Tensor
    kink: Tensor
    sides: tuple[Tensor | None, Tensor | None]
    steps: tuple[float, ...]
    jumps: bool

    def against(self, cotangent: Tensor) -> tuple[float, float]:
        """Middle and half-width of the slope of ⟨cotangent, F⟩."""
        return float(self.middle @ cotangent), float(self.radius @ cotangent.abs())

    def one_sided(self, cotangent: Tensor) -> list[float]:
        return [float(s @ cotangent) for s in self.sides if s is not None]


def noise(move: Callable[[float], Tensor | None], at: Tensor, eps: float) -> Tensor:
    """How much of each output is noise, by differences of high order over steps that are tiny.

    Smooth parts vanish in them (Moré and Wild, Estimating computational noise, 2011).
    """
    floor = 8 * eps * at.abs()
    for side in (1.0, -1.0):  # on one side only: a kink at the point is no noise
        taken = [move(side * (k + 1) * 64 * eps) for k in range(7)]
        points = [t for t in taken if t is not None]
        if len(points) < len(taken):
            continue
        table = torch.stack(points)
        for _ in range(4):
            table = table.diff(dim=0)
        each = (table.square().mean(0) / 70).sqrt()  # 70: the squared binomials of order 4
        return torch.maximum(floor, 3 * torch.maximum(each, each.square().mean().sqrt()))
    return floor


def slopes(
    move: Callable[[float], Tensor | None], at: Tensor, level: Tensor, sides: tuple[bool, bool]
) -> Slopes | None:
    """Along t ↦ F(x + td), which is ``move``, F(x) being ``at``; None if no side can be had.

    Args:
        move: the outputs at t, None where the layer refuses.
        at: the outputs at 0.
        level: how much of each output is noise.
        sides: whether steps forwards and backwards stay within bounds that were stated.
    """
    probe = move(1e-3 if sides[0] else -1e-3)
    change = float((probe - at).norm()) * 1e3 if probe is not None else float(at.norm())
    size = float(level.norm())
    relative = size / max(change, 1e-2 * float(at.norm()), size) if size > 0 else 0.0
    # The best step balances h² with noise/h.
    middle = min(max(relative ** (1 / 3), 3e-6), 3e-2)
    steps = (RATIO * middle, middle, middle / RATIO)
    found: list[list[Tensor] | None] = []
    for sign, allowed in zip((1.0, -1.0), sides, strict=True):
        ends = [move(sign * h) if allowed else None for h in steps]
        kept = [e for e in ends if e is not None]
        whole = len(kept) == len(ends)
        found.append(
            [sign * (e - at) / h for e, h in zip(kept, steps, strict=True)] if whole else None
        )
    forwards, backwards = found
    errors = [2 * level / h for h in steps]
    if forwards is not None and backwards is not None:
        return _two_sided(forwards, backwards, errors, steps)
    one = forwards if forwards is not None else backwards
    if one is None:
        return None
    # The error of a one-sided slope is linear in h, so that two of them give a better one.
    better = [(RATIO * one[k + 1] - one[k]) / (RATIO - 1) for k in range(2)]
    radius = (better[0] - better[1]).abs() + 2 * errors[2]
    jumps = _grows(one, errors)
    shown = (better[1], None) if forwards is not None else (None, better[1])
    kinks = torch.zeros_like(at, dtype=torch.bool)
    return Slopes(better[1], radius, kinks, shown, steps, jumps)


def _two_sided(
    forwards: list[Tensor], backwards: list[Tensor], errors: list[Tensor], steps: tuple[float, ...]
) -> Slopes:
    central = [(f + b) / 2 for f, b in zip(forwards, backwards, strict=True)]
    gaps = [(f - b).abs() for f, b in zip(forwards, backwards, strict=True)]
    # Between two steps the gap of a smooth function shrinks by RATIO, that of a kink stays.
    smooth = torch.ones_like(gaps[0], dtype=torch.bool)
    for k in range(2):
        smooth &= gaps[k + 1] <= 0.4 * gaps[k] + errors[k + 1] + 1e-7 * central[k + 1].abs()
    changes = [(central[k] - central[k + 1]).abs() for k in range(2)]
    second, third = changes[0] / 8 + errors[1], changes[1] / 8 + errors[2]
    narrow = torch.where(second < third, central[1], central[2])
    # Central slopes change by RATIO² less from step to step; where they do not, a kink lies between
    # two steps or the layer is noisier than it looks close by.
    steady = changes[1] <= changes[0] / 8 + errors[1] + errors[2] + 1e-9 * central[2].abs()
    closest = torch.where(steady, torch.minimum(second, third), torch.maximum(*changes) + errors[2])
    ends = torch.stack([*forwards[1:], *backwards[1:]])
    low, high = ends.amin(0), ends.amax(0)
    middle = torch.where(smooth, narrow, (low + high) / 2)
    radius = torch.where(smooth, closest, (high - low) / 2 + errors[2])
    jumps = _grows(gaps, errors) or _grows(central, errors)
    return Slopes(middle, radius, ~smooth, (forwards[2], backwards[2]), steps, jumps)


def _grows(slopes: list[Tensor], errors: list[Tensor]) -> bool:
    """Whether slopes grow as 1/h, as at a jump, and not from rounding."""
    first, second, third = (float(s.norm()) for s in slopes)
    return third > 3 * second > 9 * first and third > 30 * float(errors[2].norm())


def none_refused(bounds: tuple[float, float], x: Tensor, step: Tensor) -> tuple[bool, bool]:
    """Whether tiny steps along ±step stay within stated bounds."""
    low, high = bounds
    at_low, at_high = x <= low, x >= high
    forwards = not bool((at_low & (step < 0)).any() or (at_high & (step > 0)).any())
    backwards = not bool((at_low & (step > 0)).any() or (at_high & (step < 0)).any())
    return forwards, backwards
