"""The Burg entropy (log barrier) geometry on the positive orthant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, sum_beyond
from legato.geometry.base import Geometry, largest_bound


@dataclass(frozen=True, repr=False, eq=False)
class Burg(Geometry):
    r"""The log barrier, the geometry of Poisson likelihoods.

    .. math:: ψ(x) = −\sum_i \log x_i, \quad ∇ψ(x) = −1/x, \quad
              D_ψ(x, z) = \sum_i x_i/z_i − \log(x_i/z_i) − 1

    ∇ψ takes negative values only. A mirror variable that is not negative belongs to no point;
    ``unmirror`` saturates there at a huge finite value and ``solve`` reports it.
    Reference: Bauschke, Bolte, Teboulle (2017), Section 5.

    >>> lg.Burg().mirror(torch.tensor([1.0, 4.0]))
    tensor([-1.0000, -0.2500])
    >>> lg.Burg().distance(torch.tensor([1.0]), torch.tensor([1.0]))
    tensor(0.)
    """

    def summands(self, x: Var) -> Tensor:
        return -torch.log(x)

    @property
    def coupled(self) -> int:
        return 0

    def modulus(self, bounds: tuple[Any, Any]) -> Tensor | float | None:
        """ψ″ = 1/x² ≥ 1/hi²."""
        hi = largest_bound(bounds)
        return None if hi is None else 1 / hi**2

    def mirror(self, x: Var) -> Var:
        return -1 / x

    def unmirror(self, y: Var) -> Var:
        return -1 / torch.clamp(y, max=-(torch.finfo(y.dtype).max ** -0.5))

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        ratio = x / z
        return sum_beyond(ratio - torch.log(ratio) - 1, batch)

    def interior(self, x: Var) -> Tensor:
        return (x > 0) & torch.isfinite(x)

    def mirror_interior(self, y: Var) -> Tensor:
        return (y < 0) & torch.isfinite(y)

    def centre(self, like: Var) -> Var:
        return -torch.ones_like(like)

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        ratio = before / after
        return ratio * ratio * w

    def _advice(self) -> str:
        return "Burg needs x > 0."
