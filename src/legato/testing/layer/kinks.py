"""Where gradient and differences do not agree: is it wrong, or is there a kink?

A gradient at a kink has to lie between the slopes found around it (Clarke's condition).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from legato.testing.layer.compare import Place, compare
from legato.testing.layer.points import normal, size_of, symmetrised
from legato.testing.layer.subject import apart
from legato.testing.layer.words import Compared


class Nearby(NamedTuple):
    """At a point nearby: the slope in the same direction, what it leaves open, the gradient."""

    middle: float
    radius: float
    disagrees: bool
    gradient: Tensor


def judge(
    place: Place,
    i: int,
    bad: list[Compared],
    bounds: tuple[float, float],
    tolerance: float,
    many: bool,
) -> str:
    """Whether what does not agree is wrong, left open, or allowed by a kink.

    One tie has two sides, and both are seen. Where many meet, some pieces of the layer may be
    missing: then only a gradient steeper than all that are found nearby is called wrong.
    """
    if any(not c.finite for c in bad):
        return "wrong"
    worst = sorted(bad, key=lambda c: -c.error)[:3]
    if any(c.line.jumps for c in worst):
        return "open"
    result = "allowed"
    for one in worst:
        if _hidden_by_noise(place, i, one):
            result = "open"
            continue
        nearby = _around(place, i, one, bounds)
        if len(nearby) >= 3 and 2 * sum(n.disagrees for n in nearby) > len(nearby):
            return "wrong"
        spread = [m for n in nearby for m in (n.middle - n.radius, n.middle + n.radius)]
        spread += one.line.one_sided(place.cotangents[one.cotangent])
        spread += [one.middle - one.radius, one.middle + one.radius]
        low, high = min(spread), max(spread)
        slack = max(20 * tolerance, 0.02) * one.scale
        if low - slack <= one.slope <= high + slack:
            continue
        steepest = max((float(n.gradient.norm()) for n in nearby), default=0.0)
        if not many or not _pieces(nearby):
            return "wrong"
        if abs(one.slope) > 3 * steepest * float(one.direction.step.norm()) + slack:
            return "wrong"
        result = "open"
    return result


def _hidden_by_noise(place: Place, i: int, one: Compared) -> bool:
    """Whether slopes over long steps contradict those over short ones, and allow the gradient.

    The errors of a solver that stops early may vary smoothly close by, and then have slopes of
    their own; over long steps they cancel.
    """
    x, cotangent = place.values[i].double(), place.cotangents[one.cotangent]
    spread = [one.middle]
    for h in (1e-2, 3e-2):
        ends = []
        for t in (h, -h):
            values = list(place.values)
            values[i] = (x + t * one.direction.step).to(place.values[i].dtype)
            ends.append(place.subject.attempt(values))
        forwards, backwards = ends
        if forwards is None or backwards is None:
            return False
        spread.append(float((forwards - backwards) @ cotangent) / (2 * h))
    low, high, slack = min(spread), max(spread), 0.02 * one.scale
    if high - low <= one.radius + slack:
        return False
    return low - slack <= one.slope <= high + slack


def _pieces(nearby: list[Nearby]) -> bool:
    """Whether gradients differ from point to point, as where pieces of a layer meet."""
    return any(apart(n.gradient, nearby[0].gradient) > 0.1 for n in nearby)


def _around(place: Place, i: int, one: Compared, bounds: tuple[float, float]) -> list[Nearby]:
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
        for c in compare(near, i, [one.direction], bounds, one.tolerance):
            scale = max(c.scale, one.scale)
            off = abs(c.slope - c.middle) > c.radius + one.tolerance * scale
            found.append(Nearby(c.middle, c.radius, off or not c.finite, near.gradient(0, i)))
    return found
