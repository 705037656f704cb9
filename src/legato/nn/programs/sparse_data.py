"""Sparse matrices and operators among the data of a program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.precision import out_of_autocast
from legato.errors import InputError
from legato.nn.fused.choice import available, say_once
from legato.nn.programs.data import (
    _CONVEX,
    _EVEN,
    NAMES,
    Shapes,
    as_tensors,
    require_numbers,
    shapes_of,
)
from legato.nn.programs.program import Program
from legato.operators import Operator, Sparse

MATRICES = ("Q", "A", "G")
Pattern = tuple[Tensor, Tensor]
"""Rows and columns of stored entries."""


def understood(given: dict[str, Any], layer: str) -> dict[str, Any]:
    """Data with each matrix as a dense tensor, or as a ``Sparse`` where the solver can use it.

    Operators of other kinds are written out. Where one matrix is sparse, all are.
    """
    out = dict(given)
    for name in MATRICES:
        value = out[name]
        if isinstance(value, Operator) and not isinstance(value, Sparse):
            out[name] = _written_out(value, name, out)
        elif hasattr(value, "tocsr") or (
            isinstance(value, Tensor) and value.layout is not torch.strided
        ):
            out[name] = _sparse(value, name)
    some = [out[name] for name in MATRICES if isinstance(out[name], Sparse)]
    if not some:
        return out
    for name, value in out.items():
        if isinstance(value, Tensor) and value.ndim > (2 if name in MATRICES else 1):
            raise InputError(
                f"{name} of shape {tuple(value.shape)} is a batch, but {layer} solves programs "
                "with sparse matrices one at a time: loop over the batch, or give dense matrices."
            )
    why = None
    if not available("scipy"):
        why = "SciPy, whose sparse factors it would use, is not installed"
    elif some[0].values.device.type != "cpu":
        why = f"sparse factors are there for the CPU only, not for {some[0].values.device}"
    if why is not None:
        say_once(f"{layer} writes sparse matrices out densely: {why}.")
        return {k: v.to_dense() if isinstance(v, Sparse) else v for k, v in out.items()}
    for name in MATRICES:
        if isinstance(out[name], Tensor) and out[name].ndim == 2:
            out[name] = _stored(out_of_autocast(out[name]))
    return out


def is_sparse(given: dict[str, Any]) -> bool:
    return any(isinstance(given[name], Sparse) for name in MATRICES)


def _sparse(value: Any, name: str) -> Sparse:
    try:
        return Sparse(value)
    except InputError as error:
        raise InputError(f"{name} cannot be read as a sparse matrix. {error}") from None


def _written_out(operator: Operator, name: str, given: dict[str, Any]) -> Tensor:
    """The dense matrix of an operator along the last axis, in the graph of its parameters.

    What it returns is read as one vector, whatever its axes.
    """
    like = next(
        (v for k in ("c", "lo", "hi") if isinstance(v := given[k], Tensor) and v.ndim), None
    )
    if like is None:
        raise InputError(
            f"{name} is an operator, {operator!r}, whose matrix needs the number of variables: "
            "give c as a tensor (…, n)."
        )
    if operator.coupled is None or operator.coupled[0] != 1:
        raise InputError(
            f"{name} = {operator!r} couples other axes than the last, so that it has no matrix "
            "here: flatten the variables."
        )
    try:
        found: Tensor = operator(torch.eye(like.shape[-1], dtype=like.dtype, device=like.device))
    except (RuntimeError, ValueError, InputError) as error:
        raise InputError(
            f"{name} = {operator!r} cannot be applied to {like.shape[-1]} vectors (…, "
            f"{like.shape[-1]}): {error}"
        ) from None
    return found.reshape(like.shape[-1], -1).mT


def _stored(matrix: Tensor) -> Sparse:
    """A dense matrix as a sparse one; all of its entries where a gradient may reach zeros."""
    at = torch.ones_like(matrix) if matrix.requires_grad else matrix.detach()
    pattern = at.to_sparse_csr()
    rows = torch.repeat_interleave(
        torch.arange(matrix.shape[0], device=matrix.device), pattern.crow_indices().diff()
    )
    return Sparse(pattern, matrix[rows, pattern.col_indices()])


def rows_of(matrix: Tensor | Sparse, which: Tensor, sign: float = 1.0) -> Tensor | Sparse:
    """Some rows, or those of −matrix."""
    if isinstance(matrix, Tensor):
        picked = matrix[..., which, :]
        return picked if sign > 0 else -picked
    place = torch.full((matrix.shape[0],), -1, device=which.device)
    place[which] = torch.arange(which.shape[0], device=which.device)
    rows, columns = matrix.pattern.ends(False)
    kept = place[rows] >= 0
    return _assembled(
        place[rows][kept], columns[kept], sign * matrix.values[kept], (len(which), matrix.shape[1])
    )


def below(parts: list[Sparse]) -> Sparse:
    """Sparse matrices one below the other."""
    rows, columns, values, count = [], [], [], 0
    for part in parts:
        at, to = part.pattern.ends(False)
        rows.append(at + count)
        columns.append(to)
        values.append(part.values)
        count += part.shape[0]
    return _assembled(
        torch.cat(rows), torch.cat(columns), torch.cat(values), (count, parts[0].shape[1])
    )


def _assembled(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Sparse:
    order = (rows * max(shape[1], 1) + columns).argsort()
    counts = torch.bincount(rows, minlength=shape[0])
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    matrix = torch.sparse_csr_tensor(
        starts, columns[order], values.detach()[order], shape, check_invariants=False
    )
    return Sparse(matrix, values[order])


def identity(n: int, weight: float, like: Sparse) -> Sparse:
    """A multiple of the identity."""
    at = torch.arange(n, device=like.values.device)
    return _assembled(at, at, like.values.detach().new_full((n,), weight), (n, n))


def read(given: dict[str, Any], layer: str) -> tuple[dict[str, Tensor], Shapes, dict[str, Sparse]]:
    """Values and vectors as tensors, the shape of the answer, and the sparse matrices by name."""
    matrices = {k: given[k] for k in MATRICES if given[k] is not None}
    first = next(iter(matrices.values()))
    shaped = dict(given)
    if given["c"] is None and given["Q"] is not None:
        shaped["c"] = given["c"] = first.values.detach().new_zeros(given["Q"].shape[1])
    flat = {k: v.values if isinstance(v, Sparse) else v for k, v in given.items()}
    tensors = as_tensors(flat, layer)
    shapes = shapes_of(
        {
            k: torch.empty(matrices[k].shape if k in matrices else v.shape, device="meta")
            for k, v in tensors.items()
        }
    )
    require_numbers({k: v for k, v in tensors.items() if k != "Q"})
    if "Q" in matrices:
        values = tensors["Q"].detach()
        count = int((~torch.isfinite(values)).sum())
        if count:
            raise InputError(f"Q holds {count} NaN or infinite values of {values.numel()}.")
        _require_convex(_scipy(matrices["Q"]), _EVEN[values.dtype], _CONVEX[values.dtype])
    return tensors, shapes, matrices


def _scipy(matrix: Sparse) -> Any:
    """In SciPy's form and float64."""
    from scipy import sparse

    p = matrix.pattern
    parts = (matrix.values.detach().double().numpy(), p.columns.numpy(), p.starts.numpy())
    return sparse.csr_array(parts, shape=matrix.shape, copy=True)


