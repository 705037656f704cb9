"""Inverses of many small positive definite matrices, by compiled loops where that pays."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.fused.choice import available

_SMALL = 96
"""Up to this size our own loops on a CPU are faster than a call of LAPACK for each matrix."""
_IN_REGISTERS = 64
"""Up to this size a GPU keeps a matrix in the registers of one kernel."""


def compiled_for(some: Tensor) -> bool:
    """Whether the loops that Numba compiles serve this tensor."""
    return some.device.type == "cpu" and available("numba")


def fused_for(some: Tensor) -> bool:
    """Whether the kernels that Triton compiles serve matrices, or rows, of this size."""
    return (
        some.device.type == "cuda" and 0 < some.shape[-1] <= _IN_REGISTERS and available("triton")
    )


def inverses(M: Tensor) -> tuple[Tensor, Tensor]:
    """M⁻¹ for every instance, zero where M is not positive definite, and where it is."""
    if M.shape[-1] <= _SMALL and compiled_for(M):
        from legato.nn.programs import numba

        return numba.inverses(M)
    if fused_for(M):
        from legato.nn.programs import triton

        return triton.inverses(M)
    L, info = torch.linalg.cholesky_ex(M)
    sound = info == 0
    identity = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    L = torch.where(sound[:, None, None], L, identity)
    if M.is_cuda:  # where products are what a batch is best at
        R = torch.linalg.solve_triangular(L, identity.expand(L.shape), upper=False)
        inverse = R.mT @ R
    else:
        inverse = torch.cholesky_inverse(L)
    return torch.where(sound[:, None, None], inverse, 0.0), sound
