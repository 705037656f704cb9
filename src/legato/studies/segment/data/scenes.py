"""Synthetic landscapes: labelled images that need no download."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from legato.errors import InputError
from legato.studies.segment.data.datasets import IGNORE, Dataset, Sample, generator_of
from legato.studies.segment.data.palettes import SURFACES

_SKY, _HORIZONTAL, _VERTICAL = range(3)
_Colours = Sequence[tuple[float, float, float]]
# Each of these is also the colour of something else: glass and water, walls and clouds, leaves and
# grass, so that no pixel tells its class by itself.
_ZENITHS: _Colours = ((0.25, 0.45, 0.8), (0.5, 0.65, 0.85), (0.6, 0.62, 0.66), (0.35, 0.4, 0.6))
_GROUNDS: _Colours = ((0.3, 0.44, 0.17), (0.36, 0.36, 0.38), (0.76, 0.68, 0.52), (0.62, 0.58, 0.54))
_WALLS: _Colours = ((0.92, 0.91, 0.88), (0.6, 0.3, 0.24), (0.78, 0.68, 0.5), (0.46, 0.6, 0.72))
_LEAVES: _Colours = ((0.16, 0.32, 0.12), (0.28, 0.42, 0.16), (0.4, 0.46, 0.18))


class SyntheticScenes(Dataset):
    """Sky, ground and upright things with exact labels; image i depends on ``seed`` and i only.

    Textures are noisy and colours overlap on purpose, so that no pixel tells its class by itself,
    and poles are thin. A few pixels on outlines are unknown, as in hand-labelled data.
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
        self.class_names = tuple(SURFACES)

    def __getitem__(self, index: int) -> Sample:
        place = range(len(self))[index]
        scene = _Scene(self.size, generator_of(self.seed, place))
        return Sample(scene.photograph(), scene.labels, self.names[place])


