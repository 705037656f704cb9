"""The law of gradients: they are what differences of the layer are.

Every direction is compared with every cotangent, so that a wrong entry, a wrong element of a batch
or a missing term has nowhere to hide. At a kink the gradient has to lie between the slopes found
around it (Clarke's condition); where noise hides the slopes, nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.points import (
    Direction,
    along,
    cotangents,
    directions,
    has_many_ties,
    jittered,
    normal,
    size_of,
    symmetrised,
    tied,
)
from legato.testing.layer.slopes import Slopes, noise, none_refused, slopes
from legato.testing.layer.subject import Subject
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong
from legato.testing.layer.words import Compared, describe

Bounds = Sequence[tuple[float, float]]
RESOLVED = 0.05
"""Differences that leave more than this part of a slope open say nothing."""


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

    def slopes(self, i: int, direction: Direction, bounds: tuple[float, float]) -> Slopes | None:
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
                object.__setattr__(found, "step", step)
                return found
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
        for d, line in lines:
            if line is None:
                continue
            step = getattr(line, "step", d.step)
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
        nothing = 1e-5 * float(place.at.norm() * cotangent.norm())
        for (d, line, _, middle, radius, slope), size in zip(rows, sizes, strict=True):
            scale = max(abs(middle), typical * size)
            found.append(Compared(d, c, slope, middle, radius, scale, line, tolerance, nothing))
    return found


def gradient_law(subject: Subject, bounds: Bounds, tolerance: float, count: int) -> Verdict:
    """At the given point and at one nearby, then with all inputs ten times smaller and larger."""
    law, undecided, worst, resolved = "gradient", [], 0.0, 0
    eps = float(torch.finfo(subject.dtype).eps)
    tolerance = max(tolerance, 30 * eps ** (2 / 3))
    count = max(2, round(count * min(1.0, 4 / len(subject.moving))))
    for name, values, dense, single, looser in _places(subject, count):
        try:
            place = Place.make(subject, values, 2, min(4, count))
        except Exception as error:
            if name:
                continue  # only what was given has to work
            return wrong(law, f"the backward pass raised {type(error).__name__}: {error}")
        if place is None:
            if not name:
                return not_decided(law, "the layer is not finite at the given inputs")
            continue
        for i in subject.moving:
            ways = directions(
                values[i], dense, single, subject.seed + 10 * i, blocks=min(4, single)
            )
            compared = compare(place, i, ways, bounds[i], looser * tolerance)
            bad = [c for c in compared if not c.agrees]
            many = has_many_ties(values[i])
            steepest = _steepest(compared) if many else 0.0
            judged = _judge(place, i, bad, bounds[i], looser * tolerance, steepest) if bad else None
            if judged == "wrong":
                words = describe(subject, i, compared, place, bounds[i])
                return wrong(law, f"{words}{name}", max(c.error for c in bad))
            clear = [c for c in compared if c.resolved(RESOLVED)]
            resolved += len(clear)
            worst = max([worst, *(c.difference for c in clear if c.agrees)])
            if not name and (judged == "open" or len(clear) < max(1, len(compared) // 4)):
                undecided.append(_unresolved(subject, i, compared))
    if undecided:
        return not_decided(law, "; ".join(undecided))
    return sound(law, f"{resolved} slopes, off by at most {worst:.1e}", worst)


def ties_law(subject: Subject, bounds: Bounds, tolerance: float, count: int) -> Verdict:
    """At points with one tie: the gradient lies between the slopes around it."""
    law, seen, open_ = "gradient at ties", 0, 0
    tolerance = max(tolerance, 1e-3)
    for i in subject.moving:
        most = 3 + count // 2 if i < subject.count else 2
        ties = tied(subject.values[i], subject.seed + 7 * i)[:most]
        for tie in ties:
            values = list(subject.values)
            values[i] = tie.point
            try:
                place = Place.make(subject, values, 1, 2)
            except Exception:  # refused, in words of its own
                continue
            if place is None:
                continue
            entries = [along(subject.values[i], e) for e in tie.entries]
            ways = [*directions(subject.values[i], 1, 0, subject.seed + 3), *entries]
            compared = [
                c for c in compare(place, i, ways, bounds[i], tolerance)
                if not c.line.jumps and c.finite
            ]  # fmt: skip
            seen += 1
            bad = [c for c in compared if not c.agrees]
            many = tie.many or has_many_ties(subject.values[i])
            steepest = _steepest(compared) if many else 0.0
            judged = _judge(place, i, bad, bounds[i], tolerance, steepest) if bad else None
            if judged == "wrong":
                one = max(bad, key=lambda c: c.error)
                return wrong(
                    law, f"with {tie.words} in {subject.describe(i)}, {one.at_tie()}", one.error
                )
            open_ += judged == "open"
    if not seen:
        return not_measured(law, "the layer is not finite at points with ties")
    left = f", {open_} left open because many ties meet" if open_ else ""
    return sound(law, f"{seen} points with ties{left}")


def _places(subject: Subject, count: int) -> Any:
    """Name, values, numbers of directions and a factor on the tolerance."""
    given = subject.values
    yield "", given, 3, count, 1.0

    def all_moved(change: Any) -> list[Any]:
        return [change(v, i) if i in subject.moving else v for i, v in enumerate(given)]

    nearby = all_moved(lambda v, i: jittered(v, 1e-2, subject.seed + 31 * i + 5))
    if subject.attempt(nearby) is None:  # outside the domain: keep signs and zeros
        nearby = all_moved(lambda v, i: v * (1 + 0.05 * (jittered(v, 0.5, i) - v).sign()))
    yield ", at a point nearby", nearby, 2, max(1, count // 2), 1.0
    for factor in (0.1, 10.0):
        inputs = [
            v * factor if i in subject.moving and i < subject.count else v
            for i, v in enumerate(given)
        ]
        yield f", with inputs {factor:g} times as large", inputs, 2, max(1, count // 4), 10.0


def _judge(
    place: Place,
    i: int,
    bad: list[Compared],
    bounds: tuple[float, float],
    tolerance: float,
    steepest: float,
) -> str:
    """Whether what does not agree is wrong, left open, or allowed by a kink.

    One tie has two sides, and both are seen. Where many meet, some pieces of the layer may be missing:
    then only a gradient that is steeper than all that was seen, ``steepest``, is called wrong.
    """
    if any(not c.finite for c in bad):
        return "wrong"
    worst = sorted(bad, key=lambda c: -c.error)[:3]
    if any(c.line.jumps for c in worst):
        return "open"
    result = "allowed"
    for one in worst:
        nearby = _around(place, i, one, bounds)
        mismatches = [n for n in nearby if n[2]]
        if len(nearby) >= 3 and 2 * len(mismatches) > len(nearby):
            return "wrong"
        spread = [m for n in nearby for m in (n[0] - n[1], n[0] + n[1])]
        spread += one.line.one_sided(place.cotangents[one.cotangent])
        spread += [one.middle - one.radius, one.middle + one.radius]
        low, high = min(spread), max(spread)
        slack = max(20 * tolerance, 0.02) * one.scale
        if low - slack <= one.slope <= high + slack:
            continue
        if abs(one.slope) > 3 * steepest * float(one.direction.step.norm()) + slack or not steepest:
            return "wrong"
        result = "open"
    return result


def _steepest(compared: list[Compared]) -> float:
    return max(
        (abs(c.middle) + c.radius) / (float(c.direction.step.norm()) or 1.0) for c in compared
    )


def _around(
    place: Place, i: int, one: Compared, bounds: tuple[float, float]
) -> list[tuple[float, float, bool]]:
    """Slopes in the same direction at points nearby, and whether gradients disagree there too."""
    found = []
    subject, cotangent = place.subject, place.cotangents[one.cotangent]
    for k in range(9):
        values = list(place.values)
        # The size comes from the given point: this one may be all zero.
        size, x = size_of(subject.values[i]), values[i]
        point = x + 2e-3 * symmetrised(x, size * normal(x, subject.seed + 400 + k)).to(x.dtype)
        values[i] = point.clamp(*bounds)
        at = subject.attempt(values)
        if at is None:
            continue
        try:
            gradients = subject.gradients(values, cotangent)
        except Exception:
            continue
        near = Place(subject, values, at, [cotangent], [gradients])
        for compared in compare(near, i, [one.direction], bounds, one.tolerance):
            scale = max(compared.scale, one.scale)
            off = abs(compared.slope - compared.middle) > compared.radius + one.tolerance * scale
            found.append((compared.middle, compared.radius, off or not compared.finite))
    return found


def _unresolved(subject: Subject, i: int, compared: list[Compared]) -> str:
    name = subject.describe(i)
    if not compared:
        return f"no step in {name} is accepted by the layer"
    one = max(compared, key=lambda c: c.radius / max(c.scale, 1e-300))
    steps = ", ".join(f"{h:.0e}" for h in one.line.steps)
    return (
        f"in {name} differences with steps {steps} leave {one.middle:.3g} ± {one.radius:.1g} for a "
        f"gradient of {one.slope:.3g}: a jump, a kink or noise of the layer (an unconverged solver?) "
        "hides the slope"
    )
