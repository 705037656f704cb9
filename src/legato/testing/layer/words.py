"""Where a gradient is wrong, and how, in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from legato.testing.layer.points import Direction, shown
from legato.testing.layer.slopes import Slopes

if TYPE_CHECKING:
    from legato.testing.layer.compare import Place
    from legato.testing.layer.subject import Subject


@dataclass(frozen=True)
class Compared:
    """The slope that a gradient says, and the one that differences allow."""

    direction: Direction
    cotangent: int
    slope: float
    middle: float
    radius: float
    scale: float
    line: Slopes
    tolerance: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.slope)

    @property
    def agrees(self) -> bool:
        return abs(self.slope - self.middle) <= self.radius + self.tolerance * self.scale

    @property
    def error(self) -> float:
        """Beyond what differences leave open, relative to the size of such slopes."""
        if not self.finite:
            return math.inf
        off = max(0.0, abs(self.slope - self.middle) - self.radius)
        return off / self.scale if self.scale > 0 else off

    @property
    def difference(self) -> float:
        return abs(self.slope - self.middle) / self.scale if self.scale > 0 else 0.0

    def resolved(self, part: float) -> bool:
        return self.radius <= part * self.scale

    def at_tie(self) -> str:
        low, high = self.middle - self.radius, self.middle + self.radius
        return (
            f"the gradient along {self.direction.words} says {self.slope:.4g} where the slopes on "
            f"both sides lie in {low:.4g} … {high:.4g}"
        )


def describe(subject: Subject, i: int, compared: list[Compared], place: Place) -> str:
    """One sentence on the gradient in value i."""
    name = subject.describe(i)
    bad = [c for c in compared if not c.agrees]
    worst = max(bad, key=lambda c: (c.direction.entry is not None, c.error))
    numbers = f"{worst.middle:.4g} along {worst.direction.words}"
    if not place.arrives(i):
        return f"no gradient reaches {name} while differences give {numbers}: is it detached?"
    if not worst.finite:
        return f"the gradient in {name} is not finite while differences give {numbers}"
    if all(c.slope == 0 for c in compared):
        return f"the gradient in {name} is 0 while differences give {numbers}: is it detached?"
    said = (
        f"{worst.slope:.4g} in {name} along {worst.direction.words}, differences {worst.middle:.4g}"
    )
    said = f"the gradient says {said} ± {worst.radius:.0e} ({worst.error:.1e} off)"
    guess = _ratio(compared) or _rearranged(compared, place, i) or _where(compared)
    return f"{said}{guess}"


def _ratio(compared: list[Compared]) -> str:
    """All slopes off by the same factor."""
    clear = [c for c in compared if c.radius <= 0.01 * abs(c.middle)]
    if len(clear) < 3:
        return ""
    square = sum(c.middle**2 for c in clear) or 1.0
    factor = sum(c.slope * c.middle for c in clear) / square
    rest = sum((c.slope - factor * c.middle) ** 2 for c in clear)
    if rest > 1e-6 * factor**2 * square or abs(factor - 1) < 0.01:
        return ""
    if abs(factor + 1) < 1e-3:
        return ": the sign is wrong"
    return f": all of it is {factor:.4g} times what it should be"


def _rearranged(compared: list[Compared], place: Place, i: int) -> str:
    """Whether the same numbers in other places would be right."""
    x = place.values[i]
    changes: dict[str, Callable[[Tensor], Tensor]] = {}
    if x.ndim >= 2 and x.shape[-1] == x.shape[-2]:
        changes["transposed"] = lambda g: g.mT
    if x.ndim >= 1 and x.shape[-1] > 1:
        changes["reversed along the last axis"] = lambda g: g.flip(-1)
        changes["shifted by one along the last axis"] = lambda g: g.roll(1, -1)
        changes["shifted by one along the last axis "] = lambda g: g.roll(-1, -1)
    if x.ndim >= 2 and x.shape[0] > 1:
        changes["reversed along the first axis"] = lambda g: g.flip(0)
        changes["shifted by one along the first axis"] = lambda g: g.roll(1, 0)
        changes["shifted by one along the first axis "] = lambda g: g.roll(-1, 0)
    for words, change in changes.items():
        fits = all(
            abs(_slope(change(place.gradient(c.cotangent, i)), c) - c.middle)
            <= c.radius + 10 * c.tolerance * c.scale
            for c in compared
        )
        if fits:
            return f": it is {words.strip()}"
    return ""


def _slope(gradient: Tensor, c: Compared) -> float:
    return float((gradient * c.direction.step).sum())


def _where(compared: list[Compared]) -> str:
    """Single entries or elements where it is wrong, if it is right in others."""
    entries = [c for c in compared if c.direction.entry is not None]
    wrong = {c.direction.entry or () for c in entries if not c.agrees}
    right = {c.direction.entry or () for c in entries} - wrong
    if not wrong or not right:
        return ""
    firsts = sorted({e[0] for e in wrong})
    if len(next(iter(wrong))) > 1 and not set(firsts) & {e[0] for e in right}:
        return (
            f"; wrong in element{'s' if len(firsts) > 1 else ''} {', '.join(map(str, firsts))} only"
        )
    listed = ", ".join(shown(e) for e in sorted(wrong)[:4])
    return f"; of {len(wrong) + len(right)} entries tried, wrong at {listed}"
