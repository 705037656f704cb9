"""Maps of singular values, with a derivative where some of them are equal or 0.

torch differentiates singular vectors, which have no derivative where values meet: it divides by
their distance. The matrix with the new values has one, by divided differences of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import real_dtype

Move = Callable[[Tensor], tuple[Tensor, Tensor]]
"""S ↦ f, attached to what it depends on, and the slope of f_i in σ_i where levels stay."""


def moved_singular_values(y: Tensor, move: Move) -> Tensor:
    """U f(S) Vᴴ for y = U S Vᴴ, of matrices in the last two axes; NaN where an entry is none.

    Equal values have to be moved alike.
    """
    U, S, V = _decomposed(y)
    f, slope = (t.to(S.dtype) for t in move(S))
    return _Assembled.apply(y, f, slope.detach(), U, S, V)  # type: ignore[no-untyped-call]


def soft_threshold_singular_values(y: Tensor, threshold: Any) -> Tensor:
    """U max(S − t, 0) Vᴴ for y = U S Vᴴ, with one t for each matrix."""
    t = torch.as_tensor(threshold, dtype=real_dtype(y.dtype), device=y.device)
    t = t.expand(*y.shape[:-2], 1, 1)[..., 0]
    return moved_singular_values(y, lambda S: shrunk(S, t))


def shrunk(S: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """max(S − t, 0), for t ≥ 0, and its slope; a threshold of 0 takes nothing away."""
    kept = ~(t >= S)  # NaN stays
    whole = t == 0
    f = torch.where(kept, S - t, torch.where(whole, S - t.detach(), 0.0))
    return f, (kept | whole).to(S.dtype)


def _decomposed(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of finite matrices; NaN for the others, which LAPACK refuses."""
    broken = ~torch.isfinite(y).all((-2, -1), keepdim=True)
    U, S, Vh = torch.linalg.svd(torch.where(broken, 0.0, y), full_matrices=False)
    return U, torch.where(broken[..., 0], torch.nan, S), Vh.mH


class _Assembled(torch.autograd.Function):
    """U f Vᴴ. Its derivative in y is what turns U and V alone: what changes S comes through f."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        y: Tensor, f: Tensor, slope: Tensor, U: Tensor, S: Tensor, V: Tensor
    ) -> Tensor:  # fmt: skip
        return (U * f.unsqueeze(-2)) @ V.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        f, slope, U, S, V = ctx.saved_tensors
        in_y = _turned(f, slope, U, S, V, grad) if ctx.needs_input_grad[0] else None
        in_f = None
        if ctx.needs_input_grad[1]:
            along = (U.conj() * (grad @ V)).sum(-2)
            in_f = along.real if along.is_complex() else along
        return in_y, in_f, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, of_y: Tensor | None, of_f: Tensor | None, *_: Any) -> Tensor:
        f, slope, U, S, V = ctx.saved_tensors
        found = torch.zeros_like(U @ V.mH)
        if of_y is not None:
            found = found + _turned(f, slope, U, S, V, of_y)
        return found if of_f is None else found + (U * of_f.unsqueeze(-2)) @ V.mH


def _turned(f: Tensor, slope: Tensor, U: Tensor, S: Tensor, V: Tensor, H: Tensor) -> Tensor:
    r"""DF(y)[H] for F = U f Vᴴ without the change of f, which is its own adjoint.

    .. math:: U\bigl(Γ ∘ \tfrac{M + Mᴴ}2 + Δ ∘ \tfrac{M − Mᴴ}2\bigr)Vᴴ + \text{the rest of } H

    with M = UᴴHV, Γ_ij = (f_i − f_j)/(σ_i − σ_j) for i ≠ j, Δ_ij = (f_i + f_j)/(σ_i + σ_j), and the
    slope where these are 0/0. Reference: Lewis and Sendov (2005).
    """
    a, b = S.unsqueeze(-1), S.unsqueeze(-2)
    fa, fb = f.unsqueeze(-1), f.unsqueeze(-2)
    # Nearer than rounding, values count as equal: their quotient would be noise.
    near = (a - b).abs() <= 8 * torch.finfo(S.dtype).eps * torch.maximum(a, b)
    mean_slope = 0.5 * (slope.unsqueeze(-1) + slope.unsqueeze(-2))
    gamma = torch.where(near, mean_slope, (fa - fb) / torch.where(near, 1.0, a - b))
    gamma = gamma * (1 - torch.eye(S.shape[-1], dtype=S.dtype, device=S.device))
    none = a + b == 0
    delta = torch.where(none, mean_slope, (fa + fb) / torch.where(none, 1.0, a + b))
    ratio = torch.where(S == 0, slope, f / torch.where(S == 0, 1.0, S))
    HV, HtU = H @ V, H.mH @ U
    M = U.mH @ HV
    core = 0.5 * (gamma * (M + M.mH) + delta * (M - M.mH))
    left = (HV - U @ M) * ratio.unsqueeze(-2)  # columns outside the range of U, of a tall matrix
    right = (HtU - V @ M.mH) * ratio.unsqueeze(-2)
    return U @ core @ V.mH + left @ V.mH + U @ right.mH


def leading_directions(y: Tensor) -> Tensor:
    """u vᴴ, summed over the largest singular value of each matrix and its equals."""
    U, S, V = _decomposed(y)
    return (U * (S[..., :1] == S).to(S.dtype).unsqueeze(-2)) @ V.mH * (S[..., :1, None] > 0)
