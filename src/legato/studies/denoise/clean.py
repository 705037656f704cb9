"""Denoising pictures of any size, with the filters that come with the package or with others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn import AnalysisDenoiser, noise_level

_SHIPPED = Path(__file__).parent / "parameters"
PARAMETERS = _SHIPPED / "filters.safetensors"
STORY = _SHIPPED / "filters.json"
"""How those filters were trained."""

TILE, MARGIN = 512, 64
"""Larger pictures are denoised tile by tile: 48 filters need 192 bytes a pixel and variable."""


def shipped_denoiser() -> AnalysisDenoiser:
    """Filters for grey images in [0, 1], told σ or estimating it, from the project's training."""
    return AnalysisDenoiser.load(PARAMETERS)


def load_filters(path: Path | None) -> AnalysisDenoiser:
    """The filters in a file, which have to suit grey images with any σ; None for the shipped."""
    if path is None:
        return shipped_denoiser()
    denoiser = AnalysisDenoiser.load(path)
    if not denoiser.conditioned or denoiser.channels != 1:
        raise InputError(
            f"The filters in {path} are for {denoiser.channels} channel(s) and "
            f"{'every σ' if denoiser.conditioned else 'one σ only'}; needed are filters for one "
            "channel that are told σ, such as all/filters.safetensors of `legato denoise table`."
        )
    return denoiser


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


def parts(channels: Tensor) -> int:
    """How many tiles of one channel each there are to denoise."""
    count, height, width = channels.shape
    return count * math.ceil(height / TILE) * math.ceil(width / TILE)


@torch.no_grad()
def clean_channels(
    channels: Tensor,
    sigma: float,
    denoiser: AnalysisDenoiser,
    device: torch.device,
    advance: Callable[[], None] = lambda: None,
) -> Tensor:
    """Denoise (C, H, W) channel by channel; with σ = 0 nothing changes.

    ``advance`` is called after each of the :func:`parts` of the picture.
    """
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
                value = denoiser(part, sigma)[0, 0]
                found[c, top : top + TILE, left : left + TILE] = value[inner].to(found)
                advance()
    return found
