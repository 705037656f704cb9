"""Random numbers from a seed, in float64 unless asked otherwise."""

from __future__ import annotations

import torch
from torch import Tensor


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def crandn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.complex128) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.complex128).to(dtype)
