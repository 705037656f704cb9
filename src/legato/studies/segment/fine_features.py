"""What a network knows at fine resolution: the ground for weights, and for finer scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legato.errors import InputError


class FineFeatures(nn.Module):
    r"""Feature maps of several resolutions, joined at that of the image.

    .. math:: H = \mathrm{relu}(C\,\mathrm{relu}(\textstyle\sum_s P_s F_s))

    F_s are the network's maps, brought to the image's size, and F_0 is the image; P and C are 3×3
    convolutions. Reference: Xie and Tu, Holistically-nested edge detection (ICCV 2015).
    """

    def __init__(self, channels: Sequence[int], hidden: int = 32) -> None:
        super().__init__()
        self.project = nn.ModuleList(
            nn.Conv2d(count, hidden, 3, padding=1) for count in (3, *channels)
        )
        self.mix = nn.Conv2d(hidden, hidden, 3, padding=1)

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        if len(features) + 1 != len(self.project):
            raise InputError(
                f"This model was made for {len(self.project) - 1} feature maps, but the network "
                f"returned {len(features)}. A network of yours returns Scores(logits, features), "
                "or use contrast weights."
            )
        size = image.shape[-2:]
        total = self.project[0](2 * image - 1)
        for project, feature in zip(list(self.project)[1:], features, strict=True):
            part = project(feature)
            if part.shape[-2:] != size:
                # Strides are powers of two and sizes were rounded up at each of them; an image of
                # one row tells its stride by its columns.
                ratio = max(-(-n // m) for n, m in zip(size, part.shape[-2:], strict=True))
                stride = 1 << (ratio - 1).bit_length()
                part = F.interpolate(
                    part, scale_factor=stride, mode="bilinear", align_corners=False
                )[..., : size[0], : size[1]]
            total = total + part
        return torch.relu(self.mix(torch.relu(total)))


class FineScores(nn.Module):
    """Scores from fine features, to be added to the network's coarse ones; zero at first.

    This is what one would build without an optimisation layer, with as many parameters as learned
    weights have: the fair rival of :class:`LearnedEdges`.
    """

    def __init__(self, channels: Sequence[int], classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.fine = FineFeatures(channels, hidden)
        self.head = nn.Conv2d(hidden, classes, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        assert self.head.bias is not None
        nn.init.zeros_(self.head.bias)

    def forward(self, image: Tensor, features: Sequence[Tensor]) -> Tensor:
        return self.head(self.fine(image, features)).float()
