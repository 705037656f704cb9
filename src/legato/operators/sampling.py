"""What a measurement leaves out: entries that are not seen, and every but the n-th."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.checks import is_concrete, require_tensor, require_whole
from legato._support.tree import Var, real_dtype, real_like
from legato.errors import InputError
from legato.operators.base import Operator


@dataclass(frozen=True, eq=False, repr=False)
class Mask(Operator):
    r"""What is seen of x: (Kx)_i = x_i where the mask is true, 0 elsewhere; ‖K‖ = 1.

    ``mask`` has the last axes of x; axes before are a batch. What it hides may be NaN.

    >>> K = lg.Mask(torch.tensor([True, False, True]))
    >>> K(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1., 0., 3.])
    """

    mask: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", as_mask(self.mask))

    @property
    def coupled(self) -> tuple[int, int]:
        return 0, 0

    def __call__(self, x: Var) -> Var:
        if x.shape[max(0, x.ndim - self.mask.ndim) :] != self.mask.shape:
            raise InputError(
                f"The mask has shape {tuple(self.mask.shape)}, which must be the last axes of x, "
                f"but x has shape {tuple(x.shape)}."
            )
        return torch.where(self.mask, x, torch.zeros_like(x))

    def adjoint(self, y: Var) -> Var:
        return self(y)

    @torch.no_grad()
    def norm(self, like: Var | None = None) -> Tensor:
        seen = self.mask.any()
        return seen.to(torch.get_default_dtype() if like is None else real_dtype(like.dtype))

    def absolute(self) -> Operator:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Downsample(Operator):
    r"""Every ``factor``-th entry along each of some axes, beginning with the first; ‖K‖ = 1.

    .. math:: (Kx)_{i, j} = x_{fi, fj}

    Behind a :class:`Blur` it is the operator of super-resolution. Sizes are multiples of the
    factor, so that the adjoint, which puts zeros in between, knows them.

    >>> lg.Downsample(2, (-1,))(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([1., 3.])
    """

    factor: int
    dims: tuple[int, ...] = (-2, -1)

    def __post_init__(self) -> None:
        require_whole(self.factor, "The factor of Downsample")
        require_trailing(self.dims, "Downsample")

    @property
    def coupled(self) -> tuple[int, int]:
        axes = -min(self.dims)
        return axes, axes

    def __call__(self, x: Var) -> Var:
        for dim in self.dims:
            require_axis(x, dim, self)
            if x.shape[dim] % self.factor:
                raise InputError(
                    f"{self!r} needs sizes that are multiples of {self.factor}, but x has shape "
                    f"{tuple(x.shape)}. Crop or pad it."
                )
            x = x.unflatten(dim, (-1, self.factor)).select(dim, 0)
        return x

    def adjoint(self, y: Var) -> Var:
        for dim in self.dims:
            require_axis(y, dim, self)
            zeros = [torch.zeros_like(y)] * (self.factor - 1)
            y = torch.stack([y, *zeros], dim).flatten(dim - 1, dim)
        return y

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.tensor(1.0) if like is None else real_like(like).new_ones(())

    def absolute(self) -> Operator:
        return self


def require_trailing(dims: tuple[int, ...], name: str) -> None:
    """Refuse axes that are not counted from the end, or are named twice."""
    if not dims or any(d >= 0 for d in dims) or len(set(dims)) != len(dims):
        raise InputError(
            f"{name} counts distinct axes from the end, as in dims=(-2, -1), not {dims}."
        )


def require_axis(x: Tensor, dim: int, operator: Operator) -> None:
    if x.ndim < -dim:
        raise InputError(f"{operator!r} needs {-dim} axes, but got shape {tuple(x.shape)}.")


def as_mask(mask: Tensor) -> Tensor:
    """A mask of true and false; refused where it holds other numbers than 0 and 1."""
    require_tensor(mask, "mask")
    if mask.dtype == torch.bool:
        return mask
    known = is_concrete() and not mask.is_meta
    if known and not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(
            "A mask holds true and false, or 0 and 1, but this one holds other numbers. "
            "Diagonal(weights) multiplies by any."
        )
    return mask.detach() != 0
