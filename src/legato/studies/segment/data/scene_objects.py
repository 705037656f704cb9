"""What stands upright in a synthetic scene: each function paints one thing and its shadow."""

from __future__ import annotations

from typing import NamedTuple

import numpy

from legato.studies.segment.data.canvas import (
    HORIZONTAL,
    VERTICAL,
    Array,
    Canvas,
    Mask,
    Window,
    colour,
)


class Spot(NamedTuple):
    """Where a thing stands, and how large a metre is there."""

    x: float
    y: float
    metre: float
    sky: Array
    """Colour of the sky, which windows mirror."""
    light: float
    """−1 to 1: how far shadows fall to the right, for each metre of height."""


WALLS = (
    colour(0.92, 0.91, 0.88),  # white, as clouds and snow are
    colour(0.60, 0.30, 0.24),
    colour(0.78, 0.68, 0.50),  # sand
    colour(0.52, 0.53, 0.55),  # concrete, as roads are
    colour(0.34, 0.32, 0.33),
    colour(0.46, 0.60, 0.72),  # glass
)
CARS = (
    colour(0.22, 0.42, 0.80),  # the blue of a clear sky
    colour(0.90, 0.90, 0.92),
    colour(0.16, 0.17, 0.20),
    colour(0.70, 0.12, 0.12),
    colour(0.55, 0.57, 0.60),
)
CLOTHES = (
    colour(0.30, 0.48, 0.82),
    colour(0.78, 0.24, 0.20),
    colour(0.20, 0.20, 0.22),
    colour(0.85, 0.83, 0.78),
    colour(0.36, 0.46, 0.28),
)
LEAVES = (
    colour(0.16, 0.32, 0.12),
    colour(0.28, 0.42, 0.16),
    colour(0.40, 0.46, 0.18),
    colour(0.55, 0.40, 0.14),  # autumn
)


def building(canvas: Canvas, spot: Spot) -> None:
    """A front with windows that mirror the sky, a side in the shade, sometimes a roof."""
    rng, metre = canvas.rng, spot.metre
    floors, bays = int(rng.integers(1, 7)), int(rng.integers(2, 7))
    height, width = 3.2 * floors * metre, 3.4 * bays * metre
    side = rng.uniform(0.1, 0.5) * width
    left, top = spot.x - width / 2, spot.y - height
    cast_shadow(canvas, spot, width, height)
    pitch = rng.uniform(0.2, 0.45) * width if floors < 4 and rng.random() < 0.6 else 0.0
    part = canvas.window(top - pitch, spot.y, left - side, left + width + side)
    wall = _pick(WALLS, rng) * rng.uniform(0.75, 1.05)
    across, up = (part.x - left) / width, (spot.y - part.y) / metre
    front = (across >= 0) & (across < 1) & (up <= height / metre)
    flank_left = spot.light > 0  # the side that is turned away from the sun shows
    beyond = (left - part.x if flank_left else part.x - left - width) / side
    flank = (beyond > 0) & (beyond < 1) & (part.y > top + 0.25 * beyond * height)
    flank = flank & (part.y < spot.y - 0.06 * beyond * height)
    part.paint(flank, wall * 0.55 * part.grain(0.03), VERTICAL)
    lit = 1 - 0.12 * part.y[..., None] + 0.05 * across[..., None]
    part.paint(front, wall * lit * part.grain(0.03), VERTICAL)
    if pitch:
        slope = (top - part.y) / pitch
        roof = (slope > 0) & (abs(across - 0.5) < 0.54 * (1 - 0.7 * slope))
        tile = _pick((colour(0.45, 0.20, 0.15), colour(0.25, 0.25, 0.28)), rng)
        part.paint(roof, tile * part.grain(0.06), VERTICAL)
    _windows(part, front, across * bays, up / 3.2, spot)


def _windows(part: Window, front: Mask, bay: Array, floor: Array, spot: Spot) -> None:
    """Panes, some of which show the sky and some a dark room."""
    rng = part.rng
    wide, high = rng.uniform(0.4, 0.75), rng.uniform(0.4, 0.7)
    pane = (abs(bay % 1 - 0.5) < wide / 2) & (abs(floor % 1 - 0.55) < high / 2) & front
    mirrors = rng.random((16, 16)) < rng.uniform(0.2, 0.9)
    which = mirrors[floor.astype(int).clip(0, 15), bay.astype(int).clip(0, 15)]
    part.paint(pane & which, spot.sky * part.grain(0.02), VERTICAL)
    part.paint(pane & ~which, colour(0.13, 0.14, 0.17) * part.grain(0.1), VERTICAL)


def tree(canvas: Canvas, spot: Spot) -> None:
    """A trunk and a crown of overlapping clumps, brighter on the side of the sun."""
    rng, metre = canvas.rng, spot.metre
    height = rng.uniform(4, 11) * metre
    radius = rng.uniform(0.24, 0.36) * height
    centre = spot.y - height + radius
    cast_shadow(canvas, spot, 1.4 * radius, height)
    part = canvas.window(spot.y - height, spot.y, spot.x - 1.3 * radius, spot.x + 1.3 * radius)
    trunk = abs(part.x - spot.x) < max(0.22 * metre, 0.04 * radius)
    bark = colour(0.28, 0.21, 0.16) * part.grain(0.12)
    part.paint(trunk & (part.y > centre), bark, VERTICAL)
    leaf = _pick(LEAVES, rng) * rng.uniform(0.8, 1.2)
    if rng.random() < 0.25:  # a conifer
        low = (part.y - (spot.y - height)) / (height * 0.9)
        crown = (low > 0) & (low < 1) & (abs(part.x - spot.x) < 0.6 * radius * (low + 0.05))
    else:
        crown = numpy.zeros(part.labels.shape, bool)
        for _ in range(9):
            angle, away = rng.uniform(0, 2 * numpy.pi), rng.uniform(0, 0.6) * radius
            size = rng.uniform(0.35, 0.6) * radius
            dx = part.x - spot.x - away * numpy.cos(angle)
            dy = part.y - centre - away * numpy.sin(angle)
            crown |= dx * dx + dy * dy < size * size
    towards_sun = (centre - part.y) / radius - spot.light * (part.x - spot.x) / radius
    lit = 1 + 0.22 * towards_sun.clip(-1.4, 1.4)[..., None]
    part.paint(crown, leaf * lit * part.grain(0.22), VERTICAL)


