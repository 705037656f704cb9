"""Labelled images: samples, data sets, and batches of several sizes, padded, never distorted."""

from __future__ import annotations

import abc
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from legato.console.files import DataError, some
from legato.studies.segment.data.palettes import Palette, palette_of

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IGNORE = 255
"""The label of pixels that count for nothing: unknown ones and padding."""


class Sample(NamedTuple):
    """One image with its labels."""

    image: Tensor
    """(3, H, W) uint8, RGB."""
    labels: Tensor
    """(H, W) uint8: a class, or ``IGNORE``."""
    name: str


class Dataset(torch.utils.data.Dataset[Sample], abc.ABC):
    """Labelled images with names, in a fixed order."""

    names: list[str]
    class_names: tuple[str, ...]

    @property
    def palette(self) -> Palette:
        """One colour for each class, for pictures."""
        return palette_of(self.class_names)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """The sample at that place."""

    def subset(self, names: Iterable[str]) -> Subset:
        """The samples of these names, in this order."""
        return Subset(self, names)

    def in_memory(self) -> InMemory:
        """The same samples, decoded once and kept as tensors."""
        return InMemory(self)


class Subset(Dataset):
    """Some samples of another data set."""

    def __init__(self, dataset: Dataset, names: Iterable[str]) -> None:
        self.dataset = dataset
        self.names = list(names)
        self.class_names = dataset.class_names
        place = {name: index for index, name in enumerate(dataset.names)}
        unknown = [name for name in self.names if name not in place]
        if unknown:
            raise DataError(
                f"{len(unknown)} of {len(self.names)} names are not in this data set of "
                f"{len(dataset)} images: {some(unknown)}. A split belongs to the data set it was "
                "drawn from; draw another for this one."
            )
        self._places = [place[name] for name in self.names]

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self._places[index]]


class InMemory(Dataset):
    """Another data set, decoded once: about 0.3 MB for an image of 320 × 240 pixels.

    All pixels lie in two tensors, which workers of a ``DataLoader`` share instead of copying,
    however they are started.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.names = list(dataset.names)
        self.class_names = dataset.class_names
        samples = [dataset[index] for index in range(len(dataset))]
        self._sizes = [(sample.labels.shape[0], sample.labels.shape[1]) for sample in samples]
        self._starts = [0, *itertools.accumulate(h * w for h, w in self._sizes)]
        self._pixels = torch.cat([sample.image.reshape(-1) for sample in samples])
        self._labels = torch.cat([sample.labels.reshape(-1) for sample in samples])

    def __getitem__(self, index: int) -> Sample:
        h, w = self._sizes[index]
        place = range(len(self))[index]
        start, end = self._starts[place : place + 2]
        image = self._pixels[3 * start : 3 * end].view(3, h, w)
        return Sample(image, self._labels[start:end].view(h, w), self.names[place])


def generator_of(*key: int) -> torch.Generator:
    """Random numbers of this key: a hash makes the streams of neighbouring keys unrelated."""
    digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def check_sample(sample: Sample) -> None:
    """Raise unless image and labels have the same size and some pixel is labelled."""
    (h, w), (rows, columns) = sample.image.shape[1:], sample.labels.shape
    if (h, w) != (rows, columns):
        raise DataError(
            f"The image {sample.name} is {w} × {h} pixels and its labels are {columns} × {rows}. "
            "They have to agree: one of the two was resized, rotated or belongs to another image."
        )
    if (sample.labels.numpy() == IGNORE).all():  # numpy: torch's threads cost more than this does
        raise DataError(
            f"The image {sample.name} has no labelled pixel, so there is nothing to learn or to "
            "measure on it. Label it, or remove it from the data set."
        )


class Batch(NamedTuple):
    """Padded images with their labels."""

    image: Tensor
    """(B, 3, H, W) float32 in [0, 1]."""
    labels: Tensor
    """(B, H, W) int64: a class, or ``IGNORE`` where unknown or padded."""
    inside: Tensor
    """(B, H, W) bool: True on real pixels, False on padding."""
    names: list[str]

    def to(self, device: str | torch.device, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        image, labels, inside = (
            tensor.to(device, non_blocking=non_blocking) for tensor in self[:3]
        )
        return Batch(image, labels, inside, self.names)


def collate(
    samples: Sequence[Sample],
    multiple: int = 1,
    fill: tuple[float, float, float] = IMAGENET_MEAN,
) -> Batch:
    """Samples as a batch, padded at the bottom and right to the largest height and width.

    Both are rounded up to a multiple of ``multiple``. The colour ``fill`` of padding is the one
    that networks normalise to zero, which is also what their convolutions see beyond a border.
    """
    if not samples:
        raise DataError("A batch needs at least one sample.")
    if multiple < 1:
        raise DataError(f"Sizes are padded to a multiple of at least 1, not {multiple}.")
    for image, labels, name in samples:
        if image.shape[1:] != labels.shape:
            raise DataError(
                f"The image {name} has {tuple(image.shape[1:])} pixels and its labels have "
                f"{tuple(labels.shape)}; they have to agree."
            )
    height, width = (
        -(-max(sample.labels.shape[axis] for sample in samples) // multiple) * multiple
        for axis in (0, 1)
    )
    image = torch.tensor(fill)[None, :, None, None].repeat(len(samples), 1, height, width)
    labels = torch.full((len(samples), height, width), IGNORE)
    inside = torch.zeros(len(samples), height, width, dtype=torch.bool)
    for index, sample in enumerate(samples):
        h, w = sample.labels.shape
        image[index, :, :h, :w] = sample.image.float() / 255
        labels[index, :h, :w] = sample.labels.long()
        inside[index, :h, :w] = True
    return Batch(image, labels, inside, [sample.name for sample in samples])
