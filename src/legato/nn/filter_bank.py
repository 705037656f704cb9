"""A bank of small filters on images that are continued as in a mirror."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from legato._tree import Var
from legato.errors import InputError
from legato.operators import Convolution, Operator

_PATCHES = 2
"""Kernel sizes across of the patch on which the effect of the border on the norm is computed."""
_ROOM = 1.05
"""What so small a patch may miss of it: 2 % at most among random banks of 1 to 24 filters."""


@dataclass(frozen=True, eq=False)
class FilterBank(Operator):
    r"""Filters (K, C, h, w) applied to images (…, C, H, W), of which the border is a mirror.

    .. math:: (Dx)_k = \sum_c d_{kc} * x_c

    A filter of mean zero answers zero to a constant image up to the border, and a difference to the
    next pixel is zero at the last one, as in total variation; zeros around the image would make
    edges. The kernel is not flipped. Reference: Chen, Ranftl, Pock (2014).
    """

    kernel: Tensor

    @property
    def _margins(self) -> tuple[tuple[int, int, int], ...]:
        """(axis, before, after)."""
        height, width = self.kernel.shape[2:]
        return ((-2, (height - 1) // 2, height // 2), (-1, (width - 1) // 2, width // 2))

    def __call__(self, x: Var) -> Var:
        for (axis, before, after), size in zip(self._margins, self.kernel.shape[2:], strict=True):
            n = x.shape[axis]
            if size > n:
                raise InputError(
                    f"The filters of {tuple(self.kernel.shape[2:])} pixels are larger than the "
                    f"image, {tuple(x.shape)}. Take smaller ones, or a larger image."
                )
            parts = (x.narrow(axis, 0, before).flip(axis), x)
            x = torch.cat((*parts, x.narrow(axis, n - after, after).flip(axis)), axis)
        out = F.conv2d(x.reshape(-1, *x.shape[-3:]), self.kernel)
        return out.reshape(*x.shape[:-3], *out.shape[1:])

    def adjoint(self, y: Var) -> Var:
        out = F.conv_transpose2d(y.reshape(-1, *y.shape[-3:]), self.kernel)
        for axis, before, after in self._margins:
            out = _fold(out, axis, before, after)
        return out.reshape(*y.shape[:-3], *out.shape[1:])

    @torch.no_grad()
    def norm(self, like: Var | None = None) -> Tensor:
        """The largest of the symbol, which bounds the interior, and of a patch with its borders."""
        kernel = self.kernel.detach().double()
        height, width = (_PATCHES * size for size in kernel.shape[2:])
        channels = kernel.shape[1]
        points = torch.eye(channels * height * width, dtype=torch.float64, device=kernel.device)
        patch = FilterBank(kernel)
        images = points.reshape(-1, channels, height, width)
        gram = patch.adjoint(patch(images)).flatten(1)
        border = torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt() * _ROOM
        return torch.maximum(border, Convolution(kernel).norm()).to(self.kernel.dtype)


def _fold(padded: Tensor, axis: int, before: int, after: int) -> Tensor:
    """The adjoint of continuing one axis as in a mirror."""
    n = padded.shape[axis] - before - after
    inner = padded.narrow(axis, before, n)
    zeros = [0, 0] * (-axis - 1)
    head = padded.narrow(axis, 0, before).flip(axis)
    tail = padded.narrow(axis, before + n, after).flip(axis)
    return inner + F.pad(head, [*zeros, 0, n - before]) + F.pad(tail, [*zeros, n - after, 0])
