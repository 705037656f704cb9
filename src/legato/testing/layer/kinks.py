"""Where gradient and differences do not agree: is it wrong, or is there a kink?

A gradient at a kink has to lie between the slopes found around it (Clarke's condition).
"""

from __future__ import annotations

from legato.testing.layer.compare import Place, compare
from legato.testing.layer.points import normal, size_of, symmetrised
from legato.testing.layer.words import Compared


def judge(
    place: Place,
    i: int,
    bad: list[Compared],
    bounds: tuple[float, float],
    tolerance: float,
    steep: float,
) -> str:
    """Whether what does not agree is wrong, left open, or allowed by a kink.

    One tie has two sides, and both are seen. Where many meet, some pieces of the layer may be
    missing: then only a gradient steeper than all that was seen, ``steep``, is called wrong.
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
        if high - low <= slack:  # no kink at all: every slope around is the same
            return "wrong"
        if abs(one.slope) > 3 * steep * float(one.direction.step.norm()) + slack or not steep:
            return "wrong"
        result = "open"
    return result


def steepest(compared: list[Compared]) -> float:
    slopes = (
        (abs(c.middle) + c.radius) / (float(c.direction.step.norm()) or 1.0) for c in compared
    )
    return max(slopes, default=0.0)


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
