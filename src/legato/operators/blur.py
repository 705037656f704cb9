"""Blurring by one kernel, with Fourier transforms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.checks import require_floating
from legato._support.tree import Var
from legato.errors import InputError
from legato.operators.base import Operator
from legato.operators.convolution import Convolution


@dataclass(frozen=True, eq=False, repr=False)
class Blur(Operator):
    r"""Convolution of the last axes with one kernel, the image of a point, by Fourier transforms.

    .. math:: (Kx)_i = \sum_j k_j\, x_{i − j + c}

    c = size // 2 is the kernel's centre. The cost does not grow with the kernel; for small kernels
    and several channels see :class:`Convolution`, which does not flip its kernels. The norm is
    exact for a circular boundary and an example ``like``, else a proven bound.
    Reference: Oppenheim and Schafer, *Discrete-Time Signal Processing*, Section 8.7.

    Args:
        kernel: one to three axes, those of a sequence, an image or a volume; may be learned.
        boundary: "circular", "zero" or "mirror" (the edge pixel is repeated).

    >>> lg.Blur(torch.tensor([0.5, 0.3, 0.2]))(torch.tensor([0.0, 1.0, 0.0, 0.0])).round(decimals=3)
    tensor([0.5000, 0.3000, 0.2000, 0.0000])
    """

    kernel: Tensor
    boundary: str = "circular"

    def __post_init__(self) -> None:
        require_floating(self.kernel, "The kernel of Blur")
        if self.kernel.ndim not in (1, 2, 3):
            raise InputError(
                f"Blur needs a kernel with one to three axes, not {tuple(self.kernel.shape)}. "
                "Convolution takes kernels with channels."
            )
        self._filter()

    def _filter(self) -> Convolution:
        """The same map as a correlation, which knows boundaries and norms."""
        flipped = self.kernel.flip(tuple(range(self.kernel.ndim)))
        return Convolution(flipped[None, None], self.boundary)

    @property
    def coupled(self) -> tuple[int, int]:
        return self.kernel.ndim, self.kernel.ndim

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-self.kernel.ndim, 0))

    def _images(self, x: Tensor) -> Tensor:
        axes = self.kernel.ndim
        sizes = tuple(x.shape[-axes:])
        if x.ndim < axes or any(k > n for k, n in zip(self.kernel.shape, sizes, strict=True)):
            raise InputError(
                f"Blur needs images at least as large as its kernel {tuple(self.kernel.shape)}, "
                f"but got shape {tuple(x.shape)}. Crop the kernel."
            )
        return x.reshape(-1, 1, *sizes)

    def _symbol(self, sizes: tuple[int, ...], images: Tensor) -> Tensor:
        """The Fourier transform of the flipped kernel, as a correlation has it.

        The half of it that real images need, or the whole.
        """
        flipped = self.kernel.flip(self._axes)
        if flipped.is_complex() or images.is_complex():
            return torch.fft.fftn(flipped.conj(), s=sizes, dim=self._axes).conj()
        return torch.fft.rfftn(flipped, s=sizes, dim=self._axes).conj()

    def _filtered(self, images: Tensor, symbol: Tensor, sizes: tuple[int, ...]) -> Tensor:
        if images.shape[0] == 0:  # of no images some libraries have no transform
            return images.new_zeros(0, 1, *sizes)
        if images.is_complex() or self.kernel.is_complex():
            spectrum = torch.fft.fftn(images, s=sizes, dim=self._axes)
            return torch.fft.ifftn(spectrum * symbol, s=sizes, dim=self._axes)
        spectrum = torch.fft.rfftn(images, s=sizes, dim=self._axes)
        return torch.fft.irfftn(spectrum * symbol, s=sizes, dim=self._axes)

    def __call__(self, x: Var) -> Var:
        images = self._images(x)
        padded = self._filter()._pad(images)
        sizes = tuple(padded.shape[2:])
        out = self._filtered(padded, self._symbol(sizes, padded), sizes)
        for axis, n in enumerate(images.shape[2:], start=2):
            out = out.narrow(axis, 0, n)
        return out.reshape(x.shape)

    def adjoint(self, y: Var) -> Var:
        images, filter_ = self._images(y), self._filter()
        sizes = tuple(n + k - 1 for n, k in zip(images.shape[2:], self.kernel.shape, strict=True))
        out = self._filtered(images, self._symbol(sizes, images).conj(), sizes)
        for axis, k in enumerate(self.kernel.shape, start=2):
            out = filter_._unpad(out, axis, (k - 1) // 2, k // 2)
        return out.reshape(y.shape)

    def norm(self, like: Var | None = None) -> Tensor:
        one = None if like is None else self._images(like)[:1]
        return self._filter().norm(one)

    def absolute(self) -> Operator:
        return Blur(self.kernel.abs(), self.boundary)
