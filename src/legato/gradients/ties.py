"""Ties in the data of a problem, at which the fixed-point equation may leave a gradient open."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.holding import holders
from legato.operators import Dense, Operator


def may_be_tied(problem: Any) -> bool:
    """Whether anything that is learned is a weight of exactly 0, or has two equal columns.

    A weight or radius of 0 takes its term out of the problem, and with it what determined a dual;
    of two equal columns only a sum is determined. The loss need not see either of them.
    """
    return any(
        _equal_columns(value) if isinstance(holder, Dense) else bool((value.detach() == 0).any())
        for holder in holders(problem)
        for name, value in vars(holder).items()
        if isinstance(value, Tensor) and value.requires_grad
        if isinstance(holder, Operator) or name in holder.nonnegative
    )


def weights_of_zero(problem: Any) -> list[Tensor]:
    """What is learned and must not be negative, and is exactly 0 in places."""
    return [
        value
        for holder in holders(problem)
        for name, value in vars(holder).items()
        if isinstance(value, Tensor) and value.requires_grad
        if not isinstance(holder, Operator) and name in holder.nonnegative
        if bool((value.detach() == 0).any())
    ]


@torch.no_grad()
def _equal_columns(matrix: Tensor) -> bool:
    """Whether two columns may be multiples of each other, by their products with one vector.

    One that is random: other columns have the same product by a chance of some eps.
    """
    eps = torch.finfo(matrix.dtype).eps
    z = torch.randn(matrix.shape[-2], generator=torch.Generator().manual_seed(0), device="cpu")
    sizes = torch.linalg.vector_norm(matrix, dim=-2)
    angles = (z.to(matrix) @ matrix).abs() / torch.where(sizes > 0, sizes, 1.0)
    ordered = angles.sort(-1).values
    return bool((ordered.diff(dim=-1) <= 100 * eps * ordered[..., 1:]).any())
