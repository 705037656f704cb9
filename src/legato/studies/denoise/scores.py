"""How close a denoised image is to the clean one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from legato.studies.denoise.images import noisy

Denoise = Callable[[Tensor], Tensor]


def psnr(image: Tensor, clean: Tensor) -> float:
    """−10 log₁₀ of the mean squared error, in dB: white is one."""
    error = (image.double() - clean.double()).square().mean()
    return float(-10 * error.log10())


def ssim(image: Tensor, clean: Tensor) -> float:
    """The structural similarity of Wang et al. (2004), Gaussian windows of 11×11 pixels."""
    value = structural_similarity_index_measure(image, clean, data_range=1.0)
    assert isinstance(value, Tensor)
    return float(value)


@torch.no_grad()
def score(
    denoise: Denoise, images: Sequence[Tensor], sigma: float, device: torch.device
) -> dict[str, Any]:
    """PSNR and SSIM of every image, and their means; image i gets noise number i."""
    each: dict[str, list[float]] = {"psnr": [], "ssim": []}
    for number, image in enumerate(images):
        clean = image.to(device)[None, None]
        found = denoise(noisy(image, sigma, number).to(device)[None, None])
        each["psnr"].append(psnr(found, clean))
        each["ssim"].append(ssim(found, clean))
    return summary(each)


def summary(each: dict[str, list[float]]) -> dict[str, Any]:
    """Means over the images, with what they are means of."""
    means: dict[str, Any] = {name: sum(values) / len(values) for name, values in each.items()}
    return means | {"each": {name: [round(v, 4) for v in values] for name, values in each.items()}}
