"""Orthonormal wavelets with a periodic boundary."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from legato._support.checks import require_whole
from legato._support.tree import Var, real_like
from legato.errors import InputError, MissingExtraError
from legato.operators.base import Operator
from legato.operators.sampling import require_axis, require_trailing

_HAAR = (math.sqrt(0.5), math.sqrt(0.5))


@dataclass(frozen=True, eq=False, repr=False)
class Wavelet(Operator):
    r"""An orthonormal wavelet transform, whose adjoint is its inverse: K*K = KK* = 1, ‖K‖ = 1.

    .. math:: a_i = \sum_k h_k x_{2i + k}, \qquad d_i = \sum_k (−1)^k h_{L − 1 − k} x_{2i + k}

    Indices are periodic. Each level halves the averages a of the one before; coefficients keep the
    shape of x, averages first along each axis. Sizes are multiples of 2^levels.
    Reference: Mallat (1989).

    Args:
        levels: how often averages are split.
        name: "haar", or an orthogonal wavelet of PyWavelets, where that is installed.
        dims: the axes, counted from the end.

    >>> K = lg.Wavelet(1, dims=(-1,))
    >>> K(torch.tensor([1.0, 1.0, 3.0, 1.0])).round(decimals=4)
    tensor([1.4142, 2.8284, 0.0000, 1.4142])
    """

    levels: int = 1
    name: str = "haar"
    dims: tuple[int, ...] = (-2, -1)
    _taps: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        require_whole(self.levels, "The levels of Wavelet")
        require_trailing(self.dims, "Wavelet")
        object.__setattr__(self, "_taps", _taps(self.name))

    @property
    def coupled(self) -> tuple[int, int]:
        axes = -min(self.dims)
        return axes, axes

    def _require_sizes(self, x: Tensor) -> None:
        for dim in self.dims:
            require_axis(x, dim, self)
            if x.shape[dim] % 2**self.levels:
                raise InputError(
                    f"{self!r} halves sizes {self.levels} times, but x has shape "
                    f"{tuple(x.shape)}: pad it to multiples of {2**self.levels}."
                )

    def __call__(self, x: Var) -> Var:
        self._require_sizes(x)
        sizes = [x.shape[dim] for dim in self.dims]
        for _ in range(self.levels):
            block = _corner(x, self.dims, sizes)
            for dim in self.dims:
                block = self._split(block, dim)
            x = _with_corner(x, self.dims, block)
            sizes = [n // 2 for n in sizes]
        return x

    def adjoint(self, y: Var) -> Var:
        self._require_sizes(y)
        for level in reversed(range(self.levels)):
            sizes = [y.shape[dim] // 2**level for dim in self.dims]
            block = _corner(y, self.dims, sizes)
            for dim in reversed(self.dims):
                block = self._join(block, dim)
            y = _with_corner(y, self.dims, block)
        return y

    def _split(self, x: Tensor, dim: int) -> Tensor:
        even, odd = x.unflatten(dim, (-1, 2)).unbind(dim)
        average, detail = torch.zeros_like(even), torch.zeros_like(even)
        for k, (low, high) in enumerate(_pairs(self._taps)):
            # x at 2i + k, around the end.
            part = (odd if k % 2 else even).roll(-(k // 2), dim)
            average, detail = average + low * part, detail + high * part
        return torch.cat([average, detail], dim)

    def _join(self, y: Tensor, dim: int) -> Tensor:
        average, detail = y.chunk(2, dim)
        halves = [torch.zeros_like(average), torch.zeros_like(average)]
        for k, (low, high) in enumerate(_pairs(self._taps)):
            part = low * average + high * detail
            halves[k % 2] = halves[k % 2] + part.roll(k // 2, dim)
        return torch.stack(halves, dim).flatten(dim - 1, dim)

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.tensor(1.0) if like is None else real_like(like).new_ones(())


def _pairs(taps: Sequence[float]) -> list[tuple[float, float]]:
    """(h_k, (−1)^k h_{L−1−k}) for all k."""
    return [(h, (-1) ** k * taps[len(taps) - 1 - k]) for k, h in enumerate(taps)]


def _corner(x: Tensor, dims: tuple[int, ...], sizes: list[int]) -> Tensor:
    for dim, size in zip(dims, sizes, strict=True):
        x = x.narrow(dim, 0, size)
    return x


def _with_corner(x: Tensor, dims: tuple[int, ...], block: Tensor) -> Tensor:
    """x with its first entries along some axes replaced, without changing x."""
    if not dims:
        return block
    first, *rest = dims
    size = block.shape[first]
    head = _with_corner(x.narrow(first, 0, size), tuple(rest), block)
    return torch.cat([head, x.narrow(first, size, x.shape[first] - size)], first)


def _taps(name: str) -> tuple[float, ...]:
    if name == "haar":
        return _HAAR
    try:
        pywt = importlib.import_module("pywt")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"The wavelet {name!r} needs PyWavelets, which is not installed: pip install "
            "PyWavelets. Without it there is 'haar'."
        ) from None
    try:
        found = pywt.Wavelet(name)
    except ValueError as error:
        raise InputError(f"PyWavelets does not know the wavelet {name!r}: {error}") from None
    if not found.orthogonal:
        raise InputError(f"The wavelet {name!r} is not orthogonal; haar, db, sym and coif are.")
    return tuple(float(h) for h in found.dec_lo)