class _Scene:
    """Colours (3, H, W) and labels (H, W), painted from back to front.

    y runs from 0 at the top to 1 at the bottom, x from 0 at the left to W/H at the right: a circle
    is round, and a scene looks alike at every size.
    """

    def __init__(self, size: tuple[int, int], generator: Generator) -> None:
        height, width = size
        self.generator = generator
        self.y = ((torch.arange(height) + 0.5) / height)[:, None]
        self.x = ((torch.arange(width) + 0.5) / height)[None]
        self.labels = torch.full(size, _SKY, dtype=torch.uint8)
        self.zenith, horizon = self.pick(_ZENITHS), self.uniform(0.36, 0.62)
        haze = self.zenith + (0.9 - self.zenith) * (self.y / horizon).clamp(0, 1)
        clouds = ((self.noise(0.12, 2.5) - self.uniform(0.4, 0.8)) / 0.2).clamp(0, 0.9)
        self.colours = haze + clouds * (0.95 - haze)
        if self.uniform(0, 1) < 0.5:
            crest = horizon - self.uniform(0.06, 0.25) * (0.3 + self.noise(0.3)[0])
            self.paint(self.y > crest, 0.5 * (self.pick(_LEAVES) + self.zenith), _VERTICAL)
        texture = 0.7 + 0.6 * self.noise(0.05, 4)
        self.paint(self.y > horizon, self.pick(_GROUNDS) * texture, _HORIZONTAL)
        puddles = (self.noise(0.08, 4) > self.uniform(0.6, 1)) & (self.y > horizon)
        self.paint(puddles, 0.9 * self.zenith, _HORIZONTAL)
        eye = self.uniform(1.6, 4.0)  # metres above the ground
        kinds = ((self.building, 0.3), (self.tree, 0.6), (self.pole, 0.6))  # and how near
        chosen = [kinds[int(self.uniform(0, 3))] for _ in range(int(self.uniform(6, 13)))]
        placed = [(self.uniform(0.03, nearest), thing) for thing, nearest in chosen]
        for near, thing in sorted(placed, key=lambda pair: pair[0]):
            foot = horizon + near * (1 - horizon)
            thing(self.uniform(0, width / height), foot, (foot - horizon) / eye)

    def building(self, x: float, foot: float, metre: float) -> None:
        """A wall with windows that mirror the sky."""
        across = (self.x - x) / metre + 1.7 * int(self.uniform(2, 7))  # from the left wall
        up, floors = (foot - self.y) / metre, int(self.uniform(1, 5))
        wall = (
            (up > 0) & (up < 3.2 * floors) & (across > 0) & (across < 3.4 * int(self.uniform(2, 7)))
        )
        self.paint(wall, self.pick(_WALLS), _VERTICAL)
        glass = ((across % 3.4 - 1.7).abs() < 0.8) & ((up % 3.2 - 1.7).abs() < 0.9)
        self.paint(wall & glass, self.uniform(0.6, 1) * self.zenith, _VERTICAL)

    def tree(self, x: float, foot: float, metre: float) -> None:
        """A trunk and a crown of overlapping clumps."""
        height = self.uniform(4, 10) * metre
        leaf = self.pick(_LEAVES)
        trunk = (
            ((self.x - x).abs() < 0.04 * height) & (self.y < foot) & (self.y > foot - height / 2)
        )
        self.paint(trunk, 0.6 * leaf, _VERTICAL)
        for _ in range(7):
            dx = self.x - x - self.uniform(-0.2, 0.2) * height
            dy = self.y - foot + self.uniform(0.5, 0.9) * height
            clump = dx.square() + dy.square() < (self.uniform(0.1, 0.2) * height) ** 2
            self.paint(clump, leaf * self.uniform(0.8, 1.3), _VERTICAL, 0.25)

    def pole(self, x: float, foot: float, metre: float) -> None:
        """A street lamp: thin, and easily smoothed away."""
        up, thick = (foot - self.y) / metre, max(0.12 * metre, 0.75 / len(self.y))
        post = ((self.x - x).abs() < thick) & (up > 0) & (up < 8)
        arm = ((self.x - x).abs() < metre) & ((up - 8).abs() < thick / metre)
        self.paint(post | arm, torch.full((3, 1, 1), self.uniform(0.15, 0.8)), _VERTICAL)

    def paint(self, mask: Tensor, colour: Tensor, label: int, grain: float = 0.1) -> None:
        """Cover the pixels of the mask, with a brightness that differs from one to the next."""
        brightness = 1 + grain * torch.randn(self.labels.shape, generator=self.generator)
        self.colours = torch.where(mask, colour * brightness, self.colours)
        self.labels[mask.expand(self.labels.shape)] = label

    def photograph(self) -> Tensor:
        """As a camera sees it: light, noise, 8 bits; a few pixels of outlines become unknown."""
        noise = self.uniform(0.03, 0.08) * torch.randn(self.colours.shape, generator=self.generator)
        image = self.uniform(0.75, 1.15) * self.colours + noise
        known = F.pad(self.labels[None, None].float(), (1, 1, 1, 1), mode="replicate")
        outline = (F.max_pool2d(known, 3, 1) + F.max_pool2d(-known, 3, 1))[0, 0] > 0
        chosen = torch.rand(self.labels.shape, generator=self.generator) < 0.06
        self.labels[outline & chosen] = IGNORE
        return (255 * image).round().clamp(0, 255).to(torch.uint8)

    def noise(self, cell: float, stretch: float = 1.0) -> Tensor:
        """Smooth random values in [0, 1] that change over the length ``cell``; (H, W)."""
        height, width = self.labels.shape
        nodes = [max(2, round(length / cell)) for length in (1.0, width / height / stretch)]
        coarse = torch.rand(1, 1, *nodes, generator=self.generator)
        return F.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)[0, 0]

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=self.generator).item()

    def pick(self, colours: _Colours) -> Tensor:
        return torch.tensor(colours[int(self.uniform(0, len(colours)))])[:, None, None]
