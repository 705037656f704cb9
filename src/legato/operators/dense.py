"""A matrix as an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato._support.checks import (
    inside_functional_transform,
    is_concrete,
    may_be_differentiated,
    require_floating,
)
from legato._support.constants import held_constant
from legato._support.memory import Memory, recall
from legato._support.tree import Var, real_dtype
from legato.errors import InputError
from legato.operators.base import Operator, by_parts, lanczos_norm
from legato.operators.eigenvalue import largest_eigenvalue, root

_EXACT_UP_TO = 512
"""Smaller side of a matrix up to which an eigenvalue decomposition is cheaper than Lanczos."""

_WIDE = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}

_WHOLE_UP_TO = 64
"""Columns up to which a product costs less than putting its halves together."""


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Operator):
    r"""Multiplication by a matrix along the last axis, x ↦ Ax.

    .. math:: (Kx)_i = \sum_j A_{ij} x_j

    ``matrix`` has shape (m, n), or (…, m, n) with leading batch axes that broadcast against those
    of x. The norm is exact up to a smaller side of 512, within 1 % above that; it is remembered
    until an entry of the matrix changes, in whatever way.

    >>> K = lg.Dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> K(torch.ones(2)), K.adjoint(torch.ones(2))
    (tensor([3., 3.]), tensor([1., 5.]))
    """

    matrix: Tensor
    _memory: Memory = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_floating(self.matrix, "The matrix of Dense")
        if self.matrix.ndim < 2:
            raise InputError(
                f"Dense needs a matrix, not a tensor of shape {tuple(self.matrix.shape)}."
            )

    @property
    def coupled(self) -> tuple[int, int]:
        return 1, 1

    def start(self) -> Tensor:
        return torch.zeros_like(self.matrix[..., 0, :].detach())

    def start_behind(self, y: Var) -> Var:
        A = self.matrix
        # A subclass may multiply by another matrix; what does not fit is explained by the product.
        known = type(self) is Dense and isinstance(y, Tensor) and not inside_functional_transform()
        if known and (y.dtype, y.device) == (A.dtype, A.device) and A.shape[-2:-1] == y.shape[-1:]:
            axes = y.shape[:-1]
            if A.ndim == 2 or A.shape[:-2] == axes:
                return A.new_zeros(*axes, A.shape[-1])
        return super().start_behind(y)

    def __call__(self, x: Var) -> Var:
        try:
            return _apply(self.matrix, x)
        except (RuntimeError, IndexError):
            self._explain(x, self.matrix.shape[-1], "Ax")
            raise

    def less(self, x: Var, b: Tensor) -> Tensor:
        found = self._at_once(self.matrix, x, b, beta=-1)
        return super().less(x, b) if found is None else found

    def pulled(self, x: Var, step: float, r: Var) -> Var:
        found = None
        if not self.matrix.is_complex():
            found = self._at_once(self.matrix.mT, r, x, alpha=-step)
        return super().pulled(x, step, r) if found is None else found

    def _at_once(
        self, A: Tensor, x: Tensor, b: Tensor, *, alpha: float = 1, beta: float = 1
    ) -> Tensor | None:
        """αAx + βb in one operation, for the shapes of most problems."""
        # A subclass may multiply by another matrix; other shapes broadcast, or are explained.
        fits = type(self) is Dense and A.dtype == x.dtype == b.dtype
        if not fits or x.shape[-1:] != A.shape[-1:] or b.shape != (*x.shape[:-1], A.shape[-2]):
            return None
        if A.ndim == 2 and x.ndim == 1:
            return torch.addmv(b, A, x, alpha=alpha, beta=beta)
        if A.ndim == 2 and x.ndim == 2:
            return torch.addmm(b, x, A.mT, alpha=alpha, beta=beta)
        if A.ndim == 3 and x.ndim == 2 and len(A) == len(x):
            rows = b.unsqueeze(-2), x.unsqueeze(-2)
            return torch.baddbmm(*rows, A.mT, alpha=alpha, beta=beta).squeeze(-2)
        return None

    def adjoint(self, y: Var) -> Var:
        try:
            return _apply(self.matrix.mH, y)
        except (RuntimeError, IndexError):
            self._explain(y, self.matrix.shape[-2], "Aᵀy")
            raise

    def _explain(self, v: Tensor, size: int, product: str) -> None:
        """Say in words why a product failed (after the fact: checks would cost every step)."""
        require_vector(v, self.matrix, self.matrix.shape, size, product)
        axes = self.matrix.shape[:-2], v.shape[:-1]
        try:
            torch.broadcast_shapes(*axes)
        except RuntimeError:
            raise InputError(
                f"{product}: a batch of matrices of shape {tuple(self.matrix.shape)} does not fit "
                f"a vector of shape {tuple(v.shape)}: their batch axes {tuple(axes[0])} and "
                f"{tuple(axes[1])} do not broadcast."
            ) from None

    def gram(self, weights: Tensor | None = None) -> Tensor:
        """AᴴWA for a diagonal matrix W of ``weights``, of shape (…, m), or for the identity.

        AᴴA is remembered like the norm, unless the matrix itself is to be differentiated.
        """
        A = self.matrix
        if weights is not None and not _are_alike(weights):
            return _symmetric_product(A, weights.unsqueeze(-1) * A)
        if weights is not None:
            return weights.flatten()[0] * self.gram()
        if may_be_differentiated(A):
            return _symmetric_product(A, A)
        return recall(self._memory, "gram", A, lambda: _symmetric_product(A, A))

    def norm(self, like: Var | None = None) -> Tensor:
        """‖A‖₂; for a batch of matrices one norm each. Attached where it is exact."""
        A = self.matrix
        found = recall(self._memory, "norm", A, self._compute_norm)
        if not may_be_differentiated(A):
            return found
        if self._is_large:
            held_constant(A)
            return found
        attached = self._scaled_norm(A, lambda gram: root(largest_eigenvalue(gram).clamp(min=0)))
        return found + (attached - attached.detach())  # the same number as without a graph

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files begin without a memory."""
        return self.__dict__ | {"_memory": {}}

    @property
    def _is_large(self) -> bool:
        return self.matrix.ndim == 2 and min(self.matrix.shape) > _EXACT_UP_TO

    def _compute_norm(self) -> Tensor:
        A = self.matrix.detach()
        if self._is_large:
            return lanczos_norm(Dense(A), A[0])
        return self._scaled_norm(
            A, lambda gram: torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()
        )

    @staticmethod
    def _scaled_norm(A: Tensor, of_gram: Callable[[Tensor], Tensor]) -> Tensor:
        # Squares of very large and very small entries are no numbers of this precision.
        size = A.detach().abs().amax((-2, -1), keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
        A = A / size
        gram = A @ A.mH if A.shape[-2] <= A.shape[-1] else A.mH @ A
        # LAPACK refuses what is no number, GPUs do not; here its norm is none either.
        sound = torch.isfinite(gram)
        values = of_gram(torch.where(sound, gram, 0.0).to(_WIDE[A.dtype]))
        top = values.to(size.dtype) * size[..., 0, 0]
        top = torch.where(sound.all(-1).all(-1), top, torch.nan)
        return top * (1 + 8 * torch.finfo(A.dtype).eps)  # an upper bound despite rounding

    def absolute(self) -> Operator:
        return Dense(self.matrix.abs())


def _apply(A: Tensor, x: Tensor) -> Tensor:
    if x.is_complex() and not A.is_complex():
        return by_parts(partial(_apply, A), x)
    if A.ndim == 2:
        return A @ x if x.ndim == 1 else x @ A.mT
    own = A.ndim - 2
    if x.ndim - 1 > own and x.shape[-1 - own : -1] == A.shape[:-2]:
        # Axes in front of the batch of matrices: rows of one product with each, not copies of it.
        rows = x.reshape(-1, *x.shape[-1 - own :]).movedim(0, -2) @ A.mT
        return rows.movedim(-2, 0).reshape(*x.shape[:-1], A.shape[-2])
    # As a row: torch multiplies a batch of matrices by columns several times more slowly on a CPU.
    return (x.unsqueeze(-2) @ A.mT).squeeze(-2)


def _are_alike(weights: Tensor) -> bool:
    """Whether all weights are the same number, as those of Logistic are where a solve begins."""
    if weights.requires_grad or weights.device.type != "cpu" or not is_concrete():
        return False
    return weights.numel() > 0 and bool((weights == weights.flatten()[0]).all())


def _symmetric_product(A: Tensor, WA: Tensor) -> Tensor:
    """AᴴWA for diagonal W: of the two blocks off the diagonal one is computed, one is copied."""
    n = A.shape[-1]
    if n < _WHOLE_UP_TO:
        return A.mH @ WA
    half = n // 2
    first = A[..., :half].mH @ WA[..., :half]
    second = A[..., half:].mH @ WA
    top = torch.cat((first, second[..., :half].mH), -1)
    return torch.cat((top, second), -2)


def require_vector(
    v: Tensor, entries: Tensor, shape: Sequence[int], size: int, product: str
) -> None:
    """Refuse a vector that a matrix with these entries, of this shape, does not multiply."""
    if entries.is_complex() and not v.is_complex():
        raise InputError(
            f"{product}: the matrix is complex but the vector real. Start at a complex x0, or see "
            "a real variable as complex first: A @ operators.AsComplex()."
        )
    if real_dtype(v.dtype) != real_dtype(entries.dtype):
        raise InputError(
            f"{product}: the matrix is {entries.dtype} but the vector {v.dtype}. Convert one of "
            "them; legato never mixes precisions silently."
        )
    if v.shape[-1:] != (size,):
        raise InputError(
            f"{product} needs a last axis of size {size} for A of shape {tuple(shape)}, but the "
            f"vector has shape {tuple(v.shape)}."
        )
