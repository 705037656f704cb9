"""Denoising pictures of any size, with the filters that come with the package or with others."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from legato.errors import InputError
from legato.nn import AnalysisDenoiser, noise_level
from legato.studies.denoise.models import MappedAnalysis

_SHIPPED = Path(__file__).parent / "parameters"
FILTERS_FILE = _SHIPPED / "filters.safetensors"
MAPS_FILE = _SHIPPED / "filters-maps.safetensors"

TILE, MARGIN = 512, 64
"""Larger pictures are denoised tile by tile: 48 filters need 192 bytes a pixel and variable."""


def story_of(shipped: Path) -> Path:
    """How and where a file that comes with the package was trained."""
    return shipped.with_suffix(".json")


def shipped_filters() -> AnalysisDenoiser:
    """Filters for grey images in [0, 1], told σ or estimating it, from the project's training."""
    return AnalysisDenoiser.load(FILTERS_FILE)


def shipped_denoiser() -> MappedAnalysis:
    """Filters for grey images in [0, 1], with weights that a network reads off the image and σ."""
    return MappedAnalysis.load(MAPS_FILE)


def load_denoiser(path: Path | None) -> AnalysisDenoiser | MappedAnalysis:
    """The filters in a file, which have to suit grey images with any σ; None for the shipped."""
    if path is None:
        return shipped_denoiser()
    mapped = MappedAnalysis.wrote(path)
    denoiser = MappedAnalysis.load(path) if mapped else AnalysisDenoiser.load(path)
    filters = denoiser.filters if isinstance(denoiser, MappedAnalysis) else denoiser
    if not filters.conditioned or filters.channels != 1:
        raise InputError(
            f"The filters in {path} are for {filters.channels} channel(s) and "
            f"{'every σ' if filters.conditioned else 'one σ only'}; needed are filters for one "
            "channel that are told σ, such as those in the folder all of `legato denoise table`."
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
    denoiser: AnalysisDenoiser | MappedAnalysis,
    device: torch.device,
    advance: Callable[[], None] = lambda: None,
) -> Tensor:
    """Denoise (C, H, W) channel by channel; with σ = 0 nothing changes.

    ``advance`` is called after each of the :func:`parts` of the picture.
    """
    if sigma == 0:
        return channels
    denoiser = denoiser.to(device).eval()
    means = [float(channel.mean()) for channel in channels]
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
                if isinstance(denoiser, MappedAnalysis):
                    value = denoiser(part, sigma, means[c])[0, 0]
                else:
                    value = denoiser(part, sigma)[0, 0]
                found[c, top : top + TILE, left : left + TILE] = value[inner].to(found)
                advance()
    return found
