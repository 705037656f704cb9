"""The derivative at a solution with its matrices written out: what every strategy is held against.

A strategy that solves (I − M)w = ξ up to a residual r returns Gᵀw, so that its error is at most
‖Gᵀ(I − M)⁻¹‖·‖r‖: the tolerance of a comparison follows from what the strategy itself reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato.gradients import Linearisation

ROUNDINGS = 2000.0
"""Rounding errors that a product or a solve may add up, in units of eps.

So many where I − M is singular, and two solvers draw the line around its null space differently.
"""


@dataclass
class Truth:
    """M, G and ξ in double precision, and what follows from them.

    ``direct`` is what θ does to the point that a state stands for, as the bounds of an Interval do.
    """

    M: Tensor
    G: Tensor
    xi: Tensor
    direct: Tensor
    eps: float

    def __post_init__(self) -> None:
        n = len(self.xi)
        system = torch.eye(n, dtype=torch.float64) - self.M
        floor = 100 * self.eps * n
        left, values, right = torch.linalg.svd(system)
        kept = values > floor
        inverse = right[kept].T / values[kept] @ left[:, kept].T
        self.w = inverse @ self.xi
        self.gradient = self.G.T @ self.w + self.direct
        self.singular = not bool(kept.all())
        # Variables that touch nothing, as duals beyond the border do, make I − M singular and do
        # no harm: the gradient is determined as long as θ does not see the null space.
        seen = float((right[~kept] @ self.G).norm())
        self.determined = seen <= 1e-6 * float(self.G.norm())
        moving = torch.linalg.eigvals(self.M)
        moving = moving[(moving - 1).abs() > floor]
        self.radius = float(moving.abs().max()) if len(moving) else 0.0
        # How much a residual of size 1 can change the gradient.
        self.gain = float(torch.linalg.matrix_norm(self.G.T @ inverse, 2))
        self.size = float(self.xi.norm())
        self.length = float(self.w.norm())
        self.terms = float(torch.linalg.matrix_norm(self.G, 2)) * self.length

    @property
    def rounding(self) -> float:
        """What rounding in the working precision can do to the gradient."""
        noise = self.size + self.length
        through = (self.gain + float(self.G.norm())) * noise
        return ROUNDINGS * self.eps * (through + float(self.direct.norm()))

    def tolerance(self, residual: float) -> float:
        """How far a gradient with this certificate may be off."""
        return 1.01 * self.gain * residual * self.size + self.rounding

    def series(self, terms: int) -> Tensor:
        """Gᵀ Σ_{k<terms} M^k ξ: what truncation after so many iterations gives at a solution."""
        total, term = torch.zeros_like(self.xi), self.xi
        for _ in range(terms):
            total = total + term
            term = self.M @ term
        return self.G.T @ total + self.direct


def truth_at(problem: Any, algorithm: Any, state: Any, theta: Any, loss: Any) -> Truth:
    """M, G and ξ at ``state``, column by column through the public linearisation."""
    stationary, before = algorithm.fixed_point_map(tree.detach(state))
    linear = Linearisation(problem, stationary, before)
    flat = tree.flatten(linear.state)
    basis = torch.eye(flat.numel(), dtype=flat.dtype)
    M = torch.stack([linear.transposed(e) for e in basis], dim=1)
    after = tree.leaves(linear.after)
    rows = []
    for e in basis:
        moved = tree.leaves(linear.transport(tree.unflatten(linear.state, e)))
        pairs = [(a, m) for a, m in zip(after, moved, strict=True) if a.requires_grad]
        grads = torch.autograd.grad(
            [a for a, _ in pairs], theta, [m for _, m in pairs],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
        rows.append(flat_gradient(grads, theta))
    inputs = [t.detach().requires_grad_() for t in tree.leaves(linear.state)]
    x = stationary.solution(tree.rebuild(linear.state, inputs))
    grads = torch.autograd.grad(loss(x), [*inputs, *theta], allow_unused=True)
    xi = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, inputs, strict=False)]
    direct = flat_gradient(grads[len(inputs) :], theta)
    eps = torch.finfo(flat.dtype).eps
    flat_xi = tree.flatten(tuple(xi)).double()
    return Truth(M.detach().double(), torch.stack(rows), flat_xi, direct, eps)


def flat_gradient(grads: Any, theta: Any) -> Tensor:
    """All gradients as one vector in double precision, zero for those that are None."""
    parts = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, theta, strict=True)]
    return torch.cat([p.detach().double().reshape(-1) for p in parts])
