"""Generalised minimal residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    engine_behind,
    norm,
    require_finite_products,
    require_settings,
    residual_of,
)
from legato.gradients.linear.judging import judged
from legato.gradients.linear.krylov import Krylov


@dataclass(frozen=True)
class GMRES(LinearSolver):
    r"""Generalised minimal residuals with restarts, for any I − M.

    .. math:: w_k = \arg\min_{w ∈ 𝒦_k} ‖ξ − (I − M)w‖

    Defaults: ``tol=1e-6``, ``restart=50``, ``iterations=500``.
    Reference: Saad and Schultz (1986).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.GMRES()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3), solution.backward.iterations
    (tensor(-3.0410), 2)
    """

    takes_rows: ClassVar[bool] = True

    tol: float = 1e-6
    restart: int = 50
    iterations: int = 500

    def __post_init__(self) -> None:
        require_settings(self.tol, min(self.restart, self.iterations))

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        tol = attainable(self.tol, xi)
        rows = xi.reshape(-1, xi.shape[-1])

        def by_rows(v: Tensor) -> Tensor:
            return product(v.reshape(xi.shape)).reshape(rows.shape)

        w, r, used = torch.zeros_like(rows), rows, 0
        target = tol * norm(rows)
        previous = torch.ones_like(target)
        space: Krylov | None = None
        while used < self.iterations:
            cycle = min(self.restart, self.iterations - used, xi.shape[-1])
            if space is None or space.size != cycle:
                # An (almost) empty new direction: the space is invariant, nothing is left in it.
                engine = engine_behind(product)
                space = Krylov(lambda v: v - by_rows(v), rows, cycle, 1e-14, engine)
            update, count = _arnoldi_cycle(space, r, target)
            w, used = w + update, used + count
            r, residual = residual_of(by_rows, w, rows)
            # A whole cycle without progress, or nothing left: what rounding hides remains unknown.
            open_ = (residual > tol) & (residual < 0.999 * previous) & r.any(-1, keepdim=True)
            if not bool(open_.any()):
                break
            r, previous = torch.where(open_, r, 0.0), residual
        return judged(product, w.reshape(xi.shape), xi, used, tol)


def _arnoldi_cycle(space: Krylov, r: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """One GMRES cycle for each row of r: the updates, and the number of products.

    The Krylov bases live where r lives; the small Hessenberg systems (float64) on the host.
    """
    heads = torch.cat([norm(r), target], -1).double().cpu()
    H = torch.zeros(len(r), space.size + 1, space.size, dtype=torch.float64)
    fit = _HessenbergFit(heads[:, 0])
    going, count = heads[:, 0] > 0, 0
    for k, column in enumerate(space.columns(r)):
        require_finite_products(column)
        H[:, : k + 2, k] = column
        count = k + 1
        error = fit.add(column)
        # Half the target, for the true residual may be a little above the fit's.
        going = going & (error > 0.5 * heads[:, 1]) & (column[:, -1] > 0)
        if not bool(going.any()):
            break
    rhs = torch.zeros(len(r), count + 1, 1, dtype=torch.float64)
    rhs[:, 0, 0] = heads[:, 0]
    # By singular values, once: also defined where I − M is singular.
    y = torch.linalg.lstsq(H[:, : count + 1, :count], rhs, driver="gelsd").solution
    return torch.einsum("bk,kbn->bn", y[..., 0].to(r), space.basis[:count]), count


class _HessenbergFit:
    r"""The residuals of min_y ‖βe₁ − Hy‖ for Hessenberg matrices H that grow by columns.

    .. math:: \min_y ‖βe_1 − Hy‖ = \frac{β}{‖g‖}, \qquad H^⊤ g = 0,\; g_1 = 1

    since one direction alone is orthogonal to the k columns of length k + 1. Each column adds an
    entry to g. Reference: Ayachour (2003).
    """

    def __init__(self, beta: Tensor) -> None:
        self.beta = beta
        self.g = torch.ones(len(beta), 1, dtype=torch.float64)

    def add(self, column: Tensor) -> Tensor:
        """The norms of the residuals with one more column (h₁, …, h_{k+1}) of each matrix."""
        upper, last = (self.g * column[:, :-1]).sum(-1), column[:, -1]
        # Where both are zero the row has ended before: its residual stays.
        following = torch.where(upper == 0, 0.0, -upper / last)
        self.g = torch.cat([self.g, following[:, None]], -1)
        return self.beta / torch.linalg.vector_norm(self.g, dim=-1)
