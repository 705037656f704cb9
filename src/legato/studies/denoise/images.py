"""The images that the study learns from and is measured on, and their noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from legato.console.files import DataError, read_bytes
from legato.console.pictures import SUFFIXES, open_image

TESTS = ("BSD68", "Set12")


@dataclass(frozen=True)
class ImageSets:
    """Grey images (H, W) in [0, 1]: one list to learn from, and named ones to measure on."""

    train: list[Tensor]
    tests: dict[str, list[Tensor]]


def read_sets(folder: Path) -> ImageSets:
    """The images of ``folder/train``, ``folder/BSD68`` and ``folder/Set12``, colour made grey."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give the one that holds train/ and BSD68/.")
    tests = {name: _read_folder(folder / name) for name in TESTS if (folder / name).is_dir()}
    if not tests:
        raise DataError(
            f"{folder} holds no images to measure on: expected {' or '.join(TESTS)} in it."
        )
    return ImageSets(_read_folder(folder / "train"), tests)


def _read_folder(folder: Path) -> list[Tensor]:
    """All images of a folder in the order of their names."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"The folder {folder} holds no images ({', '.join(SUFFIXES)}).")
    return [_grey(open_image(read_bytes(path), str(path))) for path in paths]


def _grey(image: Image.Image) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a conversion that loses more than colour
        values = numpy.array(image if image.mode == "L" else image.convert("RGB").convert("L"))
    return torch.from_numpy(values).float() / 255


def drawn_sets(train: int = 12, test: int = 4) -> ImageSets:
    """Pictures that legato draws, under the name ``drawn``."""
    pictures = [draw_picture(seed) for seed in range(train + test)]
    return ImageSets(pictures[:train], {"drawn": pictures[train:]})


def draw_picture(seed: int, height: int = 96, width: int = 128) -> Tensor:
    """A grey picture (H, W) in [0, 1]: shaded discs and half-planes, some of them with stripes."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    rows = torch.linspace(0, height / width, height)[:, None].expand(height, width)
    columns = torch.linspace(0, 1, width)[None].expand(height, width)
    picture = torch.full((height, width), uniform(0.3, 0.7))
    for _ in range(7):
        angle, grey = uniform(0, 2 * math.pi), uniform(0.05, 0.95)
        along = math.cos(angle) * columns + math.sin(angle) * rows
        inside = (columns - uniform(0, 1)).square() + (rows - uniform(0, 0.8)).square()
        if uniform(0, 1) < 0.7:
            mask = inside < uniform(0.05, 0.35) ** 2
        else:
            mask = along > uniform(0.2, 0.9)
        surface = grey + uniform(-0.4, 0.4) * (along - along.mean())
        if uniform(0, 1) < 0.4:
            surface = surface + uniform(0.03, 0.15) * (uniform(60, 160) * along).sin()
        picture = torch.where(mask, surface, picture)
    return picture.clamp(0, 1)


def middle(image: Tensor, size: int) -> Tensor:
    """The central window (size, size) of an image, or as much of it as there is."""
    top, left = (max(0, (side - size) // 2) for side in image.shape)
    return image[top : top + size, left : left + size]


def middles(images: Sequence[Tensor], size: int) -> Tensor:
    """The central windows of images as a batch, (B, 1, size, size)."""
    for image in images:
        if min(image.shape) < size:
            height, width = image.shape
            raise DataError(f"An image of {height}×{width} pixels is smaller than {size}×{size}.")
    return torch.stack([middle(image, size) for image in images])[:, None]


def noisy(clean: Tensor, sigma: float, number: int) -> Tensor:
    """clean + σ·N(0, 1), neither clipped nor rounded; ``number`` seeds it, on any device alike."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randn(clean.shape, generator=generator)
    return clean + sigma * noise.to(clean)
