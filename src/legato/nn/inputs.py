"""Checks that the layers share: what is wrong, why, and what to try."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import torch
from torch import Tensor

from legato._support.checks import is_concrete
from legato.errors import InputError, NonFiniteGradientWarning


def require_image(
    image: Tensor, *, volumes: bool = True, name: str = "image", axis: str = "C"
) -> None:
    """Refuse what is not a finite, non-empty batch of images (or volumes) in full precision."""
    shapes = f"(B, {axis}, H, W) or (B, {axis}, D, H, W)" if volumes else f"(B, {axis}, H, W)"
    if not isinstance(image, Tensor) or image.ndim not in ((4, 5) if volumes else (4,)):
        found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise InputError(f"{name} must have shape {shapes}, not {found}.")
    if image.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} is {image.dtype}; the solver computes in float32 or float64. Call .float() on "
            "it (and divide integers by their range, e.g. 255)."
        )
    if image.is_meta:
        raise InputError(f"{name} is on the meta device: it has a shape, but nothing to solve for.")
    if image.numel() == 0:
        raise InputError(f"{name} of shape {tuple(image.shape)} is empty: nothing to solve for.")
    require_finite(image, name)


def cheap_to_read(tensor: Tensor) -> bool:
    """Not on a GPU, which would wait in every training step: there NaN shows in the loss."""
    return not tensor.is_cuda and is_concrete()


def require_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity."""
    if not cheap_to_read(tensor):
        return
    # By NumPy: after an operation on many numbers torch's threads spin for milliseconds, on cores
    # that a kernel needs next.
    known = tensor.detach()
    if known.dtype == torch.bfloat16:  # which NumPy does not have
        known = known.float()
    finite = np.isfinite(known.numpy(force=True))
    if not finite.all():
        count = int((~finite).sum())
        raise InputError(
            f"{name} holds {count} NaN or infinite values of {tensor.numel()}. Look for an "
            "overflow in what computed it, or clean it with torch.nan_to_num."
        )


def watch_gradient(tensor: Tensor, name: str) -> Tensor:
    """The same tensor; a gradient of it that is NaN or infinite is warned about."""
    if not (tensor.requires_grad and torch.is_grad_enabled() and cheap_to_read(tensor)):
        return tensor
    seen = tensor.view_as(tensor)  # the hook must not stay with a tensor that is not ours
    seen.register_hook(partial(_warn_unless_finite, name))
    return seen


def _warn_unless_finite(name: str, gradient: Tensor) -> None:
    if not is_concrete():
        return
    finite = np.isfinite(gradient.detach().numpy(force=True))
    if not finite.all():
        warnings.warn(
            f"The gradient with respect to {name} holds {int((~finite).sum())} NaN or infinite "
            f"values of {gradient.numel()}: it is no number of {gradient.dtype}, or that of the "
            "loss with respect to this layer's output was none already. Scale the layer's input "
            "to the size of 1, or use float64.",
            NonFiniteGradientWarning,
            stacklevel=2,
        )


def require_nonnegative(tensor: Tensor, name: str) -> None:
    """Refuse negative weights."""
    if cheap_to_read(tensor) and not bool((tensor.detach() >= 0).all()):
        raise InputError(
            f"{name} must be non-negative, but the smallest entry is "
            f"{float(tensor.detach().min()):g}: the energy would not be convex. Parametrise, e.g. "
            "by softplus."
        )


def require_like(tensor: Tensor, data: Tensor, name: str, of: str = "image") -> None:
    """Refuse another device or dtype than the data's."""
    if tensor.device != data.device:
        raise InputError(
            f"{name} and {of} must be on one device, but are on {tensor.device} and {data.device}."
        )
    if tensor.dtype != data.dtype:
        raise InputError(
            f"{name} and {of} must share a dtype, but are {tensor.dtype} and {data.dtype}. Convert "
            "one of them."
        )


def require_iterations(iterations: int, layer: str) -> None:
    """Refuse what is not a positive whole number."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise InputError(f"{layer} needs a positive number of iterations, not {iterations!r}.")
