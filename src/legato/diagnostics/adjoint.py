"""The adjoint system at one state: its spectrum, its condition, its exact solution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato.diagnostics.replica import Replica
from legato.gradients import GMRES, Linearisation, spectral_radius

LARGEST_DENSE = 256
"""State entries up to which matrices are written out, and bounds certified."""
LARGEST_TABLE = 10_000_000
"""Entries of the matrix from cotangents of the state to gradients that may be written out."""
PROBES, LUCK = 3, 0.1
"""Random solves, and the share of a typical component that they may miss: Dixon (1983)."""


@dataclass(frozen=True, eq=False)
class Adjoint:
    r"""What (I − A_x)ᵀw = ξ and ∇L = A_θᵀw look like at one state.

    .. math:: ‖∇L(w) − ∇L(w^*)‖ ≤ ‖A_θ^⊤(I − A_x^⊤)^{-1}‖\,‖r‖

    for every w with residual r, A_x being normal or not. ``influence`` is that norm, and
    ``amplification`` is ‖(I − A_x)⁻¹‖, in the mirror coordinates in which residuals are measured.
    They are exact (``certified``) where the matrices are small, else upper bounds that hold except
    with probability (0.8·LUCK)^PROBES ≈ 5e-4. ``gradient`` is ∇L(w*). ``idle`` marks entries that
    no step moves and the loss does not see, such as the last differences of
    :class:`~legato.Differences`: A_x is the identity there, and they are left out of everything.
    Reference: Dixon (1983).

    >>> diagnosis.facts.amplification  # 1/(1 − ρ) for ρ = ½
    2.0
    """

    radius: float
    amplification: float
    influence: float
    certified: bool
    size: int
    xi: float
    gradient: Tensor | None
    idle: Tensor

    def bound(self, residual: float, eps: float) -> float:
        """A bound on ‖∇L(w) − ∇L(w*)‖, for ‖r‖ = ``residual``·‖ξ‖ computed with precision eps."""
        if self.xi == 0:
            return 0.0
        rounding = 20 * eps * math.sqrt(self.size) * (1 + self.amplification * (1 + residual))
        return self.influence * (residual + rounding) * self.xi


class _System:
    """Products with A_xᵀ, and from cotangents of the state to gradients in θ."""

    def __init__(self, replica: Replica, state: Any) -> None:
        self.replica = replica
        s = replica.setting
        state = tree.detach(state)
        stationary, lean = s.algorithm.fixed_point_map(state)
        lean = tree.detach(lean)
        self.linearisation = Linearisation(s.problem, stationary, lean)
        self.outputs = tree.leaves(self.linearisation.after)
        with torch.enable_grad():
            points = [t.detach().requires_grad_() for t in tree.leaves(lean)]
            merged = s.algorithm.with_variables(state, tree.rebuild(lean, points))
            value = s.loss(s.algorithm.solution(merged))
            grads = torch.autograd.grad(value, [*points, *replica.copies], allow_unused=True)
        xi = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(points, grads[: len(points)], strict=True)
        ]
        self.xi = tree.flatten(tuple(xi))
        self.direct = replica.pull(grads[len(points) :])
        self.idle = self._find_idle()

    def _find_idle(self) -> Tensor:
        """Entries where A_xᵀw = w for random w and ξ = 0: then w = 0 there solves the system."""
        generator = torch.Generator().manual_seed(3)
        idle = self.xi == 0
        for _ in range(2):
            w = torch.randn(idle.shape, generator=generator, dtype=torch.float64).to(self.xi)
            idle &= self.linearisation.transposed(w) == w
        return idle

    def product(self, w: Tensor) -> Tensor:
        return torch.where(
            self.idle, 0, self.linearisation.transposed(torch.where(self.idle, 0, w))
        )

    def pull(self, w: Tensor) -> Tensor:
        cotangent = self.linearisation.transport(tree.unflatten(self.linearisation.state, w))
        pairs = [
            (out, c)
            for out, c in zip(self.outputs, tree.leaves(cotangent), strict=True)
            if out.requires_grad
        ]
        grads = torch.autograd.grad(
            [out for out, _ in pairs],
            self.replica.copies,
            [c for _, c in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        return self.replica.pull(grads)


def adjoint(replica: Replica, state: Any) -> Adjoint:
    """Study the adjoint system at ``state``; raises GradientError where there is no fixed point."""
    system = _System(replica, state)
    n = system.xi.numel()
    p = system.direct.numel()
    if n <= LARGEST_DENSE and n * p <= LARGEST_TABLE:
        return _dense(system)
    return _probed(system)


def _dense(system: _System) -> Adjoint:
    xi = system.xi
    n = xi.numel()
    identity = torch.eye(n, dtype=xi.dtype, device=xi.device)
    M = torch.stack([system.product(e) for e in identity], dim=1)
    P = torch.stack([system.pull(e) for e in identity])  # rows: the gradient of each cotangent
    B, P = (identity - M).double().cpu(), P.double().cpu()
    radius = float(torch.linalg.eigvals(M.double().cpu()).abs().max())
    smallest = float(torch.linalg.svdvals(B)[-1])
    size = float(torch.linalg.vector_norm(xi))
    eps = torch.finfo(xi.dtype).eps
    if not smallest > 10 * n * eps * float(torch.linalg.matrix_norm(B, 2)):
        return Adjoint(radius, math.inf, math.inf, True, n, size, None, system.idle)
    influence = float(torch.linalg.matrix_norm(torch.linalg.solve(B.T, P), 2))
    w = torch.linalg.solve(B, xi.double().cpu())
    gradient = system.direct.double().cpu() + P.T @ w
    return Adjoint(radius, 1 / smallest, influence, True, n, size, gradient, system.idle)


def _probed(system: _System) -> Adjoint:
    xi = system.xi
    n = xi.numel()
    eps = torch.finfo(xi.dtype).eps
    solver = GMRES(tol=max(1e-10, 100 * eps), iterations=1000)
    radius = spectral_radius(system.product, xi, 200)
    if radius > 1:  # a non-normal map may grow for a while
        radius = spectral_radius(system.product, xi, 2000)
    size = float(torch.linalg.vector_norm(xi))
    generator = torch.Generator().manual_seed(2)
    amplification = influence = 0.0
    for _ in range(PROBES):
        u = torch.randn(n, generator=generator, dtype=torch.float64).to(xi)
        u = u / torch.linalg.vector_norm(u)
        found = solver.solve(system.product, u)
        if not found.converged:
            return Adjoint(radius, math.inf, math.inf, False, n, size, None, system.idle)
        amplification = max(amplification, float(torch.linalg.vector_norm(found.solution)))
        influence = max(influence, float(torch.linalg.vector_norm(system.pull(found.solution))))
    missed = math.sqrt(n) / LUCK
    exact = solver.solve(system.product, xi)
    gradient = (system.direct + system.pull(exact.solution)).double().cpu()
    return Adjoint(
        radius,
        amplification * missed,
        influence * missed,
        False,
        n,
        size,
        gradient if exact.converged else None,
        system.idle,
    )
