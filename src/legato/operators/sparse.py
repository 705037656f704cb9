"""A sparse matrix as an operator."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import outside_transforms
from legato._support.constants import held_constant
from legato._support.memory import Memory, recall
from legato._support.tree import Var
from legato.errors import InputError
from legato.operators.base import Operator, by_parts, lanczos_norm
from legato.operators.dense import require_vector


@dataclass(frozen=True)
class Pattern:
    """Where the entries of a sparse matrix are, by rows and, for its transpose, by columns."""

    shape: tuple[int, int]
    starts: Tensor
    columns: Tensor
    rows: Tensor
    into_columns: Tensor
    by_columns: Tensor
    """The stored entries, column by column."""

    @staticmethod
    def of(matrix: Tensor) -> Pattern:
        starts, columns = matrix.crow_indices(), matrix.col_indices()
        m, n = matrix.shape
        rows = torch.repeat_interleave(torch.arange(m, device=starts.device), starts.diff())
        counts = torch.bincount(columns, minlength=n)
        into_columns = torch.cat([starts.new_zeros(1), counts.cumsum(0).to(starts)])
        by_columns = columns.argsort(stable=True)
        return Pattern((m, n), starts, columns, rows, into_columns, by_columns)

    def ends(self, transposed: bool) -> tuple[Tensor, Tensor]:
        """Of every stored entry: where it writes to, and where it reads."""
        return (self.columns, self.rows) if transposed else (self.rows, self.columns)

    def matrix(self, values: Tensor, transposed: bool) -> Tensor:
        """The matrix of these values as torch's own, or its transpose."""
        m, n = self.shape
        if transposed:
            rows, values = (v.index_select(0, self.by_columns) for v in (self.rows, values))
            parts = self.into_columns, rows, values, (n, m)
        else:
            parts = self.starts, self.columns, values, (m, n)
        return torch.sparse_csr_tensor(*parts, check_invariants=False)

    def __deepcopy__(self, memo: Any) -> Pattern:
        return self  # nothing writes to it


@dataclass(frozen=True, eq=False, repr=False)
class Sparse(Operator):
    r"""Multiplication by a sparse matrix along the last axis, x ↦ Ax.

    .. math:: (Kx)_i = \sum_{j:\, (i, j) \text{ stored}} A_{ij} x_j

    A gradient reaches the stored values; entries that are not stored are no data, and get none.
    Give ``values`` to learn them: a plain tensor, which takes the place of those in the matrix, row
    by row. A CSR matrix that requires a gradient is read when the operator is made.

    Args:
        matrix (Tensor): (m, n), torch's sparse CSR; other layouts, and SciPy's matrices, are
            converted.
        values (Tensor, optional): one for each stored entry, in the order of CSR.
            Default: those of the matrix

    >>> A = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]).to_sparse_csr()
    >>> K = lg.Sparse(A)
    >>> K(torch.ones(3)), K.adjoint(torch.ones(2))
    (tensor([3., 3.]), tensor([1., 2., 3.]))
    >>> values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> lg.Sparse(A, values)(torch.ones(3)).sum().backward()
    >>> values.grad
    tensor([1., 1., 1.])
    """

    matrix: InitVar[Any]
    values: Tensor = None  # type: ignore[assignment]
    _pattern: Pattern = field(init=False, repr=False)
    _memory: Memory = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self, matrix: Any) -> None:
        with outside_transforms():
            rows = _as_csr(matrix)
            stored, pattern = rows.values(), Pattern.of(rows.detach())
        values = stored if self.values is None else self.values
        if not isinstance(values, Tensor) or values.shape != stored.shape:
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"values must be a tensor with one entry for each of the {stored.numel()} "
                f"that the matrix stores, in the order of its rows, not {found}."
            )
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        m, n = self._pattern.shape
        return f"Sparse({m}×{n}, {self.values.shape[0]} entries)"

    @property
    def coupled(self) -> tuple[int, int]:
        return 1, 1

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n)."""
        return self._pattern.shape

    @property
    def pattern(self) -> Pattern:
        """Where the stored entries are."""
        return self._pattern

    def start(self) -> Tensor:
        return self.values.detach().new_zeros(self.shape[1])

    def __call__(self, x: Var) -> Var:
        require_vector(x, self.values, self.shape, self.shape[1], "Ax")
        return self._apply(self.values, x, False)

    def adjoint(self, y: Var) -> Var:
        require_vector(y, self.values, self.shape, self.shape[0], "Aᵀy")
        return self._apply(self.values.conj_physical(), y, True)

    def _apply(self, values: Tensor, x: Tensor, transposed: bool) -> Tensor:
        if x.is_complex() and not values.is_complex():
            return by_parts(partial(self._apply, values, transposed=transposed), x)
        return _product(values, x, self._pattern, transposed)

    def norm(self, like: Var | None = None) -> Tensor:
        """‖A‖₂, at most 1 % too large; remembered until an entry changes, and never attached."""
        held_constant(self)
        return recall(
            self._memory, "norm", self.values, lambda: lanczos_norm(self.detached(), self.start())
        )

    def detached(self) -> Sparse:
        """The same matrix without a graph."""
        return self.of(self.values.detach())

    def of(self, values: Tensor) -> Sparse:
        """A matrix of the same pattern."""
        new = object.__new__(Sparse)
        for name, value in (("values", values), ("_pattern", self._pattern), ("_memory", {})):
            object.__setattr__(new, name, value)
        return new

    def absolute(self) -> Sparse:
        return self.of(self.values.abs())

    def to_dense(self) -> Tensor:
        """The matrix with its zeros, in the graph of its values."""
        m, n = self.shape
        rows, columns = self._pattern.ends(False)
        flat = self.values.new_zeros(m * n).index_add(0, rows * n + columns, self.values)
        return flat.reshape(m, n)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files begin without a memory."""
        return self.__dict__ | {"_memory": {}}


