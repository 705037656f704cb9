"""MINRES: symmetric systems, definite or not, singular or not, from products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def minres(
    product: Callable[[Tensor], Tensor], right: Tensor, tol: float, iterations: int
) -> Tensor:
    r"""Rows w with Gw = b, each for itself; where b leaves the range, of least residual.

    .. math:: \min_{w ∈ \mathcal K_k(G, b)} ‖b − Gw‖

    Reference: Paige and Saunders (1975), *Solution of sparse indefinite systems of linear
    equations*.
    """
    w, size = torch.zeros_like(right), torch.linalg.vector_norm(right, dim=-1, keepdim=True)
    v_old, v = torch.zeros_like(right), right / torch.where(size > 0, size, 1.0)
    d_old, d = torch.zeros_like(right), torch.zeros_like(right)
    beta = torch.zeros_like(size)
    c_old, s_old, c, s = (torch.full_like(size, value) for value in (1.0, 0.0, 1.0, 0.0))
    eta = size.clone()
    running = size > 0
    for _ in range(iterations):
        if not bool(running.any()):
            break
        p = product(v) - beta * v_old
        alpha = (v * p).sum(-1, keepdim=True)
        p = p - alpha * v
        after = torch.linalg.vector_norm(p, dim=-1, keepdim=True)
        # The QR factorisation of the tridiagonal matrix, by two rotations of old and a new one.
        first = c * alpha - c_old * s * beta
        second = s * alpha + c_old * c * beta
        third = s_old * beta
        rho = torch.hypot(first, after)
        ended = rho <= torch.finfo(right.dtype).tiny
        rho = torch.where(ended, 1.0, rho)
        new_c, new_s = first / rho, after / rho
        direction = (v - third * d_old - second * d) / rho
        w = w + torch.where(running & ~ended, new_c * eta * direction, 0.0)
        eta = -new_s * eta
        d_old, d = d, direction
        c_old, s_old, c, s = c, s, new_c, new_s
        v_old, v = v, p / torch.where(after > 0, after, 1.0)
        beta = after
        running = running & ~ended & (eta.abs() > tol * size) & (after > 0)
    return w
