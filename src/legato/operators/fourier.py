"""The Fourier transform as a measurement: undersampled, by one coil or by several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.checks import require_tensor
from legato._support.tree import Var, largest_over, real_like, square
from legato.errors import InputError
from legato.operators.base import Operator
from legato.operators.eigenvalue import root
from legato.operators.sampling import as_mask, require_axis, require_trailing


@dataclass(frozen=True, eq=False, repr=False)
class Fourier(Operator):
    r"""Some frequencies of a complex image, seen by one coil or through the maps of several.

    .. math:: (Kx)_c = M F (S_c x), \qquad K^*y = \sum_c \bar S_c F^* M y_c

    F is orthonormal, with frequency zero first, as torch.fft has it: data that are centred go
    through ``torch.fft.ifftshift``. With coils an image (…, H, W) becomes (…, C, H, W). ‖K‖ = 1
    without coils; with them it is at most max_i (Σ_c |S_c,i|²)^½, exactly so without a mask.
    A real image needs ``Fourier(…) @ AsComplex()``.
    Reference: Pruessmann, Weiger, Scheidegger, Boesiger (1999), SENSE.

    Args:
        mask: true for the frequencies that are measured; has the sizes of ``dims``, or one where
            whole lines are alike. None: all.
        coils: complex maps S of shape (C, …sizes of dims), or (B, C, …) for a batch; may be
            learned.
        dims: the axes that are transformed, counted from the end.

    >>> K = lg.Fourier(mask=torch.tensor([True, False, True, False]), dims=(-1,))
    >>> K(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.complex64))
    tensor([ 5.+0.j,  0.+0.j, -1.+0.j,  0.+0.j])
    """

    mask: Tensor | None = None
    coils: Tensor | None = None
    dims: tuple[int, ...] = (-2, -1)

    def __post_init__(self) -> None:
        require_trailing(self.dims, "Fourier")
        if self.mask is not None:
            object.__setattr__(self, "mask", as_mask(self.mask))
        if self.coils is not None:
            require_tensor(self.coils, "The coils of Fourier")
            if not self.coils.is_complex() or self.coils.ndim <= self._axes:
                raise InputError(
                    f"The coils of Fourier are complex maps of shape (C, …) with {self._axes} axes "
                    f"of the image, not {self.coils.dtype} of shape {tuple(self.coils.shape)}."
                )

    @property
    def _axes(self) -> int:
        """How many trailing axes of an image belong together."""
        return -min(self.dims)

    @property
    def coupled(self) -> tuple[int, int]:
        return self._axes, self._axes + (self.coils is not None)

    def _masked(self, y: Tensor) -> Tensor:
        if self.mask is None:
            return y
        sizes = y.shape[-self._axes :]
        try:
            fits = torch.broadcast_shapes(self.mask.shape, sizes) == sizes
        except RuntimeError:
            fits = False
        if not fits:
            raise InputError(
                f"The mask of Fourier has shape {tuple(self.mask.shape)}, which does not fit "
                f"images of shape {tuple(sizes)}: give it their sizes, or one along axes where it "
                "is constant."
            )
        return torch.where(self.mask, y, torch.zeros_like(y))

    def _maps(self, t: Tensor, what: str) -> Tensor:
        """The coil maps, which fit an image, or what is seen through them."""
        assert self.coils is not None
        own, sizes = self.coils.shape[-self._axes :], t.shape[-self._axes :]
        if own != sizes:
            raise InputError(
                f"The coils of Fourier have shape {tuple(self.coils.shape)}, but {what} has shape "
                f"{tuple(t.shape)}: their last {self._axes} axes must be alike."
            )
        return self.coils

    def __call__(self, x: Var) -> Var:
        require_axis(x, min(self.dims), self)
        if self.coils is not None:
            x = self._maps(x, "x") * x.unsqueeze(-self._axes - 1)
        return self._masked(torch.fft.fftn(x, dim=self.dims, norm="ortho"))

    def adjoint(self, y: Var) -> Var:
        require_axis(y, min(self.dims) - (self.coils is not None), self)
        if not y.is_complex():
            raise InputError(
                f"The adjoint of Fourier takes complex frequencies, but y is {y.dtype}. Is it a "
                "picture, or only the real part of what was measured? If it is meant, pass y + 0j."
            )
        images = torch.fft.ifftn(self._masked(y), dim=self.dims, norm="ortho")
        if self.coils is None:
            return images
        maps = self._maps(y, "y")
        if y.shape[-self._axes - 1] != maps.shape[-self._axes - 1]:
            raise InputError(
                f"The adjoint of Fourier needs {maps.shape[-self._axes - 1]} coils on axis "
                f"{-self._axes - 1}, but y has shape {tuple(y.shape)}."
            )
        return (maps.conj() * images).sum(-self._axes - 1)

    def norm(self, like: Var | None = None) -> Tensor:
        if self.coils is None:
            return torch.tensor(1.0) if like is None else real_like(like).new_ones(())
        strength = square(self.coils).sum(-self._axes - 1)
        return root(largest_over(strength, self._axes)) * (1 + 8 * torch.finfo(strength.dtype).eps)
