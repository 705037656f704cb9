r"""Quadratic functions, and the points where their gradient plus a multiple of K*K takes a value.

    (∇²q + ρ K*K) x = r

Where everything is diagonal, in the entries or in the frequencies, a division solves it; a matrix
is factorised, once for as many right sides as there are; the rest is left to conjugate gradients,
with an exact derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import is_concrete
from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.functions.affine import Linear, Zero
from legato.functions.algebra import Composed, Scaled, Shifted, Sum
from legato.functions.base import Function
from legato.functions.blocks import Separable
from legato.functions.conjugate_gradients import solved
from legato.functions.kernels import BregmanTerm, SquaredDistance, diagonal_hessian
from legato.functions.smooth import LeastSquares, Quadratic
from legato.geometry import Euclidean
from legato.operators import (
    AsComplex,
    Blur,
    Convolution,
    Dense,
    Diagonal,
    Fourier,
    Identity,
    Mask,
    Operator,
    Wavelet,
)
from legato.operators.base import Scaled as ScaledOperator
from legato.operators.base import by_parts

Number = Tensor | float


def is_quadratic(f: Function) -> bool:
    """Whether ∇f is known to be affine."""
    if isinstance(f, Scaled | Shifted | Composed):
        return is_quadratic(f.function)
    if isinstance(f, Sum):
        return all(map(is_quadratic, f.terms))
    if isinstance(f, Separable):
        return all(map(is_quadratic, f.blocks))
    if isinstance(f, BregmanTerm):
        return isinstance(f.geometry, Euclidean)
    return isinstance(f, Zero | Linear | SquaredDistance | LeastSquares | Quadratic)


class Curvature(NamedTuple):
    """∇²f = diag(entries) + F* diag(spectrum) F + matrix on the last axis, as far as it is known.

    The transform F is that of the axes ``dims``; for real variables it is the half of it.
    """

    entries: Number = 0.0
    spectrum: Tensor | None = None
    dims: tuple[int, ...] = ()
    matrix: Tensor | None = None

    def plus(self, other: Curvature | None) -> Curvature | None:
        """The sum, where it is diagonal in one of the two ways, or a matrix."""
        if other is None:
            return None
        if self.spectrum is not None and other.spectrum is not None and self.dims != other.dims:
            return None
        entries, dims = self.entries + other.entries, self.dims or other.dims
        spectrum, matrix = _sum(self.spectrum, other.spectrum), _sum(self.matrix, other.matrix)
        if spectrum is not None and (matrix is not None or _varies(entries, dims)):
            return None
        return Curvature(entries, spectrum, dims, matrix)

    def times(self, c: Number) -> Curvature:
        """c∇²f for one number, or one for each element of a batch, which broadcasts against x."""
        of_matrix = c.unsqueeze(-1) if isinstance(c, Tensor) and c.ndim else c
        spectrum = None if self.spectrum is None else c * self.spectrum
        matrix = None if self.matrix is None else of_matrix * self.matrix
        return Curvature(c * self.entries, spectrum, self.dims, matrix)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _varies(entries: Number, dims: tuple[int, ...]) -> bool:
    return isinstance(entries, Tensor) and any(
        entries.ndim >= -d and entries.shape[d] > 1 for d in dims
    )


def curvature(f: Function, x: Var) -> Curvature | None:
    """∇²f of a quadratic function for variables shaped like x; None where no form is known."""
    if isinstance(x, tuple):
        return None
    if isinstance(f, Sum):
        total: Curvature | None = Curvature()
        for term in f.terms:
            total = None if total is None else total.plus(curvature(term, x))
        return total
    if isinstance(f, Shifted):
        return curvature(f.function, x)
    if isinstance(f, Scaled):
        inner = curvature(f.function, x)
        return None if inner is None else inner.times(f.factor)
    if isinstance(f, Composed):
        weight = _weight(f.function)
        return None if weight is None else seen(f.operator, weight, x)
    if isinstance(f, LeastSquares):
        return seen(f.operator, f.weight, x)
    if isinstance(f, Quadratic):
        return Curvature(matrix=f.Q.matrix) if type(f.Q) is Dense else None
    own = _weight(f)
    return None if own is None else Curvature(own)


def _weight(f: Function) -> Number | None:
    """w for a function of curvature w in every entry."""
    if isinstance(f, Scaled):
        inner = _weight(f.function)
        return None if inner is None else f.factor * inner
    if isinstance(f, Shifted):
        return _weight(f.function)
    if isinstance(f, Zero | Linear):
        return 0.0
    return f.weight if isinstance(f, SquaredDistance | BregmanTerm) else None


def seen(K: Operator, weight: Number, x: Tensor) -> Curvature | None:
    """K*diag(w)K for variables shaped like x; None where no form is known."""
    one = _is_one(weight)
    if isinstance(K, ScaledOperator):
        inner = seen(K.operator, weight, x)
        return None if inner is None else inner.times(_square(K.scale))
    if type(K) is Dense:
        return Curvature(matrix=weight * K.gram() if one else K.gram(torch.as_tensor(weight)))
    if isinstance(K, Identity | AsComplex):
        return Curvature(weight)
    if isinstance(K, Diagonal):
        return Curvature(weight * tree.square(K.entries))
    if isinstance(K, Mask):
        return Curvature(weight * K.mask.to(tree.real_like(x)))
    if isinstance(K, Fourier):
        return _seen_by_fourier(K, weight, x)
    if not one:
        return None
    if isinstance(K, Wavelet):
        return Curvature(weight)
    if isinstance(K, Blur) and K.boundary == "circular":
        return _spectrum(weight, K.kernel[None], x)
    if isinstance(K, Convolution) and K.boundary == "circular" and K.kernel.shape[1] == 1:
        return _spectrum(weight, K.kernel[:, 0], x)
    return None


def _seen_by_fourier(K: Fourier, weight: Number, x: Tensor) -> Curvature | None:
    one = _is_one(weight)
    if K.coils is not None:
        if K.mask is not None or not one:
            return None
        return Curvature(weight * tree.square(K.coils).sum(min(K.dims) - 1))
    if not x.is_complex():
        return None
    if K.mask is None and one:
        return Curvature(weight)
    real = tree.real_like(x)
    mask = real.new_ones(()) if K.mask is None else K.mask.to(real)
    return Curvature(spectrum=weight * mask, dims=K.dims)


def _is_one(weight: Number) -> bool:
    return not isinstance(weight, Tensor) or weight.ndim == 0


def _square(scale: Tensor | complex) -> Number:
    return tree.square(scale) if isinstance(scale, Tensor) else abs(scale) ** 2


def _spectrum(weight: Number, kernels: Tensor, x: Tensor) -> Curvature | None:
    """w Σ_o |F k_o|² for kernels (o, …) on the last axes of x."""
    if kernels.is_complex() and not x.is_complex():
        return None
    dims = tuple(range(1 - kernels.ndim, 0))
    transform = torch.fft.fftn if x.is_complex() else torch.fft.rfftn
    symbols = transform(kernels, s=tuple(x.shape[d] for d in dims), dim=dims)
    return Curvature(spectrum=weight * tree.square(symbols).sum(0), dims=dims)


# --- systems --------------------------------------------------------------------------------------


class Entries(NamedTuple):
    """A system that is diagonal in the entries of x."""

    values: Tensor


class Frequencies(NamedTuple):
    """A system that is diagonal in the frequencies of x."""

    values: Tensor


class Cholesky(NamedTuple):
    """The lower factor of a system's matrix."""

    lower: Tensor


