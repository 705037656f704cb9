"""Least squares behind a circular blur, whose prox is one division of Fourier transforms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, sum_beyond
from legato.errors import InputError
from legato.functions import Function, register_prox
from legato.geometry import Euclidean
from legato.operators import Blur


@dataclass(frozen=True, eq=False, repr=False)
class SpectralLeastSquares(Function):
    r"""Least squares behind a circular blur, as a term with a prox.

    .. math:: g(x) = \tfrac12‖k * x − y‖², \qquad
              \mathrm{prox}_{αg}(v) = ℱ^{-1}\frac{ℱv + α\,\overline{ℱk}\,ℱy}{1 + α|ℱk|²}

    A primal–dual method then needs a fifth of the steps that it takes with the gradient. No ties.
    |ℱk|² and \overline{ℱk}ℱy are computed once, when it is made.
    Reference: Wang, Yang, Yin, Zhang (2008), for the same division in alternating minimisation.
    """

    operator: Blur
    y: Tensor
    power: Tensor = field(init=False)
    spectrum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.operator.boundary != "circular":
            raise InputError("SpectralLeastSquares needs a circular boundary.")
        symbol = self._symbol(self.y)
        object.__setattr__(self, "power", symbol.real**2 + symbol.imag**2)
        seen = symbol.conj().resolve_conj() * torch.fft.rfftn(self.y, dim=self._axes)
        object.__setattr__(self, "spectrum", seen)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-self.operator.kernel.ndim, 0))

    def _symbol(self, x: Tensor) -> Tensor:
        """ℱk, with the kernel's centre at the origin."""
        kernel = self.operator.kernel
        sizes = [x.shape[a] for a in self._axes]
        padded = kernel.new_zeros(sizes)
        padded = padded.index_put(
            torch.meshgrid(
                *(torch.arange(k, device=x.device) for k in kernel.shape), indexing="ij"
            ),
            kernel,
        )
        shifts = tuple(-(k // 2) for k in kernel.shape)
        return torch.fft.rfftn(torch.roll(padded, shifts, self._axes), dim=self._axes)

    def values(self, x: Var, batch: int) -> Tensor:
        return sum_beyond(self.summands(x), batch)

    def summands(self, x: Var) -> Tensor:
        return 0.5 * (self.operator(x) - self.y) ** 2

    @property
    def coupled(self) -> int:
        return self.operator.coupled[0]

    def prox_couples(self) -> tuple[int, ...]:
        return self._axes

    def start(self) -> Var:
        return torch.zeros_like(self.y)

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.full_like(y, torch.inf)

    def conjugate_values(self, y: Var, batch: int = 0) -> Tensor:
        """Frequency by frequency, |p|²/(2|k|²) + Re⟨p, y/k⟩: large where k is small."""
        sizes = [y.shape[a] for a in self._axes]
        spectrum = torch.fft.rfftn(y, dim=self._axes) / self._symbol(y).conj()
        solved = torch.fft.irfftn(spectrum, sizes)
        return sum_beyond(0.5 * solved**2 + solved * self.y, batch)


@register_prox(SpectralLeastSquares, Euclidean)
def _(g: SpectralLeastSquares, geometry: Euclidean, y: Tensor, alpha: Any) -> Tensor:
    inverse = 1 / (1 + alpha * g.power)
    return filtered(y, inverse, alpha * inverse * g.spectrum, g._axes)


def filtered(x: Tensor, symbol: Tensor, spectrum: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The convolution that has a symbol, and a picture of a spectrum added."""
    found: Tensor = _Filtered.apply(x, symbol, spectrum, axes)  # type: ignore[no-untyped-call]
    return found


class _Filtered(torch.autograd.Function):
    r"""A convolution whose derivative in the picture is one pair of transforms, like itself.

    .. math:: f(x, s, c) = ℱ^{-1}(s\,ℱx + c), \qquad
              ∂_x f^* v = ℱ^{-1}(\bar s\,ℱv), \quad ∂_c f^* v = (ℱ^{-1})^* v, \quad
              ∂_s f^* v = \overline{ℱx}\,(ℱ^{-1})^* v
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, symbol: Tensor, spectrum: Tensor | None, axes: tuple[int, ...]
    ) -> Tensor:
        found = torch.fft.rfftn(x, dim=axes) * symbol
        return _picture(found if spectrum is None else found + spectrum, x, axes)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, symbol, spectrum, ctx.axes = inputs
        ctx.shape = None if spectrum is None else spectrum.shape
        ctx.save_for_backward(x, symbol)
        ctx.save_for_forward(x, symbol)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, symbol = ctx.saved_tensors
        of_x, of_symbol, of_spectrum, _ = ctx.needs_input_grad
        first = second = third = None
        if of_x:
            first = _Filtered.apply(grad, symbol.conj(), None, ctx.axes)  # type: ignore[no-untyped-call]
        if of_symbol or of_spectrum:
            seen = _adjoint_of_picture(grad, ctx.axes)
            if of_symbol:
                along = torch.fft.rfftn(x, dim=ctx.axes).conj() * seen
                second = (along if symbol.is_complex() else along.real).sum_to_size(symbol.shape)
            third = seen.sum_to_size(ctx.shape) if of_spectrum else None
        return first, second, third, None

    @staticmethod
    def jvp(ctx: Any, x_t: Any, symbol_t: Any, spectrum_t: Any, _: Any) -> Any:
        x, symbol = ctx.saved_tensors
        found = torch.zeros_like(x)
        if x_t is not None:
            found = found + _Filtered.apply(x_t, symbol, None, ctx.axes)  # type: ignore[no-untyped-call]
        if symbol_t is not None:
            found = found + _Filtered.apply(x, symbol_t, None, ctx.axes)  # type: ignore[no-untyped-call]
        return found if spectrum_t is None else found + _picture(spectrum_t, x, ctx.axes)


def _picture(spectrum: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    return torch.fft.irfftn(spectrum, [like.shape[a] for a in axes], dim=axes)


def _adjoint_of_picture(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """(ℱ⁻¹)*x: frequencies that stand for their negatives as well count twice."""
    last, count = x.shape[axes[-1]], math.prod(x.shape[a] for a in axes)
    line = torch.arange(last // 2 + 1, device=x.device)
    times = torch.where((line == 0) | (2 * line == last), 1.0, 2.0).to(x) / count
    shape = (-1, *(1,) * (-axes[-1] - 1))
    return torch.fft.rfftn(x, dim=axes) * times.reshape(shape)
