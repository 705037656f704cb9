"""Generalised minimal residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.gradients.linear.base import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    require_finite_products,
    require_settings,
    residual_of,
)


@dataclass(frozen=True)
class GMRES(LinearSolver):
    r"""Generalised minimal residuals with restarts, for any I − M.

    .. math:: w_k = \arg\min_{w ∈ 𝒦_k} ‖ξ − (I − M)w‖

    Reference: Saad and Schultz (1986).

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.GMRES()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3), solution.backward.iterations
    (tensor(-3.0410), 2)
    """

    tol: float = 1e-6
    restart: int = 50
    iterations: int = 500

    def __post_init__(self) -> None:
        require_settings(self.tol, min(self.restart, self.iterations))

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return LinearResult.zero(xi)
        tol = attainable(self.tol, xi)
        w, r = torch.zeros_like(xi), xi
        used, radius, residual = 0, 0.0, 1.0
        while used < self.iterations and residual > tol:
            cycle = min(self.restart, self.iterations - used, xi.numel())
            update, count, ritz = _arnoldi_cycle(product, r, cycle, tol * size)
            w, used, radius = w + update, used + count, max(radius, ritz)
            previous = residual
            r, residual = residual_of(product, w, xi)
            # A whole cycle without progress, or nothing left: what rounding hides remains unknown.
            if not residual < 0.999 * previous or not bool(r.any()):
                break
        return LinearResult.judged(w, residual, used, tol, radius)


def _arnoldi_cycle(
    product: Product, r: Tensor, size: int, target: float
) -> tuple[Tensor, int, float]:
    """One GMRES cycle: the update, the number of products, and max|1 − Ritz value|.

    The Krylov basis lives where r lives; the small Hessenberg system (float64) on the host.
    """
    beta = torch.linalg.vector_norm(r)
    basis = r.new_empty(size + 1, r.numel())
    basis[0] = r / beta
    H = torch.zeros(size + 1, size, dtype=torch.float64)
    fit = _HessenbergFit(float(beta))
    count = 0
    for k in range(size):
        v = basis[k] - product(basis[k])
        known = basis[: k + 1]
        # Gram–Schmidt loses orthogonality to cancellation; a second pass restores it to working
        # precision ("twice is enough", Kahan).
        first = known @ v
        v = v - first @ known
        second = known @ v
        v = v - second @ known
        length = torch.linalg.vector_norm(v)
        column = torch.cat([first + second, length[None]]).double().cpu()  # waits for a GPU
        require_finite_products(column)
        H[: k + 2, k] = column
        count = k + 1
        error = fit.add(column.tolist())
        # Half the target, for the true residual may be a little above the fit's. An (almost) empty
        # new direction means that the Krylov space is invariant: nothing is left to find in it.
        if error <= 0.5 * target or float(column[-1]) <= 1e-14 * float(column.norm()):
            break
        basis[k + 1] = v / length
    rhs = torch.zeros(count + 1, 1, dtype=torch.float64)
    rhs[0] = beta.double().cpu()
    # By singular values, once: also defined where I − M is singular.
    y = torch.linalg.lstsq(H[: count + 1, :count], rhs, driver="gelsd").solution
    update = y[:, 0].to(r) @ basis[:count]
    ritz = torch.linalg.eigvals(H[:count, :count])
    return update, count, float((1 - ritz).abs().max())


class _HessenbergFit:
    r"""The residual of min_y ‖βe₁ − Hy‖ for a Hessenberg H that grows by columns.

    Each column meets the rotations of its predecessors and adds one that removes its last entry;
    what they make of βe₁ ends in the residual. Reference: Saad and Schultz (1986), Section 3.2.
    """

    def __init__(self, beta: float) -> None:
        self.rotations: list[tuple[float, float]] = []
        self.last = beta

    def add(self, column: list[float]) -> float:
        """The norm of the residual with one more column (h₁, …, h_{k+1})."""
        upper = column[0]
        for (c, s), lower in zip(self.rotations, column[1:-1], strict=True):
            upper = c * lower - s * upper
        length = math.hypot(upper, column[-1])
        c, s = (upper / length, column[-1] / length) if length > 0 else (1.0, 0.0)
        self.rotations.append((c, s))
        self.last *= -s
        return abs(self.last)
