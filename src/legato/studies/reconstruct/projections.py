"""Projections as a sparse matrix: built once, seen hundreds of times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.operators import Operator, Radon, Sparse
from legato.operators.nonnegative import perron_norm

MOST = 1.2e8
"""Numbers of a matrix up to which it is written down: one gigabyte and a half."""


@dataclass(frozen=True, eq=False, repr=False)
class Projections(Operator):
    r"""A Radon transform divided by its norm, by its matrix where that is not too large.

    .. math:: Kx = \frac{1}{‖R‖} R x

    Args:
        radon: R.
        matrix: R as a matrix, or None.
        size: ‖R‖.

    >>> K = Projections.of(lg.Radon([0.0, 1.0], 8))
    >>> K(torch.ones(8, 8)).shape, K.norm()
    (torch.Size([2, 12]), tensor(1.))
    """

    radon: Radon
    matrix: Operator | None
    size: float

    @staticmethod
    def of(radon: Radon, device: torch.device | str = "cpu") -> Projections:
        """With the matrix, if there is room for it."""
        large = 3.0 * len(radon.angles) * radon.size**2 > MOST
        made = Projections(radon, None if large else Sparse(radon.sparse(device=device)), 1.0)
        like = torch.zeros(radon.size, radon.size, device=device)
        # Above what single precision may have lost in sums of so many weights.
        size = float(perron_norm(made, like)) * (1 + 1e-5)
        return Projections(radon, made.matrix, size if size > 0 else math.inf)

    @property
    def coupled(self) -> tuple[int, int]:
        return 2, 2

    def __call__(self, x: Var) -> Var:
        if self.matrix is None:
            return self.radon(x) / self.size
        seen: Tensor = self.matrix(x.flatten(-2))
        return seen.unflatten(-1, (len(self.radon.angles), -1)) / self.size

    def adjoint(self, y: Var) -> Var:
        if self.matrix is None:
            return self.radon.adjoint(y) / self.size
        back: Tensor = self.matrix.adjoint(y.flatten(-2))
        return back.unflatten(-1, (self.radon.size, self.radon.size)) / self.size

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.tensor(1.0) if like is None else like.new_ones(())
