"""One sparse matrix with the few operations that a program asks of its dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor

Numbers = Any
_DIGITS = 1e-6
"""What a solve may miss, relative: the rest is for refinement."""


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

    def __abs__(self) -> SparseMatrix:
        return SparseMatrix(abs(self.csr))

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

    def logs(self) -> tuple[SparseMatrix, SparseMatrix]:
        """log |M| where M is not zero, and a one there."""
        there = self.csr != 0
        L = self.csr.copy()
        L.eliminate_zeros()
        L.data = np.log(np.abs(L.data))
        return SparseMatrix(L), SparseMatrix(there.astype(float).tocsr())

    def plus_diagonal(self, values: Tensor) -> SparseMatrix:
        return SparseMatrix((self.csr + sparse.diags_array(values[0].numpy())).tocsr())

    def row(self, which: Tensor) -> Numbers:
        """Some rows, in SciPy's form."""
        return self.csr[which.numpy()]


class Factors:
    """LU of a symmetric matrix whose diagonal is positive, then negative.

    Pivots stay on the diagonal, in an order that keeps the factors sparse; finding it takes as long
    as the factors, so those of a matrix alike can be given theirs. Where such pivots lose the
    digits, rows are exchanged. Reference: Vanderbei (1995), Symmetric quasidefinite matrices.
    """

    def __init__(self, matrix: Numbers, order: Numbers = None) -> None:
        csc = matrix.tocsc()
        self.order, self._permuted = order, order is not None
        try:
            if order is None:
                self.LU = on_the_diagonal(csc, "MMD_AT_PLUS_A")
                self.order = np.argsort(self.LU.perm_c)
            else:
                self.LU = on_the_diagonal(csc[order][:, order], "NATURAL")
            if self._keeps_digits(csc):
                return
        except RuntimeError:  # a pivot of zero
            pass
        self._permuted = False
        try:
            self.LU = splu(csc, permc_spec="COLAMD")
        except RuntimeError:
            self.LU = None

    def _keeps_digits(self, csc: Numbers) -> bool:
        truth = np.cos(np.arange(csc.shape[0]))[:, None]
        right = csc @ truth
        found = self._divide(right)
        missed = np.abs(csc @ found - right).max(initial=0.0)
        return bool(missed <= _DIGITS * np.abs(right).max(initial=0.0))

    def _divide(self, columns: Numbers) -> Numbers:
        if self.LU is None:
            return np.full_like(columns, np.nan)
        if not self._permuted:
            return self.LU.solve(columns)
        found = np.empty_like(columns)
        found[self.order] = self.LU.solve(columns[self.order])
        return found

    def solve(self, right: Tensor) -> Tensor:
        """For right-hand sides (1, size, ·); NaN where the matrix is singular."""
        return torch.from_numpy(self._divide(right[0].numpy()))[None]


def on_the_diagonal(csc: Numbers, order: str) -> SuperLU:
    """LU with pivots on the diagonal, all of them positive where the matrix is definite."""
    options = {"SymmetricMode": True}
    return splu(csc, permc_spec=order, diag_pivot_thresh=0.0, options=options)


def stacked(blocks: list[list[Numbers]]) -> Numbers:
    """A matrix of blocks, None standing for zeros."""
    return sparse.block_array(blocks, format="csc")


def diagonal(values: Tensor) -> Numbers:
    return sparse.diags_array(values.numpy(), format="csr")
