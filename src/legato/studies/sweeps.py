"""The three reverse sweeps of the paper, written out to be read beside it.

They take the partial derivatives of every iteration as matrices. ``legato.Unroll`` computes the
same numbers without ever forming one; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "ForwardBackwardPartials",
    "PrimalDualPartials",
    "StepPartials",
    "geometric_series",
    "implicit",
    "reverse_abstract",
    "reverse_forward_backward",
    "reverse_primal_dual",
]


class StepPartials(NamedTuple):
    """∂𝒜/∂x and ∂𝒜/∂θ at (xⁿ, θ)."""

    x: Tensor
    theta: Tensor


def reverse_abstract(partials: Sequence[StepPartials], xi: Tensor) -> Tensor:
    """Algorithm 1: dL/dθ (its implicit part) of xᴺ, from the partials at x⁰, …, xᴺ⁻¹ and ξ = ∇L."""
    z, w = xi, xi.new_zeros(partials[0].theta.shape[1])
    for A in reversed(partials):
        w = w + A.theta.T @ z
        z = A.x.T @ z
    return w


class ForwardBackwardPartials(NamedTuple):
    """At xⁿ: derivatives of prox in y and θ, of ∇f in x and θ, and ∇²ψ(xⁿ)."""

    prox_y: Tensor
    prox_theta: Tensor
    grad_x: Tensor
    grad_theta: Tensor
    metric: Tensor


def reverse_forward_backward(
    partials: Sequence[ForwardBackwardPartials], alpha: float, xi: Tensor
) -> Tensor:
    """Algorithm 2 with errata 1: ∇²ψ(xⁿ) stands where the paper prints the identity."""
    z, w = xi, xi.new_zeros(partials[0].grad_theta.shape[1])
    for p in reversed(partials):
        pulled = p.prox_y.T @ z
        w = w + p.prox_theta.T @ z - alpha * p.grad_theta.T @ pulled
        z = (p.metric - alpha * p.grad_x).T @ pulled
    return w


class PrimalDualPartials(NamedTuple):
    """Derivatives of PD_u(u, p, θ) and of PD_p(ū, p, θ), the latter at ū = 2uⁿ⁺¹ − uⁿ."""

    u_u: Tensor
    u_p: Tensor
    u_theta: Tensor
    p_u: Tensor
    p_p: Tensor
    p_theta: Tensor


def reverse_primal_dual(
    partials: Sequence[PrimalDualPartials],
    xi: Tensor,
    xi_dual: Tensor | None = None,
    *,
    averaged: bool = False,
) -> Tensor:
    """Algorithm 3 in the index-safe form of errata 3 and 4.

    With ``averaged`` the output is the mean of u¹, …, uᴺ (and of p¹, …, pᴺ): by errata 2 its
    gradient is injected, divided by N, at every back-step, not averaged afterwards.
    """
    xi_dual = xi.new_zeros(partials[0].p_p.shape[0]) if xi_dual is None else xi_dual
    share = 1 / len(partials) if averaged else 1.0
    z, q = share * xi, share * xi_dual
    w = xi.new_zeros(partials[0].u_theta.shape[1])
    for n, P in reversed(list(enumerate(partials))):
        through = z + 2 * P.p_u.T @ q
        w = w + P.u_theta.T @ through + P.p_theta.T @ q
        z, q = (
            P.u_u.T @ through - P.p_u.T @ q,
            P.u_p.T @ through + P.p_p.T @ q,
        )
        if averaged and n > 0:
            z, q = z + share * xi, q + share * xi_dual
    return w


def geometric_series(at_solution: StepPartials, xi: Tensor, terms: int) -> Tensor:
    """The paper's "2" methods: all partials taken at the solution (errata 8)."""
    return reverse_abstract([at_solution] * terms, xi)


def implicit(at_solution: StepPartials, xi: Tensor) -> Tensor:
    """The paper's "-impl" methods: A_θᵀ (I − A_x)⁻ᵀ ξ."""
    identity = torch.eye(len(xi), dtype=xi.dtype, device=xi.device)
    return at_solution.theta.T @ torch.linalg.solve((identity - at_solution.x).T, xi)
