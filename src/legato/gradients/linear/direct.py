"""A dense factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.errors import GradientError
from legato.gradients.linear.base import (
    Factored,
    LinearResult,
    LinearSolver,
    Product,
    norm,
    ratio,
    require_finite_products,
    residual_of,
)
from legato.gradients.linear.judging import judged
from legato.gradients.linear.spectrum import random_vector

_INVERSE_STEPS = 3
"""Solves with the factors from which the eigenvalue next to 1 is estimated."""
_POWERS = 10
"""Products that let the largest eigenvalues come out, and as many that measure them."""


@dataclass(frozen=True)
class Direct(LinearSolver):
    r"""The matrix I − M written out and factorised, w = (I − M)⁻¹ξ.

    For systems that fit, by far the fastest on a GPU, where an iterative solver waits for many
    small kernels. Of M = BP only the columns are needed that P does not make 0: with a prox that
    thresholds, the active set S.

    .. math:: (I − M_{SS})\,w_S = ξ_S, \qquad w = ξ + M_{:S}\,w_S

    ``largest`` is the largest number of unknowns of one system.

    Default: ``largest=2048``.

    >>> M = torch.tensor([[0.5, 0.25], [0.25, 0.5]])
    >>> lg.Direct().solve(lambda w: M @ w, torch.tensor([1.0, 0.0])).solution.round(decimals=3)
    tensor([2.6670, 1.3330])
    """

    takes_factors: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True

    largest: int = 2048

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        n, systems = xi.shape[-1], xi.shape[:-1]
        if n * math.sqrt(systems.numel()) > self.largest:
            count = f"{systems.numel()} matrices" if systems else "a matrix"
            needed = math.ceil(n * math.sqrt(systems.numel()))
            raise GradientError(
                f"Direct would write out {count} of {n} × {n}. Use GMRES(), or raise "
                f"Direct(largest={needed}) if that is meant."
            )
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        tol = math.sqrt(torch.finfo(xi.dtype).eps)
        columns = _columns_in_use(product, xi)
        M = _written_out(product, xi, columns)
        found = _by_factors(product, xi, M, columns, tol)
        if found is not None:
            return found
        # Least squares of minimal norm: also defined, and certified by its residual, if singular.
        if columns.numel() < n:
            M = _written_out(product, xi, torch.arange(n, device=xi.device))
        require_finite_products(M)
        identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
        B, rhs = (identity - M).cpu(), xi.cpu().unsqueeze(-1)
        w = torch.linalg.lstsq(B, rhs, driver="gelsd").solution.squeeze(-1).to(xi)
        return judged(product, w, xi, n, tol)


def _columns_in_use(product: Product, xi: Tensor) -> Tensor:
    """The columns of M = BP that are not 0 in every system.

    P is symmetric where a step is known to be: rows that a random vector meets with 0 are columns
    of zeros, almost surely.
    """
    everything = torch.arange(xi.shape[-1], device=xi.device)
    if not isinstance(product, Factored) or not product.symmetric:
        return everything
    seen = product.P(random_vector(xi)) != 0
    return everything[seen.reshape(-1, xi.shape[-1]).any(0)]


def _written_out(product: Product, xi: Tensor, columns: Tensor) -> Tensor:
    """Columns of M, (…, n, k): by one product with all of them where that can be had."""
    if not columns.numel():
        return xi.new_zeros(*xi.shape, 0)
    units = torch.zeros(len(columns), xi.shape[-1], dtype=xi.dtype, device=xi.device)
    units.scatter_(1, columns[:, None], 1.0)
    units = units.reshape(len(columns), *(1,) * (xi.ndim - 1), -1).expand(-1, *xi.shape)
    together = getattr(product, "together", None)
    if together is not None:
        try:
            return torch.movedim(together(units), 0, -1)
        except RuntimeError:  # the backward pass of somebody's function knows no further axis
            pass
    return torch.stack([product(e.contiguous()) for e in units], dim=-1)


def _by_factors(
    product: Product, xi: Tensor, M: Tensor, columns: Tensor, tol: float
) -> LinearResult | None:
    """By an LU factorisation, refined once; None where I − M is next to singular."""
    inner = M[..., columns, :]
    identity = torch.eye(len(columns), dtype=xi.dtype, device=xi.device)
    factors, pivots, _ = torch.linalg.lu_factor_ex(identity - inner)

    def solved(rhs: Tensor) -> Tensor:
        return torch.linalg.lu_solve(factors, pivots, rhs.unsqueeze(-1)).squeeze(-1)

    def times(matrix: Tensor, v: Tensor) -> Tensor:
        return (matrix @ v.unsqueeze(-1)).squeeze(-1)

    def inverse(rhs: Tensor) -> Tensor:
        return rhs + times(M, solved(rhs[..., columns])) if len(columns) else rhs

    w = inverse(xi)
    w = w + inverse(residual_of(product, w, xi)[0])
    _, residuals = residual_of(product, w, xi)
    gains = [torch.zeros_like(residuals)]
    if len(columns):
        v = w[..., columns]
        for _ in range(_INVERSE_STEPS):
            v = ratio(v, norm(v))
            v = solved(v)
        gains.append(norm(v))
    growth = _growth(inner, w[..., columns]) if len(columns) else residuals.new_zeros(())
    residual, gain, largest = torch.stack(
        [residuals.amax(), torch.cat(gains).amax(), growth]
    ).tolist()
    # No number, or so large that rounding decides: the eigenvalue 1.
    if not residual <= 2 * tol or not gain * tol < 1:
        return None
    radius = max(0.0, 1 - 1 / gain) if gain > 0 else 0.0
    if largest > 1:  # a map that expands, or one that is far from normal: its eigenvalues tell
        radius = max(radius, float(torch.linalg.eigvals(inner.cpu()).abs().amax()))
    return LinearResult(w, residual, xi.shape[-1], residual <= 2 * tol, radius, tol)


def _growth(M: Tensor, v: Tensor) -> Tensor:
    """By how much a product with M makes a vector longer, after a few: about the radius of M."""
    v, grown = v + random_vector(v) * norm(v), torch.ones_like(norm(v))
    for turn in range(2 * _POWERS):
        v = ratio(v, norm(v))
        v = (M @ v.unsqueeze(-1)).squeeze(-1)
        if turn >= _POWERS:
            grown = grown * norm(v)
    return (grown ** (1 / _POWERS)).amax()