def _require_convex(Q: Any, even: float, convex: float) -> None:
    """Refuse what is not symmetric, or has a negative eigenvalue; factors decide."""
    import numpy as np
    from scipy import sparse
    from scipy.sparse.linalg import ArpackError, eigsh

    from legato.nn.programs.sparse_matrix import on_the_diagonal

    size = float(abs(Q).max()) if Q.nnz else 0.0
    if size == 0.0:
        return
    off = float(abs(Q - Q.T).max())
    if off > even * size:
        raise InputError(
            f"Q is not symmetric: |Q − Qᵀ| reaches {off:.2g}. The objective ½xᵀQx only sees "
            "(Q + Qᵀ)/2: give that."
        )
    n = Q.shape[0]
    allowed = convex * max(1.0, n**0.5)
    unit = Q / size
    try:
        LU = on_the_diagonal((unit + allowed * sparse.eye_array(n)).tocsc(), "MMD_AT_PLUS_A")
        plain = bool((LU.perm_r == LU.perm_c).all()) and bool((LU.U.diagonal() > 0).all())
    except RuntimeError:  # a pivot of zero
        plain = False
    if plain:
        return
    try:
        lowest = (
            float(np.linalg.eigvalsh(unit.toarray())[0])
            if n <= 500
            else float(eigsh(unit, 1, which="SA", tol=1e-4, return_eigenvectors=False)[0])
        )
    except ArpackError:
        lowest = -1.0
    if lowest < -allowed:
        raise InputError(
            f"Q has a negative eigenvalue, {lowest * size:.2g}: the program is not convex and may "
            "have many local minima. Learn a factor, Q = LLᵀ, or add a multiple of the identity."
        )


def program_of(
    tensors: dict[str, Tensor], matrices: dict[str, Sparse], n: int, absent: Tensor | None
) -> Program:
    """The program of one instance, with sparse matrices."""
    from scipy import sparse

    from legato.nn.programs.sparse_matrix import SparseMatrix

    def matrix(name: str, rows: int) -> SparseMatrix:
        if name not in matrices:
            return SparseMatrix(sparse.csr_array((rows, n)))
        found = _scipy(matrices[name])
        return SparseMatrix((found + found.T).tocsr() / 2 if name == "Q" else found)

    def vector(name: str, size: int, fill: float) -> Tensor:
        if name not in tensors:
            return torch.full((1, size), fill, dtype=torch.float64)
        return tensors[name].detach().double().clone().reshape(1, -1)

    G, h, b = matrix("G", 0), vector("h", 0, 0.0), vector("b", 0, 0.0)
    h = torch.where((G.norms(-1) == 0) & (h >= 0), torch.inf, h)
    return Program(
        matrix("Q", n),
        vector("c", n, 0.0),
        matrix("A", 0),
        b,
        G,
        h,
        vector("lo", n, -torch.inf),
        vector("hi", n, torch.inf),
        "lo" in tensors or "hi" in tensors,
        torch.zeros_like(b, dtype=torch.bool) if absent is None else absent.reshape(1, -1),
    )


def patterns_of(matrices: dict[str, Sparse]) -> list[Pattern | None]:
    """Of all data: where values of a sparse matrix stand."""
    return [matrices[k].pattern.ends(False) if k in matrices else None for k in NAMES]
