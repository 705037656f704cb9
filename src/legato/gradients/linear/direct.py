"""A dense factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from legato.engine.at_once import at_once
from legato.errors import GradientError
from legato.gradients.linear.base import (
    Factored,
    LinearResult,
    LinearSolver,
    Product,
    engine_behind,
    norm,
    require_finite_products,
    residual_of,
)
from legato.gradients.linear.judging import judged
from legato.gradients.linear.spectrum import random_vector

_INVERSE_STEPS = 3
"""Solves with the factors from which the eigenvalue next to 1 is estimated."""
_POWERS = 8
"""Products that let the largest eigenvalues come out, and as many that measure them."""
_FEW = 64
"""Columns below which it does not pay to look which of them are in use."""


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
        tol = math.sqrt(torch.finfo(xi.dtype).eps)
        columns, used = _columns_in_use(product, xi)
        M = _written_out(product, xi, columns, used)
        found = _by_factors(product, xi, M, columns, used, tol)
        if found is not None:
            return found
        # Least squares of minimal norm: also defined, and certified by its residual, if singular.
        if columns.numel() < n:
            columns = torch.arange(n, device=xi.device)
            M = _written_out(product, xi, columns, torch.ones_like(columns, dtype=torch.bool))
        require_finite_products(M)
        identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
        B = (identity - M).cpu()

        def least_squares(rhs: Tensor) -> Tensor:
            found = torch.linalg.lstsq(B, rhs.cpu().unsqueeze(-1), driver="gelsd").solution
            return found.squeeze(-1).to(xi)

        w = least_squares(xi)
        w = w + least_squares(residual_of(product, w, xi)[0])  # entries far smaller than others
        return judged(product, w, xi, n, tol)


def _columns_in_use(product: Product, xi: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of M = BP that are not 0 in every system, and which of them count.

    P is symmetric where a step is known to be: rows that a random vector meets with 0 are columns
    of zeros, almost surely. Their number is rounded up by some that do not count: a number that
    changed from call to call would need another graph in each.
    """
    n = xi.shape[-1]
    everything = torch.arange(n, device=xi.device)
    if isinstance(product, Factored) and product.symmetric and n > _FEW:
        seen = product.P(random_vector(xi)) != 0
        columns = everything[seen.reshape(-1, n).any(0)]
        count = -(-len(columns) // _FEW) * _FEW
        if count < n:
            return pad(columns, (0, count - len(columns))), everything[:count] < len(columns)
    return everything, torch.ones_like(everything, dtype=torch.bool)


def _written_out(product: Product, xi: Tensor, columns: Tensor, used: Tensor) -> Tensor:
    """Columns of M, (…, n, k): by one product with all of them where that can be had."""
    if not columns.numel():
        return xi.new_zeros(*xi.shape, 0)
    units = torch.zeros(len(columns), xi.shape[-1], dtype=xi.dtype, device=xi.device)
    units.scatter_(1, columns[:, None], used.to(xi)[:, None])
    units = units.reshape(len(columns), *(1,) * (xi.ndim - 1), -1).expand(-1, *xi.shape)
    together = getattr(product, "together", None)
    if together is not None:
        try:
            return torch.movedim(together(units), 0, -1)
        except RuntimeError:  # the backward pass of somebody's function knows no further axis
            pass
    return torch.stack([product(e.contiguous()) for e in units], dim=-1)


def _by_factors(
    product: Product, xi: Tensor, M: Tensor, columns: Tensor, used: Tensor, tol: float
) -> LinearResult | None:
    """By an LU factorisation, refined once; None where I − M is next to singular."""
    w, numbers = xi, xi.new_zeros(2)
    if len(columns):
        probe = random_vector(columns.to(xi.dtype))
        factors = _factors(M, columns, used)
        tensors = M, xi, columns, used, probe, *factors
        w, numbers = at_once(engine_behind(product), _solved, *tensors)
    residuals = residual_of(product, w, xi)[1]
    residual, gain, growth = torch.cat([residuals.amax().reshape(1), numbers]).tolist()
    certain = _certainty(product, xi.dtype)
    # No number, or so large that rounding decides: the eigenvalue 1.
    if not residual <= 2 * tol or not gain * certain < 1:
        return None
    radius = max(0.0, 1 - 1 / gain) if gain > 0 else 0.0
    if not growth <= 1:  # a map that expands, or one that is far from normal: its eigenvalues tell
        inner = _inner(M, columns, used)
        radius = max(radius, float(torch.linalg.eigvals(inner.cpu()).abs().amax()))
    n = xi.shape[-1]
    return LinearResult(w, residual, n, residual <= 2 * tol, radius, tol, certain)


def _certainty(product: Product, dtype: torch.dtype) -> float:
    """How far from 1 an eigenvalue of M has to be to be told from it.

    √eps is what rounding makes of a double eigenvalue, where M is not normal; M = BP with two
    symmetric factors has the eigenvalues of a symmetric matrix, which rounding moves by itself.
    """
    symmetric = isinstance(product, Factored) and product.symmetric
    return float(torch.finfo(dtype).eps ** (0.75 if symmetric else 0.5))


def _factors(M: Tensor, columns: Tensor, used: Tensor) -> tuple[Tensor, ...]:
    """An LU factorisation of I − M on what is in use; on a GPU its inverse.

    There triangular systems take longer than products, and those of a batch cannot be captured.
    Either is refined.
    """
    inner = _inner(M, columns, used)
    system = torch.eye(len(columns), dtype=M.dtype, device=M.device) - inner
    if M.is_cuda:
        return (torch.linalg.inv_ex(system)[0],)
    return tuple(torch.linalg.lu_factor_ex(system)[:2])


def _solved(
    M: Tensor, xi: Tensor, columns: Tensor, used: Tensor, probe: Tensor, *factors: Tensor
) -> tuple[Tensor, Tensor]:
    """w = (I − M)⁻¹ξ from some columns of M, refined once; and two numbers, the largest of all.

    By how much (I − M)⁻¹ makes a vector longer, after some turns, and by how much M does: about
    1/(1 − λ) for the eigenvalue λ next to 1, and the radius.
    """
    inner = _inner(M, columns, used)

    def solved(rhs: Tensor) -> Tensor:
        if len(factors) == 1:
            return times(factors[0], rhs)
        return torch.linalg.lu_solve(*factors, rhs.unsqueeze(-1)).squeeze(-1)

    def times(matrix: Tensor, v: Tensor) -> Tensor:
        return (matrix @ v.unsqueeze(-1)).squeeze(-1)

    def chosen(v: Tensor) -> Tensor:
        return torch.where(used, v[..., columns], 0.0)

    w = xi + times(M, solved(chosen(xi)))
    left = xi - w + times(M, chosen(w))
    w = w + left + times(M, solved(chosen(left)))
    v = chosen(w)
    start = v + torch.where(used, probe, 0.0) * norm(v)
    v = torch.where(norm(v) > 0, start, probe * used)
    for _ in range(_INVERSE_STEPS):
        v = solved(v / norm(v))
    asked = norm(xi) > 0  # elements of a batch that the loss does not see are not judged
    gain = torch.where(asked, norm(v), 0.0).amax()
    v = v / norm(v)
    for turn in range(2 * _POWERS):
        v = times(inner, v)
        if turn == _POWERS - 1:
            v = v / norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    growth = torch.where(asked, norm(v), 0.0).amax() ** (1 / _POWERS)
    return w, torch.stack([gain, growth])


def _inner(M: Tensor, columns: Tensor, used: Tensor) -> Tensor:
    """The rows of columns in use, which make them a square matrix."""
    return torch.where(used[:, None], M[..., columns, :], 0.0)
