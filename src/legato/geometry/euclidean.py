"""The Euclidean geometry, in which mirror coordinates are the point itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support.tree import Var, flatten, inner, square, tree_map
from legato.geometry.base import Geometry


@dataclass(frozen=True, repr=False, eq=False)
class Euclidean(Geometry):
    r"""Half the squared norm; Bregman steps become ordinary gradient and proximal steps.

    .. math:: ψ(x) = ½‖x‖², \quad ∇ψ(x) = x, \quad D_ψ(x, z) = ½‖x − z‖²

    >>> lg.Euclidean().distance(torch.tensor([3.0, 4.0]), torch.zeros(2))
    tensor(12.5000)
    """

    takes_complex: ClassVar[bool] = True

    def summands(self, x: Var) -> Tensor:
        return 0.5 * square(x)

    def values(self, x: Var, batch: int) -> Tensor:
        return 0.5 * inner(x, x, batch)

    def value(self, x: Var) -> Tensor:
        return self.values(x, 0)

    @property
    def coupled(self) -> int:
        return 0

    def modulus(self, bounds: tuple[Any, Any]) -> float:
        return 1.0

    def mirror(self, x: Var) -> Var:
        return x

    def unmirror(self, y: Var) -> Var:
        return y

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        return self.values(tree_map(torch.sub, x, z), batch)

    def interior(self, x: Var) -> Tensor:
        return flatten(tree_map(torch.isfinite, x)) if isinstance(x, tuple) else torch.isfinite(x)

    def mirror_interior(self, y: Var) -> Tensor:
        return self.interior(y)

    def centre(self, like: Var) -> Var:
        return tree_map(torch.zeros_like, like)

    def metric(self, y: Var, v: Var) -> Var:
        return v

    def inverse_metric(self, y: Var, v: Var) -> Var:
        return v

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        return w

    def attach_drift(self, before: Var, after: Var) -> Var:
        return after
