"""Inverses of many small positive definite matrices, compiled where that pays."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.fused.choice import available

_SMALL = 96
"""Up to this size our own loops on a CPU are faster than a call of LAPACK for each matrix."""


def compiled_for(some: Tensor) -> bool:
    """Whether the loops that Numba compiles serve this tensor."""
    return some.device.type == "cpu" and available("numba")


def inverses(M: Tensor) -> tuple[Tensor, Tensor]:
    """M⁻¹ for every instance, zero where M is not positive definite, and where it is."""
    if M.shape[-1] <= _SMALL and compiled_for(M):
        from legato.nn.programs import numba

        return numba.inverses(M)
    L, info = torch.linalg.cholesky_ex(M)
    sound = info == 0
    identity = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    L = torch.where(sound[:, None, None], L, identity)
    R = torch.linalg.solve_triangular(L, identity.expand(L.shape), upper=False)
    return torch.where(sound[:, None, None], R.mT @ R, 0.0), sound