def pole(canvas: Canvas, spot: Spot) -> None:
    """A street lamp: thin, and easily smoothed away."""
    rng, metre = canvas.rng, spot.metre
    height, reach = rng.uniform(5, 9) * metre, rng.choice((-1, 1)) * 1.2 * metre
    thick = max(0.09 * metre, 0.75 / canvas.size[0])
    cast_shadow(canvas, spot, 2 * thick, height)
    part = canvas.window(
        spot.y - height - thick, spot.y, spot.x - 1.5 * metre, spot.x + 1.5 * metre
    )
    arm = (abs(part.y - spot.y + height) < thick) & (
        abs(part.x - spot.x - reach / 2) < abs(reach) / 2
    )
    grey = rng.choice((0.2, 0.45, 0.8)) * colour(1, 1, 1.04)
    part.paint((abs(part.x - spot.x) < thick) | arm, grey, VERTICAL)


def person(canvas: Canvas, spot: Spot) -> None:
    """A head, a coat and two legs."""
    rng, metre = canvas.rng, spot.metre * 1.15
    cast_shadow(canvas, spot, 0.6 * metre, 1.8 * metre)
    part = canvas.window(spot.y - 1.9 * metre, spot.y, spot.x - 0.5 * metre, spot.x + 0.5 * metre)
    across, up = (part.x - spot.x) / metre, (spot.y - part.y) / metre
    legs = (up < 0.85) & (abs(abs(across) - 0.13) < 0.1)
    coat = (up >= 0.75) & (up < 1.5) & (abs(across) < 0.28 - 0.06 * (up - 0.75))
    head = across**2 + (up - 1.67) ** 2 < 0.15**2
    part.paint(legs, _pick(CLOTHES, rng) * 0.6 * part.grain(0.05), VERTICAL)
    part.paint(coat, _pick(CLOTHES, rng) * part.grain(0.06), VERTICAL)
    part.paint(head, colour(0.72, 0.54, 0.42) * rng.uniform(0.5, 1.15), VERTICAL)


def car(canvas: Canvas, spot: Spot) -> None:
    """A car from the side: its windows show the sky, and so may its paint."""
    rng, metre = canvas.rng, spot.metre
    length = rng.uniform(3.8, 4.8) * metre
    cast_shadow(canvas, spot, length, 1.4 * metre)
    part = canvas.window(spot.y - 1.6 * metre, spot.y, spot.x - length / 2, spot.x + length / 2)
    along, up = (part.x - spot.x) / length, (spot.y - part.y) / metre
    slant = 0.12 * (up - 0.85)
    cabin = (up > 0.8) & (up < 1.45) & (abs(along + 0.03) < 0.33 - slant)
    body = (up > 0.25) & (up <= 0.88) & (abs(along) < 0.5 - 0.03 * abs(up - 0.5))
    pane = (up > 0.92) & (up < 1.33) & (abs(along + 0.03) < 0.28 - slant) & (abs(along) > 0.015)
    paint = _pick(CARS, rng)
    shine = 0.75 + 0.35 * up[..., None]
    part.paint(cabin | body, paint * shine * part.grain(0.02), VERTICAL)
    part.paint(pane, (0.35 + 0.5 * rng.random()) * spot.sky, VERTICAL)
    for wheel in (-0.3, 0.3):
        round_ = ((along - wheel) * length / metre) ** 2 + (up - 0.33) ** 2 < 0.33**2
        part.paint(round_, colour(0.07, 0.07, 0.08), VERTICAL)


def fence(canvas: Canvas, spot: Spot) -> None:
    """A low wall across a part of the scene, of the colours that grounds have."""
    rng, metre = canvas.rng, spot.metre
    height, length = rng.uniform(0.9, 2.0) * metre, rng.uniform(6, 20) * metre
    cast_shadow(canvas, spot, length, height)
    part = canvas.window(spot.y - height, spot.y, spot.x - length / 2, spot.x + length / 2)
    stones = _pick((*WALLS[2:5], *LEAVES[:2]), rng)
    part.paint(part.y < 2, stones * part.grain(0.09), VERTICAL)


def cast_shadow(canvas: Canvas, spot: Spot, width: float, height: float) -> None:
    """Darken the ground behind a thing: still ground, though dark as a thing may be."""
    fall, depth = spot.light * height * 0.8, 0.16 * height
    part = canvas.window(
        spot.y - depth,
        spot.y + 0.1 * width,
        spot.x - width + min(fall, 0.0),
        spot.x + width + max(fall, 0.0),
    )
    up = (spot.y - part.y) / max(depth, 1e-6)
    inside = (abs(part.x - spot.x - fall * up) < 0.5 * width * (1.05 - 0.3 * up)) & (up > -0.15)
    part.shade(inside, 0.55, HORIZONTAL)


def _pick(colours: tuple[Array, ...], rng: numpy.random.Generator) -> Array:
    return colours[int(rng.integers(len(colours)))]
