"""One sparse matrix with the few operations that a program asks of its dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor

Numbers = Any


class SparseMatrix:
    """A matrix of shape (1, rows, columns), in float64 on the CPU; it has no gradient."""

    def __init__(self, csr: Numbers) -> None:
        self.csr = csr
        self.order: Numbers = None
        """In which a matrix made of this one stays sparse, once it is known."""

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns = self.csr.shape
        return 1, rows, columns

    @property
    def mT(self) -> SparseMatrix:
        return SparseMatrix(self.csr.T.tocsr())

    def __matmul__(self, columns: Tensor) -> Tensor:
        return torch.from_numpy(self.csr @ columns[0].numpy())[None]

    def __mul__(self, factors: Tensor) -> SparseMatrix:
        """Factors of rows (1, rows, 1), of columns (1, 1, columns), or of all (1, 1, 1)."""
        f = factors[0].numpy()
        if f.shape == (1, 1):
            return SparseMatrix(self.csr * f[0, 0])
        if f.shape[1] == 1:
            return SparseMatrix((sparse.diags_array(f[:, 0]) @ self.csr).tocsr())
        return SparseMatrix((self.csr @ sparse.diags_array(f[0])).tocsr())

    def norms(self, axis: int) -> Tensor:
        """The largest entry of every row (axis −1) or column (−2)."""
        size = self.shape[1 if axis == -1 else 2]
        if 0 in self.shape:
            return torch.zeros(1, size, dtype=torch.float64)
        found = abs(self.csr).max(axis=1 if axis == -1 else 0)
        return torch.from_numpy(np.asarray(found.todense(), dtype=float).reshape(1, size))

    def plus_diagonal(self, values: Tensor) -> SparseMatrix:
        return SparseMatrix((self.csr + sparse.diags_array(values[0].numpy())).tocsr())

    def row(self, which: Tensor) -> Numbers:
        """Some rows, in SciPy's form."""
        return self.csr[which.numpy()]


class Factors:
    """LU of a quasi-definite matrix: pivots on its diagonal, in an order that keeps it sparse.

    Finding the order takes as long as the factors: those of a matrix alike can be given theirs.
    Reference: Vanderbei (1995), Symmetric quasidefinite matrices.
    """

    def __init__(self, matrix: Numbers, order: Numbers = None) -> None:
        csc = matrix.tocsc()
        if order is None:
            self.LU = self._divided(csc, "MMD_AT_PLUS_A")
            self.order, self._permuted = np.argsort(self.LU.perm_c), False
        else:
            self.LU = self._divided(csc[order][:, order], "NATURAL")
            self.order, self._permuted = order, True

    @staticmethod
    def _divided(csc: Numbers, order: str) -> SuperLU:
        options = {"SymmetricMode": True}
        return splu(csc, permc_spec=order, diag_pivot_thresh=0.0, options=options)

    def solve(self, right: Tensor) -> Tensor:
        """For right-hand sides (1, size, ·)."""
        columns = right[0].numpy()
        if not self._permuted:
            return torch.from_numpy(self.LU.solve(columns))[None]
        found = np.empty_like(columns)
        found[self.order] = self.LU.solve(columns[self.order])
        return torch.from_numpy(found)[None]


def stacked(blocks: list[list[Numbers]]) -> Numbers:
    """A matrix of blocks, None standing for zeros."""
    return sparse.block_array(blocks, format="csc")


def diagonal(values: Tensor) -> Numbers:
    return sparse.diags_array(values.numpy(), format="csr")
