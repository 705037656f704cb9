"""Filters of mean zero as combinations of cosines, and which to start from."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dct_basis(size: int, like: Tensor) -> Tensor:
    """The orthonormal DCT-II basis without its constant, (size² − 1, size, size).

    Made anew in every call: a buffer would stay in 24 bits after ``.float().double()``, and a
    tensor kept from ``torch.inference_mode()`` could not be trained with.
    """
    exact = like.dtype if like.device.type == "mps" else torch.float64
    n = torch.arange(size, dtype=exact, device=like.device)
    lines = torch.cos(math.pi / size * n[:, None] * (n[None] + 0.5)) * math.sqrt(2 / size)
    lines[0] /= math.sqrt(2)
    products = torch.einsum("ai,bj->abij", lines, lines).reshape(-1, size, size)[1:]
    # Rounding leaves a mean of 1e-17; filters must answer exactly 0 to a constant.
    return (products - products.mean((1, 2), keepdim=True)).to(like.dtype)


def first_coefficients(filters: int, channels: int, size: int) -> Tensor:
    """The basis itself, channel frequency by channel frequency; further filters are random."""
    n = torch.arange(channels, dtype=torch.float64)
    colours = torch.cos(math.pi / channels * n[:, None] * (n[None] + 0.5))
    colours /= colours.norm(dim=1, keepdim=True)
    count = size * size - 1
    eye = torch.eye(count, dtype=torch.float64)
    whole = torch.einsum("fc,kb->fkcb", colours, eye).reshape(channels * count, channels, count)
    extra = filters - len(whole)
    if extra <= 0:
        return whole[:filters].to(torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(
        extra, channels, count, generator=generator, dtype=torch.float64, device="cpu"
    )
    random = random / random.flatten(1).norm(dim=1)[:, None, None]
    return torch.cat((whole, random.to(whole))).to(torch.get_default_dtype())
