"""A radial geometry that grows like the fourth power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.geometry.base import Geometry


@dataclass(frozen=True, repr=False, eq=False)
class Quartic(Geometry):
    r"""The kernel for objectives of degree four, such as matrix factorisation or phase retrieval.

    .. math:: ψ(x) = ¼‖x‖⁴ + ½‖x‖², \quad ∇ψ(x) = (‖x‖² + 1)\,x

    The norm runs over ``dim``; other axes are batches. ∇ψ*(y) = y/(1 + s²) with the real root s of
    s³ + s = ‖y‖. Reference: Bolte, Sabach, Teboulle, Vaisbourd (2018).

    >>> psi = lg.Quartic()
    >>> psi.mirror(torch.tensor([1.0, 2.0]))
    tensor([ 6., 12.])
    >>> psi.unmirror(torch.tensor([6.0, 12.0]))
    tensor([1.0000, 2.0000])
    """

    dim: int | tuple[int, ...] = -1

    def summands(self, x: Var) -> Tensor:
        square = (x * x).sum(self.dim, keepdim=True)
        return 0.25 * square * square + 0.5 * square

    @property
    def coupled(self) -> int | None:
        first = min(self.dim) if isinstance(self.dim, tuple) else self.dim
        return -first if first < 0 else None

    def modulus(self, bounds: tuple[Any, Any]) -> float:
        """∇²ψ = (‖x‖² + 1) I + 2xxᵀ ≥ I."""
        return 1.0

    def mirror(self, x: Var) -> Var:
        return ((x * x).sum(self.dim, keepdim=True) + 1) * x

    def unmirror(self, y: Var) -> Var:
        # Scaling by the largest entry keeps the norm finite and differentiable at 0.
        scale = y.detach().abs().amax(self.dim, keepdim=True)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        square = ((y / scale) ** 2).sum(self.dim, keepdim=True)
        positive = square > 0
        root = torch.sqrt(torch.where(positive, square, torch.ones_like(square)))
        length = torch.where(positive, scale * root, torch.zeros_like(root))
        length = torch.clamp(length, max=0.3 * torch.finfo(y.dtype).max)
        s = 2 / math.sqrt(3) * torch.sinh(torch.asinh(1.5 * math.sqrt(3) * length) / 3)
        return y / (1 + s * s)

    def interior(self, x: Var) -> Tensor:
        return torch.isfinite(x)
