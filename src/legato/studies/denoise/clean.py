"""Denoising pictures of any size with given filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn import AnalysisDenoiser, noise_level

TILE, MARGIN = 512, 64
"""Larger pictures are denoised tile by tile: 48 filters need 192 bytes a pixel and variable."""


def require_sigma(sigma: float) -> float:
    """σ of 255 as σ of one; refuses what is none."""
    if not (math.isfinite(sigma) and 0 <= sigma <= 255):
        raise InputError(
            f"sigma must be a standard deviation between 0 and 255, on the scale where white is "
            f"255, not {sigma}. Leave it out to have it estimated."
        )
    return sigma / 255


def estimate_sigma(channels: Tensor) -> float:
    """σ of one of a picture (C, H, W)."""
    return float(noise_level(channels[None])[0])


@torch.no_grad()
def clean(
    channels: Tensor, sigma: float, denoiser: AnalysisDenoiser, device: torch.device
) -> Tensor:
    """Denoise (C, H, W) channel by channel; with σ = 0 nothing changes."""
    if sigma == 0:
        return channels
    denoiser = denoiser.to(device).eval()
    _, height, width = channels.shape
    # Here, not only in the layer, which would see tiles and estimate.
    if min(height, width) < denoiser.size:
        raise InputError(
            f"A picture of {width}×{height} pixels is smaller than the filters, "
            f"{denoiser.size}×{denoiser.size}."
        )
    found = torch.empty_like(channels)
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            rows = slice(max(0, top - MARGIN), min(height, top + TILE + MARGIN))
            columns = slice(max(0, left - MARGIN), min(width, left + TILE + MARGIN))
            inner = (
                slice(top - rows.start, min(height, top + TILE) - rows.start),
                slice(left - columns.start, min(width, left + TILE) - columns.start),
            )
            for c in range(len(channels)):
                part = channels[c, rows, columns].to(device)[None, None]
                value = denoiser(part, sigma).x[0, 0]
                found[c, top : top + TILE, left : left + TILE] = value[inner].to(found)
    return found
