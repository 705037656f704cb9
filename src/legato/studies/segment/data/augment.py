"""Random views of the training images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from legato.errors import InputError
from legato.studies.segment.data.datasets import Dataset, Sample, generator_of


@dataclass(frozen=True)
class Augment:
    """Scale, flip, crop and recolour, each drawn anew from a generator.

    Geometry acts on image and labels together, and both axes scale alike. An image smaller than
    the crop along an axis keeps its size there: ``collate`` pads.
    """

    flip: float = 0.5
    """Probability of a mirror image, left for right."""
    scale: tuple[float, float] | None = None
    """Smallest and largest factor, drawn uniformly in its logarithm."""
    crop: tuple[int, int] | None = None
    """Height and width of a random window."""
    colour: float = 0.0
    """Strength: brightness, contrast and saturation change by factors in 1 ± colour."""

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise InputError(f"flip is a probability in [0, 1], not {self.flip}.")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1]:
            raise InputError(f"scale is (lo, hi) with 0 < lo <= hi, not {self.scale}.")
        if self.crop is not None and min(self.crop) < 1:
            raise InputError(f"crop is (height, width), both at least 1, not {self.crop}.")
        if not 0 <= self.colour < 1:
            raise InputError(f"colour is a strength in [0, 1), not {self.colour}.")

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        image, labels = self.geometry(sample.image, sample.labels, generator)
        return Sample(self.recolour(image, generator), labels, sample.name)

    def geometry(
        self, image: Tensor, labels: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """The part that moves pixels: image and labels stay aligned."""
        if self.scale is not None:
            lo, hi = (math.log(factor) for factor in self.scale)
            factor = math.exp(_uniform(lo, hi, generator))
            size = [max(1, round(factor * length)) for length in labels.shape]
            image, labels = resize_image(image, size), resize_labels(labels, size)
        if _uniform(0, 1, generator) < self.flip:
            image, labels = image.flip(-1), labels.flip(-1)
        if self.crop is not None:
            window = tuple(
                _window(length, wanted, generator)
                for length, wanted in zip(labels.shape, self.crop, strict=True)
            )
            image, labels = image[:, *window], labels[*window]
        return image.contiguous(), labels.contiguous()

    def recolour(self, image: Tensor, generator: Generator) -> Tensor:
        """The part that changes colours: brightness, contrast, saturation."""
        if self.colour == 0:
            return image
        brightness, contrast, saturation = (
            _uniform(1 - self.colour, 1 + self.colour, generator) for _ in range(3)
        )
        result = image.float() * brightness
        grey = _grey(result).mean()
        result = grey + contrast * (result - grey)
        grey = _grey(result)
        result = grey + saturation * (result - grey)
        return result.round().clamp(0, 255).to(torch.uint8)


class Augmented(torch.utils.data.Dataset[Sample]):
    """Another data set seen through ``augment``: sample [epoch, i] depends on these and the seed.

    The epoch is part of the key: so it reaches workers of a ``DataLoader`` that outlive it.
    """

    def __init__(self, dataset: Dataset, augment: Augment, seed: int = 0) -> None:
        self.dataset = dataset
        self.augment = augment
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, place = key[0], range(len(self))[key[1]]
        return self.augment(self.dataset[place], generator_of(self.seed, epoch, place))


def resize_image(image: Tensor, size: Sequence[int]) -> Tensor:
    """A (3, H, W) uint8 image at another size, smoothed where it shrinks."""
    resized = functional.interpolate(
        image[None].float(), size=list(size), mode="bilinear", antialias=True, align_corners=False
    )
    return resized[0].round().clamp(0, 255).to(torch.uint8)


def resize_labels(labels: Tensor, size: Sequence[int]) -> Tensor:
    """(H, W) labels at another size: each pixel takes the label at its centre."""
    resized = functional.interpolate(labels[None, None], size=list(size), mode="nearest-exact")
    return resized[0, 0]


def _uniform(lo: float, hi: float, generator: Generator) -> float:
    return lo + (hi - lo) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _window(length: int, wanted: int, generator: Generator) -> slice:
    wanted = min(wanted, length)
    start = int(torch.randint(length - wanted + 1, (), generator=generator))
    return slice(start, start + wanted)


def _grey(image: Tensor) -> Tensor:
    weights = image.new_tensor((0.299, 0.587, 0.114))[:, None, None]
    return (weights * image).sum(0, keepdim=True)