Factor = Entries | Frequencies | Cholesky | tuple[()]
"""What right sides have in common; nothing where conjugate gradients do the work."""


@dataclass(frozen=True)
class System:
    r"""(∇²q + ρ Σ_j K_j*K_j) x = r, for any number of right sides.

    ``factor`` is attached to q, ρ and the operators, and the solution to the factor. ρ broadcasts
    against x, with one number for each element of a batch.
    """

    q: Function
    operators: tuple[Operator, ...]

    def factor(self, x: Var, rho: Any) -> Factor:
        form = curvature(self.q, x)
        for K in self.operators:
            part = None if form is None else seen(K, 1.0, x)
            form = None if part is None or form is None else form.plus(part.times(rho))
        if form is None:
            return ()
        if form.spectrum is not None:
            return Frequencies(_required(form.spectrum + form.entries))
        real = tree.real_like(x)
        if form.matrix is None:
            values = torch.as_tensor(form.entries, dtype=real.dtype, device=real.device)
            return Entries(_required(values))
        matrix = form.matrix + diagonal_hessian(form.entries, real)
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if is_concrete() and bool(failed.any()):
            raise _not_unique()
        return Cholesky(lower)

    def solve(self, factor: Factor, r: Var, rho: Any, start: Var, batch: int) -> Var:
        """x, attached; conjugate gradients, where they do the work, begin at ``start``."""
        if isinstance(factor, Entries):
            return r / factor.values
        if isinstance(factor, Frequencies):
            return _filtered(r, factor.values, self._axes())
        if isinstance(factor, Cholesky):
            return _substituted(factor.lower, r)
        return solved(self._product(rho, start), r, start, batch)

    def _product(self, rho: Any, like: Var) -> Callable[[Var], Var]:
        at_zero = self.q.grad(tree_map(torch.zeros_like, like))

        def product(x: Var) -> Var:
            total = tree_map(torch.sub, self.q.grad(x), at_zero)
            for K in self.operators:
                pulled = K.adjoint(K(x))
                total = tree_map(lambda t, p: t + rho * p, total, pulled)
            return total

        return product

    def _axes(self) -> tuple[int, ...]:
        """The axes of the transform, which all terms that have one share."""
        pairs = [*_weighted_operators(self.q), *((K, 1.0) for K in self.operators)]
        return next(axes for K, weight in pairs for axes in _axes_of(K, weight))


