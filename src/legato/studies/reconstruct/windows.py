"""Random windows of pictures that lie on a device, drawn there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from legato.console.files import DataError


class Windows:
    """Random windows of pictures, turned and mirrored, all of a batch by one indexing.

    Args:
        images: grey pictures (H, W); smaller ones are left out.
        size: pixels across a window.
        seed: of the draws, which differ between kinds of devices.
        device: where the pictures lie.
    """

    def __init__(
        self, images: Sequence[Tensor], size: int, seed: int, device: torch.device
    ) -> None:
        large = [image for image in images if min(image.shape) >= size]
        if not large:
            raise DataError(f"No image is as large as a window of {size}×{size} pixels.")
        self.size = size
        self.generator = torch.Generator(device).manual_seed(seed)
        self.pixels = torch.cat([image.flatten() for image in large]).to(device)
        shapes = torch.tensor([tuple(image.shape) for image in large])
        ends = shapes.prod(1).cumsum(0)
        self._begins = (ends - shapes.prod(1)).to(device)
        self._shapes = shapes.to(device)

    def draw(self, count: int) -> Tensor:
        """(count, 1, size, size)."""
        device, size = self.pixels.device, self.size
        chance = torch.rand(count, 6, generator=self.generator, device=device)
        image = (chance[:, 0] * len(self._shapes)).long().clamp(max=len(self._shapes) - 1)
        shape = self._shapes[image]
        corner = (chance[:, 1:3] * (shape - size + 1)).long().minimum(shape - size)
        line = torch.arange(size, device=device)
        flip = chance[:, 3:5, None] < 0.5
        rows, columns = (corner[:, :, None] + torch.where(flip, line.flip(0), line)).unbind(1)
        places = (rows * shape[:, 1:] + self._begins[image, None])[:, :, None] + columns[:, None]
        turned = chance[:, 5, None, None] < 0.5
        return self.pixels[torch.where(turned, places.mT, places)][:, None]
