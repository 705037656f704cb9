"""The law of gradients: they are what differences of the layer are.

Every direction is compared with every cotangent, so that a wrong entry, a wrong element of a batch
or a missing term has nowhere to hide. At a kink the gradient has to lie between the slopes around
it; where noise hides the slopes, nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from legato.testing.layer.compare import Bounds, Place, compare
from legato.testing.layer.kinks import judge
from legato.testing.layer.points import (
    Direction,
    along,
    directions,
    has_many_ties,
    is_symmetric,
    jittered,
    normal,
    size_of,
    tied,
)
from legato.testing.layer.subject import Subject
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong
from legato.testing.layer.words import Compared, describe

RESOLVED = 0.05
"""Differences that leave more than this part of a slope open say nothing."""


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
            blocks = min(4, single) if count > 2 else 0
            ways = directions(values[i], dense, single, subject.seed + 10 * i, blocks)
            compared = compare(place, i, ways, bounds[i], looser * tolerance)
            bad = [c for c in compared if not c.agrees]
            many = has_many_ties(values[i])
            judged = judge(place, i, bad, bounds[i], looser * tolerance, many) if bad else None
            if judged == "wrong":
                words = describe(subject, i, compared, place)
                return wrong(law, f"{words}{name}", max(c.error for c in bad))
            if not name and is_symmetric(values[i]):
                words = _unsymmetric(place, i, bounds[i], tolerance)
                if words:
                    return wrong(law, words)
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
        most = 2 * count if i < subject.count and count < 4 else 8 if i < subject.count else 2
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
            entries = [along(subject.values[i], e) for e in tie.entries][: max(1, count // 2)]
            ways = [*directions(subject.values[i], 1, 0, subject.seed + 3), *entries]
            compared = [
                c for c in compare(place, i, ways, bounds[i], tolerance)
                if not c.line.jumps and c.finite
            ]  # fmt: skip
            seen += 1
            bad = [c for c in compared if not c.agrees]
            many = tie.many or has_many_ties(subject.values[i])
            judged = judge(place, i, bad, bounds[i], tolerance, many) if bad else None
            if judged == "wrong":
                one = max(bad, key=lambda c: c.error)
                return wrong(
                    law, f"with {tie.words} in {subject.describe(i)}, {one.at_tie()}", one.error
                )
            open_ += judged == "open"
    if not seen:
        return not_measured(law, "the layer is not finite at points with ties")
    left = f", {open_} left open: many ties meet, or noise" if open_ else ""
    return sound(law, f"{seen} points with ties{left}")


def _places(subject: Subject, count: int) -> Iterator[tuple[str, list[Any], int, int, float]]:
    """Name, values, numbers of directions and a factor on the tolerance."""
    given = subject.values
    yield "", given, 3 if count > 2 else 2, count, 1.0

    def all_moved(change: Any) -> list[Any]:
        return [change(v, i) if i in subject.moving else v for i, v in enumerate(given)]

    nearby = all_moved(lambda v, i: jittered(v, 1e-2, subject.seed + 31 * i + 5))
    if subject.attempt(nearby) is None:  # outside the domain: keep signs and zeros
        nearby = all_moved(lambda v, i: v * (1 + 0.05 * (jittered(v, 0.5, i) - v).sign()))
    yield ", at a point nearby", nearby, 2, max(1, count // 2), 1.0
    for factor in (0.1, 10.0) if count > 2 else ():
        inputs = [
            v * factor if i in subject.moving and i < subject.count else v
            for i, v in enumerate(given)
        ]
        yield f", with inputs {factor:g} times as large", inputs, 2, max(1, count // 4), 10.0


def _unsymmetric(place: Place, i: int, bounds: tuple[float, float], tolerance: float) -> str:
    """Steps that leave the symmetric matrices, unless the layer reads one triangle only."""
    x = place.values[i]
    dense = normal(x, place.subject.seed + 77) * size_of(x)
    both, upper, lower = (
        compare(place, i, [Direction(step, words)], bounds, 10 * tolerance)
        for step, words in (
            (dense - dense.mT, "an antisymmetric direction"),
            (dense.triu(1), "the upper triangle"),
            (dense.tril(-1), "the lower triangle"),
        )
    )
    if any(c and all(abs(o.middle) <= o.radius + 1e-9 for o in c) for c in (upper, lower)):
        return ""
    bad = [c for c in both if c.finite and not c.agrees and c.resolved(RESOLVED)]
    if len(bad) < 2:
        return ""
    worst = max(bad, key=lambda c: c.error)
    return (
        f"the gradient says {worst.slope:.4g} in {place.subject.describe(i)} along "
        f"{worst.direction.words}, differences {worst.middle:.4g} ± {worst.radius:.0e}: is it "
        "transposed, or right for symmetric matrices only?"
    )


def _unresolved(subject: Subject, i: int, compared: list[Compared]) -> str:
    name = subject.describe(i)
    if not compared:
        return f"no step in {name} is accepted by the layer"
    one = max(compared, key=lambda c: c.radius / max(c.scale, 1e-300))
    steps = ", ".join(f"{h:.0e}" for h in one.line.steps)
    return (
        f"in {name} differences with steps {steps} leave {one.middle:.3g} ± {one.radius:.1g} for a "
        f"gradient of {one.slope:.3g}: a jump, a kink or noise of the layer (an unconverged "
        "solver?) hides the slope"
    )
