"""One picture with noise, denoised by total variation, and how good each weight is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from legato.nn import TotalVariation
from legato.studies.explore.controls import DenoisingControls, limits

ITERATIONS = 100
LEARNING_STEPS = 12
LEAST_WEIGHT = 1e-3
"""Where learning begins to look: a hundredth of what pictures with noise ask for."""
_GRID = 13
_WEIGHTS = limits(DenoisingControls, "weight")


@dataclass(frozen=True)
class Denoising:
    """Pictures (3, H, W), PSNR in dB, and its derivative in λ, by unrolling."""

    noisy: Tensor
    denoised: Tensor
    noisy_psnr: float
    psnr: float
    slope: float


def denoise_picture(image: Tensor, controls: DenoisingControls) -> Denoising:
    r"""Add noise to an image (3, H, W) in [0, 1], take it out again, differentiate the result.

    .. math:: u(λ) = \arg\min_u \tfrac12‖u − y‖^2 + λ‖∇u‖_{2,1}, \qquad
              \frac{d}{dλ}\, \mathrm{PSNR}(u(λ))

    """
    noisy = with_noise(image, controls.noise)
    weight = torch.tensor(controls.weight, requires_grad=True)
    found = _denoise(noisy, weight)
    score = psnr(found, image)
    (slope,) = torch.autograd.grad(score, weight)
    return Denoising(
        noisy, found.detach(), float(psnr(noisy, image)), float(score.detach()), float(slope)
    )


def learn_weight(image: Tensor, controls: DenoisingControls) -> list[tuple[float, float]]:
    """(λ, PSNR) of every step, starting from the controls.

    The sign of dPSNR/dλ says on which side the best λ lies: each step halves what is left, in log
    λ. The picture without noise is known, as it is in training.
    """
    least, most = max(_WEIGHTS[0], LEAST_WEIGHT), _WEIGHTS[1]
    weight = max(controls.weight, least)
    path = []
    for _ in range(LEARNING_STEPS):
        found = denoise_picture(image, DenoisingControls(controls.noise, weight))
        path.append((weight, found.psnr))
        least, most = (weight, most) if found.slope > 0 else (least, weight)
        weight = math.sqrt(least * most)
    return path


def curve(image: Tensor, noise: float) -> list[tuple[float, float]]:
    """(λ, PSNR) over the whole range of λ."""
    return list(_curve(_Picture(image), noise))


class _Picture:
    """An image that can be the key of a cache: two are equal if their pixels are."""

    def __init__(self, image: Tensor) -> None:
        self.image = image
        self.key = (tuple(image.shape), hash(image.numpy().tobytes()))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Picture) and torch.equal(self.image, other.image)


@lru_cache(maxsize=8)
def _curve(picture: _Picture, noise: float) -> tuple[tuple[float, float], ...]:
    noisy = with_noise(picture.image, noise)
    low, high = math.log(2e-3), math.log(_WEIGHTS[1])
    weights = [math.exp(low + k * (high - low) / (_GRID - 1)) for k in range(_GRID)]
    with torch.no_grad():
        return tuple(
            (weight, float(psnr(_denoise(noisy, torch.tensor(weight)), picture.image)))
            for weight in weights
        )


def with_noise(image: Tensor, noise: float) -> Tensor:
    """The same noise for the same picture, of standard deviation ``noise`` of 255."""
    drawn = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return image + noise / 255 * drawn


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """10 log₁₀(1/mean squared error), in dB."""
    return -10 * torch.log10((found - truth).square().mean().clamp(min=1e-12))


def _denoise(noisy: Tensor, weight: Tensor) -> Tensor:
    layer = TotalVariation(ITERATIONS, joint_channels=True)
    found: Tensor = layer(noisy[None], weight)[0]
    return found
