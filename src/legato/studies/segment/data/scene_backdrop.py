"""What a synthetic scene stands on and before: sky, hills, ground."""

from __future__ import annotations

import numpy

from legato.studies.segment.data.canvas import (
    HORIZONTAL,
    VERTICAL,
    Array,
    Canvas,
    Window,
    colour,
)

# Zenith and horizon: clear, pale, overcast, evening. Each is also the colour of something else.
SKIES = (
    (colour(0.22, 0.42, 0.78), colour(0.66, 0.79, 0.93)),
    (colour(0.48, 0.64, 0.84), colour(0.86, 0.90, 0.94)),
    (colour(0.56, 0.58, 0.62), colour(0.80, 0.81, 0.82)),
    (colour(0.30, 0.36, 0.58), colour(0.93, 0.70, 0.50)),
)
GROUNDS = {
    "grass": colour(0.30, 0.44, 0.17),
    "asphalt": colour(0.36, 0.36, 0.38),
    "sand": colour(0.76, 0.68, 0.52),
    "snow": colour(0.88, 0.90, 0.94),
    "soil": colour(0.34, 0.26, 0.19),
    "pavement": colour(0.62, 0.58, 0.54),
}


def paint_sky(canvas: Canvas, horizon: float) -> Array:
    """A gradient with clouds; returns the colour that windows mirror."""
    rng = canvas.rng
    zenith, low = SKIES[int(rng.choice(4, p=(0.4, 0.3, 0.2, 0.1)))]
    height = (canvas.y / horizon).clip(0, 1)[..., None]
    canvas.colours[:] = zenith + (low - zenith) * height
    clouds = 0.6 * canvas.noise(0.16, 2.5) + 0.3 * canvas.noise(0.07, 2) + 0.1 * canvas.noise(0.03)
    cover = ((clouds - rng.uniform(0.42, 0.75)) / 0.16).clip(0, 0.9)[..., None]
    white = colour(0.95, 0.95, 0.96) * (1 - 0.25 * canvas.noise(0.1, 2)[..., None])
    canvas.colours += cover * (white - canvas.colours)
    return (0.6 * zenith + 0.4 * low) * numpy.float32(rng.uniform(0.8, 1.05))


def paint_hills(canvas: Canvas, horizon: float, sky: Array) -> None:
    """Distant hills, bluish as the air before them."""
    rng = canvas.rng
    for layer in (1.0, 0.5)[: int(rng.integers(1, 3))]:
        crest = horizon - layer * rng.uniform(0.06, 0.2) * (
            0.3 + canvas.noise(0.35)[0] + 0.25 * canvas.noise(0.08)[0]
        )
        part = canvas.window(0, horizon + 0.02, 0, canvas.right)
        haze = rng.uniform(0.35, 0.7) * layer
        green = colour(0.22, 0.30, 0.18) if rng.random() < 0.7 else colour(0.42, 0.36, 0.32)
        tone = (1 - haze) * green + haze * sky
        part.paint(part.y > crest[None], tone * part.grain(0.05), VERTICAL)


def paint_ground(canvas: Canvas, horizon: float, sky: Array) -> None:
    """A plane in perspective: its texture, perhaps a road, a lake, a river or puddles."""
    rng = canvas.rng
    part = canvas.window(horizon, 1, 0, canvas.right)
    below = (part.y - horizon).clip(0.004, None)  # 1 / distance
    names = list(GROUNDS)
    kind = names[int(rng.choice(6, p=(0.4, 0.2, 0.12, 0.08, 0.08, 0.12)))]
    base = GROUNDS[kind] * numpy.float32(rng.uniform(0.8, 1.15))
    rows = slice(canvas.size[0] - len(part.y), None)
    texture = 0.6 * canvas.noise(0.06, 4)[rows] + 0.4 * canvas.noise(0.2, 3)[rows]
    tone = 0.72 + 0.5 * texture[..., None]
    far = (1 - 9 * below).clip(0, 0.35)[..., None]  # haze
    plain = base * tone * part.grain(0.07)
    part.paint(below > 0, plain + far * (sky - plain), HORIZONTAL)
    vanishing = rng.uniform(0.2, 0.8) * canvas.right
    across = (part.x - vanishing) / below - rng.uniform(-1.2, 1.2)
    feature = rng.random()
    if feature < 0.4 and kind != "asphalt":
        _road(part, across, numpy.float32(0.04) / below)
    elif feature < 0.6:
        mirror = sky * (0.8 + 0.25 * canvas.noise(0.02, 6)[rows][..., None])
        shore = horizon + rng.uniform(0.05, 0.35) * (1 - horizon)
        edge = shore + 0.05 * canvas.noise(0.2)[0][None]
        water = part.y < edge if rng.random() < 0.5 else abs(across) < 0.9  # a lake, or a river
        part.paint(water, mirror, HORIZONTAL)
    elif feature < 0.8:
        puddles = canvas.noise(0.05, 4)[rows] > 0.74
        part.paint(puddles, 0.9 * sky * part.grain(0.02), HORIZONTAL)


def _road(part: Window, across: Array, distance: Array) -> None:
    """A strip that runs to the horizon, with lines along its middle and its sides."""
    grey = part.rng.uniform(0.3, 0.62) * colour(1, 1, 1.03)
    part.paint(abs(across) < 0.85, grey * part.grain(0.05), HORIZONTAL)
    lane = (abs(across) < 0.035) & (distance * 6 % 1 < 0.55)
    kerb = abs(abs(across) - 0.82) < 0.025
    part.paint(lane | kerb, colour(0.88, 0.88, 0.86), HORIZONTAL)
