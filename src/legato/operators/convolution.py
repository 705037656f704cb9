"""Convolution with a bank of filters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from legato._support.checks import may_be_differentiated, require_floating
from legato._support.constants import held_constant
from legato._support.tree import Var, real_dtype, real_like
from legato.errors import InputError
from legato.operators.base import Operator, by_parts, lanczos_norm
from legato.operators.eigenvalue import largest_eigenvalue, root

_CORRELATE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_GRID = {1: 64, 2: 16, 3: 12}
"""Samples of the symbol per axis and unit of filter degree, for the norm bound."""


@dataclass(frozen=True, eq=False, repr=False)
class Convolution(Operator):
    r"""Filters (out, in, …) applied to images (…, in, *spatial), output of the same size.

    .. math:: (Kx)_o = \sum_i d_{oi} * x_i

    As in neural networks the kernel is not flipped. ``boundary`` is "zero", "circular" or "mirror"
    (the edge pixel is repeated: filters of mean zero answer zero to a constant up to the border);
    one, two and three spatial axes work. ‖K‖ is bounded by the largest singular value of the symbol
    over all frequencies. Reference: Peyré and Fadili (2011), task-driven analysis priors.

    >>> blur = lg.Convolution(torch.full((1, 1, 3), 1 / 3), boundary="circular")
    >>> blur(torch.tensor([[3.0, 0.0, 0.0, 0.0]]))
    tensor([[1., 1., 0., 1.]])
    """

    kernel: Tensor
    boundary: str = "zero"

    def __post_init__(self) -> None:
        require_floating(self.kernel, "The kernel of Convolution")
        if self.kernel.ndim not in (3, 4, 5):
            raise InputError(
                "Convolution needs a kernel of shape (out, in, *size) with one to three spatial "
                f"axes, not {tuple(self.kernel.shape)}."
            )
        if self.kernel.numel() == 0:
            raise InputError(
                f"A kernel needs at least one entry, but this one has shape "
                f"{tuple(self.kernel.shape)}."
            )
        if self.boundary not in ("zero", "circular", "mirror"):
            raise InputError(
                f"boundary must be 'zero', 'circular' or 'mirror', not {self.boundary!r}."
            )

    @property
    def coupled(self) -> tuple[int, int]:
        return len(self._size) + 1, len(self._size) + 1

    @property
    def _size(self) -> tuple[int, ...]:
        return tuple(self.kernel.shape[2:])

    def _images(self, x: Tensor, channels: int, what: str) -> Tensor:
        """x with all batch axes merged into one."""
        axes = len(self._size)
        if x.ndim < axes + 1 or x.shape[-axes - 1] != channels:
            raise InputError(
                f"{what} needs shape (…, {channels}, {', '.join('*' * axes)}) for a kernel of "
                f"shape {tuple(self.kernel.shape)}, but got {tuple(x.shape)}."
            )
        if self.boundary != "zero" and any(
            k > n for k, n in zip(self._size, x.shape[-axes:], strict=True)
        ):
            raise InputError(
                f"A {self.boundary} convolution needs images at least as large as the kernel "
                f"{self._size}, but got {tuple(x.shape[-axes:])}."
            )
        return x.reshape(-1, *x.shape[-axes - 1 :])

    def __call__(self, x: Var) -> Var:
        if x.is_complex() or self.kernel.is_complex():
            return self._by_parts(x, adjoint=False)
        images = self._images(x, self.kernel.shape[1], "Convolution")
        out = _CORRELATE[len(self._size)](self._pad(images), self.kernel)
        return out.reshape(*x.shape[: -len(self._size) - 1], *out.shape[1:])

    def adjoint(self, y: Var) -> Var:
        if y.is_complex() or self.kernel.is_complex():
            return self._by_parts(y, adjoint=True)
        images = self._images(y, self.kernel.shape[0], "The adjoint of Convolution")
        out = self._spread(images)
        for axis, k in enumerate(self._size, start=2):
            out = self._unpad(out, axis, (k - 1) // 2, k // 2)
        return out.reshape(*y.shape[: -len(self._size) - 1], *out.shape[1:])

    def _by_parts(self, t: Tensor, *, adjoint: bool) -> Tensor:
        """(A + iB)t, or its adjoint (Aᵀ − iBᵀ)t, by real convolutions A and B."""
        kernel = self.kernel
        first = Convolution(kernel.real if kernel.is_complex() else kernel, self.boundary)
        A = first.adjoint if adjoint else first
        along = by_parts(A, t)
        if not kernel.is_complex():
            return along
        second = Convolution(kernel.imag, self.boundary)
        turned = by_parts(second.adjoint if adjoint else second, t)
        return along - 1j * turned if adjoint else along + 1j * turned

    def _spread(self, images: Tensor) -> Tensor:
        """The adjoint without boundary: every answer adds its filter, and the image grows."""
        if self.kernel.shape[1] > 1 or len(self._size) != 2 or images.device.type != "cpu":
            return _TRANSPOSE[len(self._size)](images, self.kernel)
        # For one channel torch's own takes two to six times as long on the CPU.
        columns = self.kernel.flatten(1).mT @ images.flatten(2)
        grown = tuple(n + k - 1 for n, k in zip(images.shape[2:], self._size, strict=True))
        return F.fold(columns, grown, self._size)

    def _pad(self, images: Tensor) -> Tensor:
        if self.boundary != "mirror":  # torch's own mirror leaves the edge pixel out
            mode = "constant" if self.boundary == "zero" else "circular"
            padding = [p for k in reversed(self._size) for p in ((k - 1) // 2, k // 2)]
            return F.pad(images, padding, mode=mode)
        for axis, k in enumerate(self._size, start=2):
            before, after, n = (k - 1) // 2, k // 2, images.shape[axis]
            head = images.narrow(axis, 0, before).flip(axis)
            tail = images.narrow(axis, n - after, after).flip(axis)
            images = torch.cat([head, images, tail], dim=axis)
        return images

    def _unpad(self, padded: Tensor, axis: int, before: int, after: int) -> Tensor:
        """The adjoint of padding one axis: drop what was zero, add back what was repeated."""
        n = padded.shape[axis] - before - after
        inner = padded.narrow(axis, before, n)
        if self.boundary == "zero":
            return inner
        head = padded.narrow(axis, 0, before)
        tail = padded.narrow(axis, before + n, after)
        if self.boundary == "mirror":  # the head came from the beginning, in reverse
            head, tail = tail.flip(axis), head.flip(axis)
        shape = list(inner.shape)
        shape[axis] = n - head.shape[axis]
        at_end = torch.cat([inner.new_zeros(shape), head], dim=axis)
        shape[axis] = n - tail.shape[axis]
        at_start = torch.cat([tail, inner.new_zeros(shape)], dim=axis)
        return inner + at_end + at_start

    def norm(self, like: Var | None = None) -> Tensor:
        """The supremum of the symbol's norm, from samples (Bernstein: error factor 1/cos).

        With a mirror, images are continued to ones 2ᵃ times as large for a axes, hence √2ᵃ times
        that; for images like ``like``, Lanczos' method says how much of it is true.
        """
        axes = len(self._size)
        if self.boundary == "mirror":
            if like is None:
                return Convolution(self.kernel).norm() * math.sqrt(2**axes)
            held_constant(self)
            return self._mirrored_norm(like.detach())
        exact = self.boundary == "circular" and like is not None
        if like is not None and exact:
            shape = tuple(like.shape[-axes:])
        else:
            shape = tuple(max(_GRID[axes] * (k - 1), 1) for k in self._size)
        spatial = tuple(range(2, 2 + axes))
        kernel = self.kernel
        if kernel.is_complex():
            symbol = torch.fft.fftn(
                _wrapped(kernel.to(torch.complex128), shape), s=shape, dim=spatial
            )
        else:
            symbol = torch.fft.rfftn(_wrapped(kernel.double(), shape), s=shape, dim=spatial)
        top = _largest_singular_value(symbol.flatten(2).permute(2, 0, 1))
        if not exact:
            # A trigonometric polynomial of half-degree (k−1)/2 sampled at N points.
            for k, n in zip(self._size, shape, strict=True):
                top = top / math.cos(math.pi * (k - 1) / 2 / n)
        return top.to(real_dtype(kernel.dtype)) * (1 + 8 * torch.finfo(kernel.dtype).eps)

    @torch.no_grad()
    def _mirrored_norm(self, like: Tensor) -> Tensor:
        axes = len(self._size)
        one = like if self.kernel.is_complex() else real_like(like)
        one = one.reshape(-1, *like.shape[-axes - 1 :])[:1]
        found = lanczos_norm(Convolution(self.kernel.detach(), "mirror"), one, accuracy=0.05)
        return torch.minimum(found, Convolution(self.kernel).norm() * math.sqrt(2**axes))

    def absolute(self) -> Operator:
        return Convolution(self.kernel.abs(), self.boundary)


def _wrapped(kernel: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Fold a kernel that is larger than the grid (fftn would cut it off)."""
    for axis, n in enumerate(shape, start=2):
        missing = -kernel.shape[axis] % n
        if kernel.shape[axis] > n:
            padding = [0, 0] * (kernel.ndim - 1 - axis) + [0, missing]
            kernel = F.pad(kernel, padding).unflatten(axis, (-1, n)).sum(axis)
    return kernel


def _largest_singular_value(matrices: Tensor) -> Tensor:
    """Over a batch of complex matrices, by the smaller of the two Gram matrices."""
    gram = (
        matrices @ matrices.mH
        if matrices.shape[-2] <= matrices.shape[-1]
        else matrices.mH @ matrices
    )
    if gram.shape[-1] == 1:
        return root(gram.real.amax())
    tops = torch.linalg.eigvalsh(gram.detach())[..., -1]
    found = root(tops.amax().clamp(min=0))
    if not may_be_differentiated(gram):
        return found
    # Of two frequencies ±ω, which are alike, either has the derivative.
    attached = root(largest_eigenvalue(gram.index_select(0, tops.argmax().reshape(1))).clamp(min=0))
    return found + (attached - attached.detach())[0]
