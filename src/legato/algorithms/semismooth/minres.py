"""MINRES: symmetric systems, definite or not, singular or not, from products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Minres(NamedTuple):
    r"""Where the recurrences for Gw = b stand, row by row, in the inner product ⟨u, Cv⟩.

    .. math:: \min_{w ∈ \mathcal K_k(CG, Cb)} ‖b − Gw‖_C

    v and z = Cv are the last vector of Lanczos' process, ``after`` the length that it had; ``rest``
    is the norm of the residual, with a sign. C = I is the plain method; where C is singular, w
    solves the system up to what C does not see.
    Reference: Paige and Saunders (1975), *Solution of sparse indefinite systems of linear
    equations*; Elman, Silvester, Wathen (2014), Section 4.1, for C.
    """

    w: Tensor
    v_old: Tensor
    v: Tensor
    z: Tensor
    d_old: Tensor
    d: Tensor
    after: Tensor
    turns: Tensor
    """Cosines and sines of the last two rotations, (rows, 4)."""
    rest: Tensor
    running: Tensor
    steps: Tensor
    """How many were made, row by row."""

    @classmethod
    def begin(cls, right: Tensor, image: Tensor) -> Minres:
        """From w = 0, for b and Cb."""
        size = _length(right, image)
        zero, none = torch.zeros_like(right), torch.zeros_like(size)
        unit = torch.where(size > 0, size, 1.0)
        turns = torch.cat([none + 1, none, none + 1, none], -1)
        v, z = right / unit, image / unit
        return cls(
            zero, zero, v, z, zero, zero, none, turns, size, size > 0, torch.zeros_like(size)
        )

    def advanced(
        self, image: Tensor, prepared: Callable[[Tensor], tuple[Tensor, Tensor]], least: Tensor
    ) -> Minres:
        """One step on: ``image`` is Gz, ``prepared`` is p ↦ (p, Cp), up to what C does not see.

        A row ends once its residual is at most ``least``.
        """
        c_old, s_old, c, s = self.turns.unbind(-1)
        c_old, s_old, c, s = (t.unsqueeze(-1) for t in (c_old, s_old, c, s))
        p = image - self.after * self.v_old
        alpha = (self.z * p).sum(-1, keepdim=True)
        p, q = prepared(p - alpha * self.v)
        after = _length(p, q)
        # The QR factorisation of the tridiagonal matrix, by two rotations of old and a new one.
        first = c * alpha - c_old * s * self.after
        second = s * alpha + c_old * c * self.after
        third = s_old * self.after
        rho = torch.hypot(first, after)
        ended = rho <= torch.finfo(p.dtype).tiny
        rho = torch.where(ended, 1.0, rho)
        new_c, new_s = first / rho, after / rho
        direction = (self.z - third * self.d_old - second * self.d) / rho
        w = self.w + torch.where(self.running & ~ended, new_c * self.rest * direction, 0.0)
        rest = torch.where(self.running, -new_s * self.rest, self.rest)
        unit = torch.where(after > 0, after, 1.0)
        return Minres(
            w, self.v, p / unit, q / unit, self.d, direction, after,
            torch.cat([c, s, new_c, new_s], -1), rest,
            self.running & ~ended & (rest.abs() > least) & (after > 0),
            self.steps + self.running,
        )  # fmt: skip


@torch.no_grad()
def minres(
    product: Callable[[Tensor], Tensor], right: Tensor, tol: float, iterations: int
) -> Tensor:
    """Rows w with Gw = b, each for itself; where b leaves the range, of least residual."""
    now = Minres.begin(right, right)
    least = tol * now.rest
    for _ in range(iterations):
        if not bool(now.running.any()):
            break
        now = now.advanced(product(now.z), lambda p: (p, p), least)
    return now.w


def _length(p: Tensor, image: Tensor) -> Tensor:
    """√⟨p, Cp⟩, which rounding may take below 0."""
    return (p * image).sum(-1, keepdim=True).clamp(min=0).sqrt()
