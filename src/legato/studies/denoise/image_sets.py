"""The images that the study learns from and is measured on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor

from legato.console.files import DataError, read_bytes
from legato.console.pictures import SUFFIXES, open_image
from legato.studies.denoise.pictures import draw_picture

TRAIN = "train"
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
    tests = {name: read_folder(folder / name) for name in TESTS if (folder / name).is_dir()}
    if not tests:
        raise DataError(
            f"{folder} holds no images to measure on: expected {' or '.join(TESTS)} in it."
        )
    return ImageSets(read_folder(folder / TRAIN), tests)


def read_folder(folder: Path) -> list[Tensor]:
    """All images of a folder in the order of their names."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"The folder {folder} holds no images ({', '.join(SUFFIXES)}).")
    return [_grey(open_image(read_bytes(path), str(path))) for path in paths]


def drawn_sets(train: int = 12, test: int = 4) -> ImageSets:
    """Pictures that legato draws, under the name ``drawn``."""
    pictures = [draw_picture(seed) for seed in range(train + test)]
    return ImageSets(pictures[:train], {"drawn": pictures[train:]})


def noisy(clean: Tensor, sigma: float, number: int) -> Tensor:
    """clean + σ·N(0, 1), neither clipped nor rounded; ``number`` seeds it, on any device alike."""
    generator = torch.Generator().manual_seed(number)
    noise = torch.randn(clean.shape, generator=generator)
    return clean + sigma * noise.to(clean)


def _grey(image: Image.Image) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a conversion that loses more than colour
        values = numpy.array(image if image.mode == "L" else image.convert("RGB").convert("L"))
    return torch.from_numpy(values).float() / 255
