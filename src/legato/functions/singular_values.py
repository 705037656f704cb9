"""Soft thresholding of singular values, with a derivative where some of them are equal or 0.

torch differentiates singular vectors, which have no derivative where values meet: it divides by
their distance. The thresholded matrix has one, by divided differences of the threshold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.tree import product, real_dtype


def soft_threshold_singular_values(y: Tensor, threshold: Any) -> Tensor:
    """U max(S − t, 0) Vᴴ for y = U S Vᴴ, with one t for each matrix."""
    t = torch.as_tensor(threshold, dtype=real_dtype(y.dtype), device=y.device)
    return _Thresholded.apply(y, t.expand(*y.shape[:-2], 1, 1))  # type: ignore[no-untyped-call]


def _decomposed(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of finite matrices; NaN for the others, which LAPACK refuses."""
    broken = ~torch.isfinite(y).all((-2, -1), keepdim=True)
    U, S, Vh = torch.linalg.svd(torch.where(broken, 0.0, y), full_matrices=False)
    return U, torch.where(broken[..., 0], torch.nan, S), Vh.mH


def _derivative(y: Tensor, t: Tensor, direction: Tensor) -> Tensor:
    r"""DF(y)[H] for F = U f(S) Vᴴ, which is its own adjoint.

    .. math:: U\bigl(Γ ∘ \tfrac{M + Mᴴ}2 + Δ ∘ \tfrac{M − Mᴴ}2\bigr)Vᴴ + \text{the rest of } H

    with M = UᴴHV, Γ_ij = (f_i − f_j)/(σ_i − σ_j), Δ_ij = (f_i + f_j)/(σ_i + σ_j), and f′ where
    these are 0/0. Reference: Lewis and Sendov (2005).
    """
    U, S, V = _decomposed(y)
    t = t[..., 0]
    f = torch.clamp(S - t, min=0)
    slope = ((t < S) | (t == 0)).to(S.dtype)  # a threshold of 0 takes nothing away
    a, b = S.unsqueeze(-1), S.unsqueeze(-2)
    fa, fb = f.unsqueeze(-1), f.unsqueeze(-2)
    # Nearer than rounding, values count as equal: their quotient would be noise.
    near = (a - b).abs() <= 8 * torch.finfo(S.dtype).eps * torch.maximum(a, b)
    mean_slope = 0.5 * (slope.unsqueeze(-1) + slope.unsqueeze(-2))
    gamma = torch.where(near, mean_slope, (fa - fb) / torch.where(near, 1.0, a - b))
    none = a + b == 0
    delta = torch.where(none, mean_slope, (fa + fb) / torch.where(none, 1.0, a + b))
    ratio = torch.where(S == 0, slope, f / torch.where(S == 0, 1.0, S))
    HV, HtU = direction @ V, direction.mH @ U
    M = U.mH @ HV
    core = 0.5 * (gamma * (M + M.mH) + delta * (M - M.mH))
    left = (HV - U @ M) * ratio.unsqueeze(-2)  # columns outside the range of U, of a tall matrix
    right = (HtU - V @ M.mH) * ratio.unsqueeze(-2)
    return U @ core @ V.mH + left @ V.mH + U @ right.mH


class _Thresholded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, t: Tensor) -> Tensor:
        U, S, V = _decomposed(y)
        return (U * torch.clamp(S - t[..., 0], min=0).unsqueeze(-2)) @ V.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, t = ctx.saved_tensors
        in_t = None
        if ctx.needs_input_grad[1]:
            in_t = -product(_cut(y, t), grad).sum((-2, -1), keepdim=True)
        in_y = _derivative(y, t, grad) if ctx.needs_input_grad[0] else None
        return in_y, in_t

    @staticmethod
    def jvp(ctx: Any, of_y: Tensor | None, of_t: Tensor | None) -> Tensor:
        y, t = ctx.saved_tensors
        found = torch.zeros_like(y)
        if of_y is not None:
            found = found + _derivative(y, t, of_y)
        return found if of_t is None else found - of_t * _cut(y, t)


def _cut(y: Tensor, t: Tensor) -> Tensor:
    """U [S > t] Vᴴ: what a larger threshold takes away."""
    U, S, V = _decomposed(y)
    return (U * (t[..., 0] < S).to(S.dtype).unsqueeze(-2)) @ V.mH


def leading_directions(y: Tensor) -> Tensor:
    """u vᴴ, summed over the largest singular value of each matrix and its equals."""
    U, S, V = _decomposed(y)
    return (U * (S[..., :1] == S).to(S.dtype).unsqueeze(-2)) @ V.mH * (S[..., :1, None] > 0)
