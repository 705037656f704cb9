"""Proxes of terms behind operators that a prox passes through: orthonormal or diagonal ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato._support.checks import is_concrete
from legato._support.tree import Var, map_steps, square
from legato.errors import InputError
from legato.functions.algebra import Composed, Scaled
from legato.functions.base import Function
from legato.functions.prox import has_prox, mirror_prox, register_prox
from legato.functions.quadratics import System, is_quadratic
from legato.functions.smooth import LeastSquares, Quadratic
from legato.geometry import Euclidean
from legato.operators import Composition, Diagonal, Fourier, Identity, Operator, Wavelet
from legato.operators.base import Adjoint, conjugated
from legato.operators.base import Scaled as ScaledOperator


def is_orthonormal(K: Operator) -> bool:
    """Whether K*K = KK* = 1 is known; of :class:`Fourier` for complex variables."""
    if isinstance(K, Adjoint):
        return is_orthonormal(K.operator)
    if isinstance(K, Composition):
        return is_orthonormal(K.outer) and is_orthonormal(K.inner)
    if isinstance(K, Fourier):
        return K.mask is None and K.coils is None
    return isinstance(K, Identity | Wavelet)


def is_passed(f: Composed) -> bool:
    """Whether g(Kx) has a prox: that of g passes through K, or the whole is quadratic."""
    return passes(f.function, f.operator) or is_quadratic(f)


def mixed_by(K: Operator) -> tuple[int, ...]:
    """The axes along which an operator that a prox passes through mixes entries."""
    if isinstance(K, Adjoint | ScaledOperator):
        return mixed_by(K.operator)
    if isinstance(K, Composition):
        return mixed_by(K.outer) + mixed_by(K.inner)
    return K.dims if isinstance(K, Fourier | Wavelet) else ()


def passes(g: Function, K: Operator) -> bool:
    """Whether prox_g(Kx) says what prox_g∘K(x) is: behind orthonormal operators and diagonals."""
    if not has_prox(g, Euclidean()):
        return False
    inner = K.operator if isinstance(K, ScaledOperator) else K
    return is_orthonormal(inner) or (isinstance(K, Diagonal) and g.coupled == 0)


@register_prox(Composed, Euclidean)
def _(f: Composed, geometry: Euclidean, y: Tensor, alpha: Any) -> Any:
    r"""For K*K = KK* = c²: prox_{αg∘K}(y) = K*prox_{c²αg}(Ky)/c²; entrywise alike."""
    if not is_passed(f):
        raise InputError(
            f"No closed-form prox of {f!r}: it passes through orthonormal operators, multiples of "
            "them, and for terms of single entries through Diagonal. Give the energy to "
            "legato.solve, which gives it a dual variable."
        )
    g, K = f.function, f.operator
    if not passes(g, K):
        return _resolved(f, y, alpha)
    if isinstance(K, Diagonal):
        return _entrywise(f, K.entries, y, alpha)
    if _holds_fourier(K) and not y.is_complex():
        raise InputError(
            f"{K!r} is orthonormal on complex variables, but y is {y.dtype}: take y + 0j, or give "
            "the energy to legato.solve."
        )
    c = K.scale if isinstance(K, ScaledOperator) else None
    if c is None:
        return K.adjoint(mirror_prox(g, geometry, K(y), alpha))
    size = square(c) if isinstance(c, Tensor) else abs(c) ** 2
    if not isinstance(size, Tensor) and size == 0:
        return y
    step = map_steps(lambda a: a * size, alpha)
    # Since y = K*Ky/c², nothing has to be added to y, which might be far larger than the prox.
    moved = K.adjoint(mirror_prox(g, geometry, K(y), step))
    if not isinstance(size, Tensor):
        return moved / size
    return torch.where(size > 0, moved / torch.where(size > 0, size, 1.0), y)


def _entrywise(f: Composed, entries: Tensor, y: Tensor, alpha: Any) -> Tensor:
    """Where an entry of the diagonal is 0 the term is constant: y stays."""
    if entries.is_complex() and not y.is_complex():
        raise InputError(
            f"{f!r}: the diagonal is complex, but y is {y.dtype}, and its prox would be complex. "
            "If the variable is to be real, see it as complex first, Diagonal(d) @ "
            "operators.AsComplex(); else take y + 0j."
        )
    size = square(entries)
    seen = entries * y
    moved = mirror_prox(f.function, Euclidean(), seen, alpha * size) - seen
    there = size > 0
    pulled = conjugated(entries) * moved / torch.where(there, size, 1.0)
    return y + torch.where(there, pulled, torch.zeros_like(pulled))


def _holds_fourier(K: Operator) -> bool:
    if isinstance(K, Composition):
        return _holds_fourier(K.outer) or _holds_fourier(K.inner)
    if isinstance(K, Adjoint | ScaledOperator):
        return _holds_fourier(K.operator)
    return isinstance(K, Fourier)


@register_prox(LeastSquares, Euclidean)
@register_prox(Quadratic, Euclidean)
def _(f: Function, geometry: Euclidean, y: Tensor, alpha: Any) -> Any:
    return _resolved(f, y, alpha)


def _resolved(f: Function, y: Tensor, alpha: Any) -> Var:
    """(α∇²f + 1)x = y − α∇f(0): factorised or divided where that is known, else by CG.

    For steps that vary among entries which f couples, (∇²f + 1/α)x = y/α − ∇f(0), for it is
    symmetric.
    """
    if not isinstance(alpha, Tensor) and alpha == 0:
        return y
    at_zero = f.grad(0 * y.detach())
    rho: Tensor | float
    if _varies_within(alpha, f):
        system, rho = System(f, (Identity(),)), 1 / _positive(alpha)
        right = rho * y - at_zero
    else:
        system, rho = System(Scaled(alpha, f), (Identity(),)), 1.0
        right = y - alpha * at_zero
    batch = 0 if f.coupled is None else max(0, y.ndim - f.coupled)
    return system.solve(system.factor(y, rho), right, rho, y.detach(), batch)


def _varies_within(alpha: Any, f: Function) -> bool:
    """Whether a step differs along axes that f couples."""
    if not isinstance(alpha, Tensor) or alpha.ndim == 0:
        return False
    inner = alpha.ndim if f.coupled is None else min(f.coupled, alpha.ndim)
    return any(n > 1 for n in alpha.shape[alpha.ndim - inner :])


def _positive(alpha: Tensor) -> Tensor:
    if is_concrete() and not bool((alpha.detach() > 0).all()):
        raise InputError(
            "Steps that vary among entries which a quadratic term couples must be positive: one of "
            "them is 0. Hold such entries by a term of their own, or take one step for all."
        )
    return alpha
