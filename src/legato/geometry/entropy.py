"""The entropy geometry on the non-negative orthant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var, sum_beyond
from legato.geometry.base import Geometry, bounded_exp, exp_limit, largest_bound


@dataclass(frozen=True, repr=False, eq=False)
class Entropy(Geometry):
    r"""Boltzmann–Shannon entropy: multiplicative updates that stay positive.

    .. math:: ψ(x) = \sum_i x_i \log x_i, \quad ∇ψ(x) = 1 + \log x, \quad
              D_ψ(x, z) = \sum_i x_i \log(x_i / z_i) − x_i + z_i

    Reference: Example 3 of Ochs et al. (2016).

    >>> psi = lg.Entropy()
    >>> psi.unmirror(psi.mirror(torch.tensor([0.5, 2.0])))
    tensor([0.5000, 2.0000])
    >>> psi.unmirror(torch.tensor([-1000.0]))  # rounds to 0; the mirror coordinate does not
    tensor([0.])
    """

    def summands(self, x: Var) -> Tensor:
        return torch.xlogy(x, x)

    @property
    def coupled(self) -> int:
        return 0

    def modulus(self, bounds: tuple[Any, Any]) -> Tensor | float | None:
        """ψ″ = 1/x ≥ 1/hi."""
        hi = largest_bound(bounds)
        return None if hi is None else 1 / hi

    def mirror(self, x: Var) -> Var:
        return 1 + torch.log(x)

    def unmirror(self, y: Var) -> Var:
        return bounded_exp(y - 1)

    def distances(self, x: Var, z: Var, batch: int) -> Tensor:
        return sum_beyond(torch.xlogy(x, x) - torch.xlogy(x, z) - x + z, batch)

    def interior(self, x: Var) -> Tensor:
        return (x > 0) & torch.isfinite(x)

    def mirror_interior(self, y: Var) -> Tensor:
        # Beyond, unmirror saturates, and its derivative is zero.
        return torch.isfinite(y) & (y - 1 <= exp_limit(y.dtype))

    def metric(self, y: Var, v: Var) -> Var:
        return self.unmirror(y) * v

    def transport(self, before: Var, after: Var, w: Var) -> Var:
        return bounded_exp(after - before) * w

    def _advice(self) -> str:
        return "Entropy needs x > 0: a boundary point is a spurious fixed point of its steps."
