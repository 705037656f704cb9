"""Networks that give each pixel a score per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from legato.errors import InputError
from legato.nn import FineFeatures
from legato.studies.segment.data.datasets import IMAGENET_MEAN

# What VGG-16 was trained with on ImageNet; a constant shift and scale does no network harm.
MEAN = IMAGENET_MEAN
STD = (0.229, 0.224, 0.225)

# Output channels of the 13 convolutions of VGG-16; "M" is a pooling.
_VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")


class Scores(NamedTuple):
    """What a network may return in place of logits: also finer features, for learned weights.

    ``logits`` (B, L, H, W) at the size of the image; ``features`` a few maps (B, C, h, w) of the
    same picture at any resolution.
    """

    logits: Tensor
    features: tuple[Tensor, ...] = ()


class FineScores(nn.Module):
    """Scores from fine features, to be added to the network's coarse ones; zero at first.

    This is what one would build without an optimisation layer, with as many parameters as learned
    weights have: the fair rival of :class:`legato.nn.LearnedEdges`.
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


class SmallNet(nn.Module):
    """The paper's small network: four 3×3 convolutions, two poolings, 1×1, up-convolution.

    Reference: Section 8.3 of Ochs et al. (2016).
    """

    channels: tuple[int, ...]

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.channels = (width, width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.third = nn.Conv2d(width, width, 3, padding=1)
        self.fourth = nn.Conv2d(width, width, 3, padding=1)
        self.classify = nn.Conv2d(width, classes, 1)
        # Starts as bilinear interpolation by 4, one class at a time, and learns from there.
        self.up = nn.ConvTranspose2d(classes, classes, 8, stride=4, padding=2)
        with torch.no_grad():
            self.up.weight.zero_()
            assert self.up.bias is not None
            self.up.bias.zero_()
            tent = 1 - (torch.arange(8) - 3.5).abs() / 4
            for k in range(classes):
                self.up.weight[k, k] = tent[:, None] * tent

    def forward(self, image: Tensor) -> Scores:
        one = torch.relu(self.first(_normalised(image)))
        two = torch.relu(self.second(_pooled(one)))
        x = torch.relu(self.third(_pooled(two)))
        x = torch.relu(self.fourth(x))
        logits = self.up(self.classify(x))
        return Scores(_cropped(logits, image), (one, two))


class VGG32(nn.Module):
    """VGG-32s: the convolutions of VGG-16, a small head at stride 32, bilinear interpolation.

    After FCN-32s, but smaller: a head of one 3×3 and one 1×1 convolution, begun at random, takes
    the place of its fc6 and fc7, and interpolation that of its learned up-convolution. That leaves
    17 million parameters of 134, and ImageNet's convolutions to start from instead of a trained
    FCN.
    Reference: Long, Shelhamer, Darrell, Fully convolutional networks (CVPR 2015).
    """

    channels = (64, 128, 256)

    def __init__(self, classes: int, hidden: int = 512, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in _VGG16:
            if isinstance(width, int):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            else:
                # Rounding up: every pixel of an image of any size has an answer.
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropout),
            nn.Conv2d(hidden, classes, 1),
        )
        nn.init.kaiming_normal_(self.head[0].weight, nonlinearity="relu")  # type: ignore[arg-type]
        nn.init.normal_(self.head[3].weight, std=0.01)  # type: ignore[arg-type]
        # The layout in which convolutions are fastest on a GPU; values are the same.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def coarse(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The logits at stride 32, and the feature maps before the first three poolings."""
        x = _normalised(image)
        maps: list[Tensor] = []
        for layer in self.features:
            if isinstance(layer, nn.MaxPool2d) and len(maps) < len(self.channels):
                maps.append(x)
            x = layer(x)
        return self.head(x), tuple(maps)

    def forward(self, image: Tensor) -> Scores:
        logits, maps = self.coarse(image)
        return Scores(upsampled(logits, image.shape[-2:]), maps)

    def load_features(self, path: Path | None) -> None:
        """Take ImageNet's convolutions from a safetensors file, or from torchvision (None)."""
        stored = _vgg16_weights(path)
        try:
            take_tensors(self.features, stored)
        except InputError as error:
            raise InputError(
                f"The weights {path} are not VGG-16's, whose keys are features.0.weight … "
                f"features.28.bias: {error}."
            ) from error


def upsampled(coarse: Tensor, size: tuple[int, ...], stride: int = 32) -> Tensor:
    """Bilinear interpolation from stride ``stride`` to the image, in float32."""
    return F.interpolate(coarse.float(), scale_factor=stride, mode="bilinear", align_corners=False)[
        ..., : size[0], : size[1]
    ]


def _vgg16_weights(path: Path | None) -> dict[str, Tensor]:
    if path is None:
        try:
            from torchvision.models import VGG16_Weights, vgg16
        except Exception as error:  # a torchvision that does not fit its torch raises anything
            raise InputError(
                "VGG-32s starts from VGG-16's ImageNet convolutions, and torchvision, which would "
                f"download them, cannot be imported ({error}). Give a safetensors file in "
                "torchvision's layout with --weights FILE, or train from nothing with --weights "
                "random."
            ) from error
        try:
            return vgg16(weights=VGG16_Weights.IMAGENET1K_V1).features.state_dict()
        except (OSError, RuntimeError) as error:  # no network, or half a file in its cache
            raise InputError(
                f"torchvision could not get VGG-16's weights ({error}). Where this machine is not "
                "online, give a safetensors file with --weights FILE, or --weights random."
            ) from error
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"The weights {path} cannot be read ({error}). A safetensors file with keys such as "
            "features.0.weight is needed."
        ) from error
    return {
        key.removeprefix("features."): value.float()
        for key, value in stored.items()
        if key.startswith("features.")
    }


def take_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state dict, or say in one sentence how the two differ."""
    own = module.state_dict()
    differences = [
        *(f"{name} is missing" for name in own if name not in tensors),
        *(f"{name} is not part of it" for name in tensors if name not in own),
        *(
            f"{name} has shape {tuple(tensors[name].shape)} instead of {tuple(value.shape)}"
            for name, value in own.items()
            if name in tensors and tensors[name].shape != value.shape
        ),
    ]
    if differences:
        count = len(differences)
        first = "; ".join(differences[:3]) + (f"; and {count - 3} more" if count > 3 else "")
        raise InputError(f"{count} tensors do not fit the {len(own)} of the network: {first}")
    module.load_state_dict(dict(tensors))


def _normalised(image: Tensor) -> Tensor:
    mean = image.new_tensor(MEAN)[:, None, None]
    std = image.new_tensor(STD)[:, None, None]
    return (image - mean) / std


def _pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


def _cropped(x: Tensor, image: Tensor) -> Tensor:
    return x[..., : image.shape[-2], : image.shape[-1]]