def _weighted_operators(f: Function) -> list[tuple[Operator, Number]]:
    """Pairs K, w of terms in which K*diag(w)K counts, up to a factor."""
    if isinstance(f, Sum):
        return [pair for term in f.terms for pair in _weighted_operators(term)]
    if isinstance(f, Scaled | Shifted):
        return _weighted_operators(f.function)
    if isinstance(f, LeastSquares):
        return [(f.operator, f.weight)]
    weight = _weight(f.function) if isinstance(f, Composed) else None
    return [(f.operator, weight)] if isinstance(f, Composed) and weight is not None else []


def _axes_of(K: Operator, weight: Number) -> list[tuple[int, ...]]:
    """The axes of the transform in what :func:`seen` says of K; none where it has no spectrum."""
    if isinstance(K, ScaledOperator):
        return _axes_of(K.operator, weight)
    if isinstance(K, Fourier) and not (K.mask is None and _is_one(weight)):
        return [K.dims]
    if isinstance(K, Blur | Convolution):
        return [tuple(range(-(K.kernel.ndim if isinstance(K, Blur) else K.kernel.ndim - 2), 0))]
    return []


def _filtered(r: Tensor, values: Tensor, dims: tuple[int, ...]) -> Tensor:
    if r.is_complex():
        return torch.fft.ifftn(torch.fft.fftn(r, dim=dims) / values, dim=dims)
    sizes = tuple(r.shape[d] for d in dims)
    return torch.fft.irfftn(torch.fft.rfftn(r, dim=dims) / values, s=sizes, dim=dims)


def _substituted(lower: Tensor, r: Tensor) -> Tensor:
    if r.is_complex() and not lower.is_complex():
        return by_parts(partial(_substituted, lower), r)
    if lower.ndim == 2:  # all elements of a batch as columns
        return torch.cholesky_solve(r.reshape(-1, r.shape[-1]).mT, lower).mT.reshape(r.shape)
    return torch.cholesky_solve(r.unsqueeze(-1), lower).squeeze(-1)


def _required(values: Tensor) -> Tensor:
    if is_concrete() and not bool((values.detach() > 0).all()):
        raise _not_unique()
    return values


def _not_unique() -> InputError:
    return InputError(
        "A quadratic subproblem has no unique solution: its Hessian is singular, as that of data "
        "which do not see all of x. Add SquaredNorm(epsilon) to the energy, or use PrimalDual, "
        "which solves no such systems."
    )
