"""Diagonal scaling of an operator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.tree import Var, real_like, tree_map
from legato.errors import InputError
from legato.operators import Operator


@dataclass(frozen=True)
class Ruiz:
    r"""Units for both variables in which rows and columns of the operator have one size.

    .. math:: K̂ = EKD: \qquad e_i ← e_i \Big/ \Big(\sum_j e_i |K_{ij}| d_j\Big)^{1/2}, \quad
              d_j ← d_j \Big/ \Big(\sum_i e_i |K_{ij}| d_j\Big)^{1/2}

    Steps become diagonal, 1/τ_j = 1/(r d_j²) + L_f and σ_i = e_i²/r, for ‖K̂‖ ≤ 1 after any pass;
    the solution is that of the problem as given. Entries that a prox couples share the smallest
    factor. Sums stand where Ruiz has maxima, because an operator gives products with the absolute
    values of K, not its entries. It suits sparse K, where ‖K̂‖ is close to 1; a dense K whose
    entries have both signs is far below, and takes shorter steps than it could.
    Reference: Ruiz (2001), *A scaling algorithm to equilibrate both rows and columns norms in
    matrices*; Pock and Chambolle (2011) for the bound.

    Args:
        passes: how often rows and columns are divided.

    >>> K = torch.tensor([[1.0, 100.0], [0.1, 0.1]])
    >>> problem = lg.Saddle(K, lg.Equality(torch.tensor([201.0, 0.3])), nonsmooth=lg.L1())
    >>> for scaling in None, lg.Ruiz():
    ...     algorithm = lg.PrimalDual(scaling=scaling)
    ...     print(lg.solve(problem, algorithm, stop=lg.Stop(1000)).x.round(decimals=3))
    tensor([0.0000, 2.0100])
    tensor([1., 2.])
    """

    passes: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.passes, bool) or not isinstance(self.passes, int) or self.passes < 1:
            raise InputError(f"Ruiz: passes must be a positive integer, not {self.passes!r}.")

    @torch.no_grad()
    def sizes(self, operator: Operator, x: Var, image: Var) -> tuple[Var, Var]:
        """1/d² and 1/e², shaped like x and Kx."""
        sums = operator.absolute()
        d, e = (tree_map(lambda t: torch.ones_like(real_like(t)), v) for v in (x, image))
        for _ in range(self.passes):
            rows = tree_map(lambda t, s: t * s.abs(), e, sums(d))
            columns = tree_map(lambda t, s: t * s.abs(), d, sums.adjoint(e))
            e, d = tree_map(_divided, e, rows), tree_map(_divided, d, columns)
        return tree_map(_inverse_square, d), tree_map(_inverse_square, e)


def _inverse_square(t: Tensor) -> Tensor:
    return 1 / t.square()


def _divided(factor: Tensor, size: Tensor) -> Tensor:
    """factor/√size; what is empty stays."""
    return factor / torch.where(size > 0, size, torch.ones_like(size)).sqrt()
