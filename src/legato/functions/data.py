"""Data that a smooth term takes for granted, looked at once, when the term is made."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from legato._support.checks import is_concrete, is_recorded, require_tensor
from legato._support.tree import largest_over
from legato.errors import InputError
from legato.operators import Operator


def require_labels(b: Tensor, name: str) -> None:
    """Refuse labels that are not −1 and 1: with others the loss is another one."""
    require_tensor(b, f"The labels b of {name}")
    if not b.is_floating_point():
        raise InputError(f"{name} needs floating-point labels −1.0 and 1.0.")
    if not readable(b):
        return
    strange = (b.detach().abs() != 1) & ~b.detach().isnan()  # NaN is refused when it is solved
    if bool(strange.any()):
        found = float(b.detach()[strange].flatten()[0])
        cure = (
            "Write labels 0 and 1 as 2 * b - 1." if found == 0 else "Scale the rows of A instead."
        )
        raise InputError(
            f"{name} needs labels −1 and 1, but {int(strange.sum())} of {b.numel()} are not, the "
            f"first of them {found:g}. {cure}"
        )


@torch.no_grad()
def require_symmetric(Q: Operator, c: Tensor) -> None:
    """Refuse Q ≠ Q*, told by one random vector: ∇f would be (Q + Q*)x/2 + c, not Qx + c."""
    if not readable(c):
        return
    chance = np.random.default_rng(0)
    v = torch.from_numpy(chance.standard_normal(tuple(c.shape)))
    if c.is_complex():
        v = torch.complex(v, torch.from_numpy(chance.standard_normal(tuple(c.shape))))
    v = v.to(c.device, c.dtype)
    one, other = Q(v), Q.adjoint(v)
    if one.numel() == 0:
        return  # refused when it is solved
    # Each element of a batch by its own size: a large one would hide what is wrong in a small one.
    axes = one.ndim if Q.coupled is None else Q.coupled[0]
    size = largest_over(torch.maximum(one.abs(), other.abs()), axes)
    apart = largest_over((one - other).abs(), axes)
    wrong = apart > torch.finfo(c.dtype).eps ** 0.5 * size
    if bool(wrong.any()):
        worst = float((apart / size)[wrong].amax())
        raise InputError(
            f"Quadratic needs a symmetric Q, but Qv and Q*v differ by {worst:.1e} of "
            "their size: ½⟨x, Qx⟩ sees the symmetric part alone, so write (Q + Q.mH) / 2."
        )


def readable(tensor: Tensor) -> bool:
    floating = isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex())
    return floating and is_concrete() and not is_recorded() and not tensor.is_meta