def _as_csr(matrix: Any) -> Tensor:
    """torch's CSR of what was given, each entry stored once."""
    with warnings.catch_warnings():  # torch says once that its CSR is in beta
        warnings.filterwarnings("ignore", "Sparse CS[CR] tensor support")
        return _converted(matrix)


def _converted(matrix: Any) -> Tensor:
    if hasattr(matrix, "tocsr"):  # of SciPy
        matrix = matrix.tocsr().copy()
        matrix.sum_duplicates()
        starts, columns = (torch.from_numpy(v).long() for v in (matrix.indptr, matrix.indices))
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(starts, columns, values, matrix.shape, check_invariants=True)
    if not isinstance(matrix, Tensor) or matrix.layout is torch.strided:
        kind = "a dense tensor" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise InputError(
            f"Sparse needs a sparse matrix, not {kind}: torch's CSR, matrix.to_sparse_csr(), or "
            "SciPy's. A dense matrix is an operator as Dense(matrix)."
        )
    if matrix.ndim != 2:
        raise InputError(
            f"Sparse needs one matrix (m, n), not a batch of shape {tuple(matrix.shape)}: leading "
            "axes of x are batches."
        )
    made = "ToSparse" in type(matrix.grad_fn).__name__
    if matrix.requires_grad and (made or matrix.layout is not torch.sparse_csr):
        raise InputError(
            "A gradient reaches the stored values of a sparse matrix, not its pattern: "
            + ("the dense tensor that it was made from" if made else f"a {matrix.layout} tensor")
            + " would get none for its zeros. Detach it, and give the values that are learned "
            "apart: Sparse(matrix.detach().to_sparse_csr(), values)."
        )
    if matrix.layout is not torch.sparse_csr:
        matrix = (
            matrix.coalesce() if matrix.layout is torch.sparse_coo else matrix
        ).to_sparse_csr()
    if not (matrix.is_floating_point() or matrix.is_complex()):
        raise InputError(f"The matrix of Sparse is {matrix.dtype}: convert it to floating point.")
    return matrix


def _product(values: Tensor, x: Tensor, pattern: Pattern, transposed: bool) -> Tensor:
    found: Tensor = _Product.apply(values, x, pattern, transposed)  # type: ignore[no-untyped-call]
    return found


class _Product(torch.autograd.Function):
    """Ax or Aᵀx as a function of A's values and x, by torch's product of a sparse matrix."""

    @staticmethod
    def forward(values: Tensor, x: Tensor, pattern: Pattern, transposed: bool) -> Tensor:
        columns = x.reshape(-1, x.shape[-1]).mT
        found = pattern.matrix(values, transposed) @ columns.contiguous()
        return found.mT.reshape(*x.shape[:-1], found.shape[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        values, x, ctx.pattern, ctx.transposed = inputs
        ctx.save_for_backward(values, x)
        ctx.save_for_forward(values, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, x = ctx.saved_tensors
        into, of = ctx.pattern.ends(ctx.transposed)
        in_values = in_x = None
        if ctx.needs_input_grad[0]:
            terms = grad.index_select(-1, into) * x.conj().index_select(-1, of)
            in_values = terms.sum_to_size(values.shape)
        if ctx.needs_input_grad[1]:
            in_x = _product(values.conj_physical(), grad, ctx.pattern, not ctx.transposed)
        return in_values, in_x, None, None

    @staticmethod
    def jvp(ctx: Any, d_values: Tensor | None, d_x: Tensor | None, *_: Any) -> Tensor:
        values, x = ctx.saved_tensors
        parts = [(d_values, x), (values, d_x)]
        moved = [
            _product(a, b, ctx.pattern, ctx.transposed)
            for a, b in parts
            if a is not None and b is not None
        ]
        return sum(moved[1:], moved[0])

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, values: Tensor, x: Tensor, pattern: Pattern, transposed: bool
    ) -> tuple[Tensor, int]:
        if in_dims[1] is not None:
            x = x.movedim(in_dims[1], 0)
        if in_dims[0] is None:  # leading axes are a batch already
            return _product(values, x, pattern, transposed), 0
        values = values.movedim(in_dims[0], 0)
        if in_dims[1] is None:
            x = x.expand(info.batch_size, *x.shape)
        into, of = pattern.ends(transposed)
        terms = values.reshape(len(values), *(1,) * (x.ndim - 2), -1) * x.index_select(-1, of)
        size = pattern.shape[1 if transposed else 0]
        return terms.new_zeros(*x.shape[:-1], size).index_add(-1, into, terms), 0
