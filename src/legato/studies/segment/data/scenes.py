"""Synthetic landscapes: labelled images that need no download."""

from __future__ import annotations

import numpy
import torch
from numpy.typing import NDArray

from legato.errors import InputError
from legato.studies.segment.data.canvas import Array, Canvas, Mask
from legato.studies.segment.data.datasets import IGNORE, Dataset, Sample
from legato.studies.segment.data.palettes import SURFACES
from legato.studies.segment.data.scene_backdrop import paint_ground, paint_hills, paint_sky
from legato.studies.segment.data.scene_objects import (
    Spot,
    building,
    car,
    fence,
    person,
    pole,
    tree,
)

# What stands in a scene, how often, and how near it may come (0: the horizon, 1: the lower border).
THINGS = (
    (building, 0.22, 0.30),
    (tree, 0.26, 0.55),
    (pole, 0.10, 0.50),
    (person, 0.16, 0.90),
    (car, 0.16, 0.60),
    (fence, 0.10, 0.40),
)


class SyntheticScenes(Dataset):
    """Sky, ground and upright things with exact labels; image i depends on ``seed`` and i only.

    Colours overlap on purpose: windows and water mirror the sky, cars are blue, walls white, and
    shadows dark, so that no pixel tells its class by itself. A few pixels on the outlines
    of things are unknown, as in hand-labelled data.
    """

    def __init__(self, count: int = 200, seed: int = 0, size: tuple[int, int] = (96, 128)) -> None:
        if count < 1:
            raise InputError(f"SyntheticScenes needs a count of at least 1, not {count}.")
        if min(size) < 32:
            raise InputError(f"A scene needs at least 32 × 32 pixels, not {size[0]} × {size[1]}.")
        if seed < 0:
            raise InputError(f"The seed of SyntheticScenes is at least 0, not {seed}.")
        self.seed = seed
        self.size = size
        self.names = [f"scene-{index:05d}" for index in range(count)]
        self.class_names = ("sky", "horizontal", "vertical")
        self.palette = SURFACES

    def __getitem__(self, index: int) -> Sample:
        place = range(len(self))[index]
        canvas = paint_scene(self.size, numpy.random.default_rng((self.seed, place)))
        image = numpy.ascontiguousarray(photograph(canvas).transpose(2, 0, 1))
        return Sample(torch.from_numpy(image), torch.from_numpy(canvas.labels), self.names[place])


def paint_scene(size: tuple[int, int], rng: numpy.random.Generator) -> Canvas:
    """A scene from back to front: sky, hills, ground, then things from far to near."""
    canvas = Canvas(size, rng)
    horizon = rng.uniform(0.36, 0.62)
    sky = paint_sky(canvas, horizon)
    if rng.random() < 0.5:
        paint_hills(canvas, horizon, sky)
    paint_ground(canvas, horizon, sky)
    light = rng.uniform(-1, 1)
    eye = rng.uniform(1.6, 4.0)  # metres above the ground
    chosen = rng.choice(len(THINGS), rng.integers(5, 14), p=[often for _, often, _ in THINGS])
    placed = [(rng.uniform(0.03, THINGS[which][2]), THINGS[which][0]) for which in chosen]
    for near, thing in sorted(placed, key=lambda pair: pair[0]):
        y = horizon + near * (1 - horizon)
        x = rng.uniform(-0.05, canvas.right + 0.05)
        thing(canvas, Spot(x, y, (y - horizon) / eye, sky, light))
    return canvas


def photograph(canvas: Canvas) -> NDArray[numpy.uint8]:
    """The scene as a camera sees it: blur, light, noise, 8 bits; parts of outlines are unknown."""
    rng, image = canvas.rng, canvas.colours
    image = _blur(image)
    tint = 1 + 0.035 * rng.standard_normal(3).astype(numpy.float32)
    vignette = 1 - 0.18 * ((canvas.y - 0.5) ** 2 + (canvas.x / canvas.right - 0.5) ** 2)
    image *= numpy.float32(rng.uniform(0.75, 1.15)) * tint * vignette[..., None]
    grain = rng.standard_normal(image.shape, dtype=numpy.float32)
    image += numpy.float32(rng.uniform(0.01, 0.05)) * grain
    edges = _outlines(canvas.labels)
    canvas.labels[edges & (rng.random(edges.shape, dtype=numpy.float32) < 0.08)] = IGNORE
    return (255 * image + 0.5).clip(0, 255).astype(numpy.uint8)


def _blur(image: Array) -> Array:
    """The mean of each pixel and its neighbours, with weights 1 2 1."""
    padded = numpy.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    rows = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    return 0.25 * rows[:, :-2] + 0.5 * rows[:, 1:-1] + 0.25 * rows[:, 2:]


def _outlines(labels: NDArray[numpy.uint8]) -> Mask:
    """Pixels with a neighbour of another label."""
    edges = numpy.zeros(labels.shape, bool)
    down, across = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    edges[1:] |= down
    edges[:-1] |= down
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    return edges
