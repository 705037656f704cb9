"""The linear systems of one program with sparse matrices, by sparse LU on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.nn.programs.active_set import ActiveSystem
from legato.nn.programs.program import Program
from legato.nn.programs.sparse_matrix import (
    Factors,
    SparseMatrix,
    diagonal,
    stacked,
)

_REFINEMENTS = 3


class SparseNewton:
    """(Q + ρ + CᵀWC) dx + Aᵀdy = r, A dx − δ dy = q, with √W·G dx as unknowns of its own.

    CᵀWC may be full where G is sparse; the larger system is as sparse as the data.
    """

    def __init__(self, P: Program, w: Tensor, rho: float, delta: float) -> None:
        self.P = P
        w_G, w_lo, w_hi = P.split(w)
        m, p = P.h.shape[-1], P.b.shape[-1]
        G = (P.G * w_G.sqrt().unsqueeze(-1)).csr
        H = P.Q.plus_diagonal(w_lo + w_hi + rho).csr
        below = -torch.ones(p + m, dtype=torch.float64)
        below[:p] = -delta
        C = stacked([[P.A.csr], [G]])
        self.K = SparseMatrix(stacked([[H, C.T], [C, diagonal(below)]]).tocsr())
        self.LU = Factors(self.K.csr, P.Q.order)
        P.Q.order = self.LU.order

    def solve(self, r: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.cat([r, q, torch.zeros_like(self.P.h)], -1).unsqueeze(-1)
        found = self.LU.solve(right)
        for _ in range(_REFINEMENTS):
            found = found + self.LU.solve(right - self.K @ found)
        n, p = self.P.n, q.shape[-1]
        return found[:, :n, 0], found[:, n : n + p, 0]


class SparseActiveSystem(ActiveSystem):
    """The KKT system on active constraints, sparse."""

    def _build(self, diagonal_added: Tensor) -> None:
        P = self.P
        free = torch.ones_like(P.c) if self.free is None else self.free
        # Where nothing is active the padded order is empty, as is this.
        C = SparseMatrix(stacked([[P.A.csr], [P.G.row(self.order[0])]]).tocsr())
        C = (C * free.unsqueeze(-2)).csr
        Q = (P.Q * free.unsqueeze(-2) * free.unsqueeze(-1)).csr
        size = self.size - P.n
        zero = diagonal(torch.zeros(size, dtype=torch.float64))
        whole = stacked([[Q, C.T], [C, zero]]) if size else Q.tocsc()
        self.M = SparseMatrix((whole + diagonal(diagonal_added[0])).tocsr())
        self.LU = Factors(self.M.csr)

    def _divide(self, right: Tensor) -> Tensor:
        return self.LU.solve(right)


def normal_solve(P: Program, w: Tensor, right: Tensor, proximal: float) -> Tensor:
    """(AᵀA + CᵀWC + ρ)⁻¹ right, as the first part of a larger sparse system."""
    w_G, w_lo, w_hi = P.split(w)
    C = stacked([[P.A.csr], [(P.G * w_G.unsqueeze(-1)).csr]])
    rows = C.shape[0]
    H = diagonal((w_lo + w_hi + proximal)[0])
    K = stacked([[H, C.T], [C, diagonal(-torch.ones(rows, dtype=torch.float64))]]) if rows else H
    full = torch.cat([right, right.new_zeros(1, rows)], -1).unsqueeze(-1)
    LU, matrix = Factors(K), SparseMatrix(K.tocsr())
    found = LU.solve(full)
    found = found + LU.solve(full - matrix @ found)
    return found[:, : P.n, 0]


def ray_rows(P: Program) -> SparseMatrix:
    """Q, A and c as rows of one matrix."""
    return SparseMatrix(stacked([[P.Q.csr], [P.A.csr], [P.c.numpy()]]).tocsr())
