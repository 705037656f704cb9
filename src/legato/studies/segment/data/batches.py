"""Images of several sizes as one batch: padded, never distorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from legato.console.files import DataError
from legato.studies.segment.data.datasets import IGNORE, Sample

IMAGENET_MEAN = (0.485, 0.456, 0.406)


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

    def sizes(self) -> list[tuple[int, int]]:
        """(H, W) of each image without its padding."""
        heights, widths = self.inside[:, :, 0].sum(1), self.inside[:, 0, :].sum(1)
        return list(zip(heights.tolist(), widths.tolist(), strict=True))


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
