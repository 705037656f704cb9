"""Total variation that does not prefer the axes."""

from __future__ import annotations

from torch import Tensor

from legato.functions.base import Function
from legato.functions.norms import GroupL1
from legato.operators import Differences


def IsotropicTV(weight: Tensor | float = 1.0, dims: tuple[int, ...] = (-2, -1)) -> Function:
    r"""Isotropic total variation, the Euclidean length of each pixel's differences, summed.

    .. math:: g(x) = \sum_i w_i \Bigl(\sum_k (x_{i + e_k} − x_i)^2\Bigr)^{1/2}

    Short for ``GroupL1(weight, dim=-3) @ Differences()``: the norm along the axis of directions
    that :class:`Differences` inserts. ``L1(weight) @ Differences()`` is total variation by
    direction. Reference: Rudin, Osher, Fatemi (1992).

    Args:
        weight: a number, or one for each pixel: of shape (H, W), or (…, 1, H, W) for a batch.
        dims: the axes of the picture, counted from the end.

    >>> lg.IsotropicTV(0.1)
    GroupL1(0.1, -3) @ Differences()
    >>> lg.IsotropicTV()(torch.tensor([[0.0, 4.0], [3.0, 0.0]]))  # 5 + 4 + 3
    tensor(12.)
    """
    # The axis of directions stands before those of the picture, of which dims may leave some out.
    return GroupL1(weight, dim=min(dims) - 1) @ Differences(dims)
