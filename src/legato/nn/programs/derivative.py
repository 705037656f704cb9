"""The exact derivative of a solution: one transposed solve of the KKT system on its active set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from legato._support.telling import tell
from legato.errors import InexactGradientWarning
from legato.nn.programs.program import Program, is_finite, largest, terms, times
from legato.nn.programs.scaling import Scaling

_MISSED = 1e-8


class System(Protocol):
    """The linear system of a solution, factored."""

    def adjoint(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The solution (v_x, v_y, v_z) for (right, 0, 0), and the largest entry that it misses."""


@dataclass
class Parts:
    """Systems of some of the instances each, which together are the whole batch."""

    parts: list[tuple[Tensor, System]]

    def adjoint(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        whole: list[Tensor] = []
        for where, system in self.parts:
            found = system.adjoint(right[where])
            whole = whole or [f.new_zeros(len(right), *f.shape[1:]) for f in found]
            for out, part in zip(whole, found, strict=True):
                out[where] = part
        return whole[0], whole[1], whole[2], whole[3]


@dataclass
class Adjoint:
    """What the backward pass needs of a solve: the point, and the factored system.

    ``system`` belongs to the scaled program without pinned variables, ``program`` is the one that
    was given; both hold their own data.
    """

    program: Program
    scaling: Scaling
    pinned: Tensor | None
    system: System
    lower: Tensor
    upper: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    z_lo: Tensor
    z_hi: Tensor
    there: Tensor
    """Where there is a solution to differentiate."""
    even: float
    """A force at equal ends below this, relative to its parts, pulls at neither."""

    def cotangents(self, xi: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """v = (KKT)⁻¹ (ξ, 0): for x, y, z, the bounds, and how exactly it was found."""
        P, S = self.program, self.scaling
        known = self.there & is_finite(xi).all(-1)
        right = torch.where(known.unsqueeze(-1), xi, 0.0) * S.D
        if self.pinned is not None:
            right = torch.where(self.pinned, 0.0, right)
        v_x, v_y, v_z, missing = self.system.adjoint(right)
        error = missing / largest(right).clamp(min=torch.finfo(xi.dtype).tiny)
        error = torch.where(known, error, 0.0)
        v_x, v_y, v_z = v_x * S.D * S.sigma.unsqueeze(-1), v_y * S.E_A, v_z * S.E_G
        if not P.bounded:
            v_lo = v_hi = torch.zeros_like(v_x)
        else:
            v_b = xi - times(P.Q, v_x) - times(P.A.mT, v_y) - times(P.G.mT, v_z)
            lower, upper = self.lower, self.upper
            if self.pinned is not None:  # the end that holds it back is the one that moves it
                force = self.z_hi - self.z_lo
                pulls = terms(P.Q, self.x) + P.c.abs()
                pulls = pulls + terms(P.A.mT, self.y) + terms(P.G.mT, self.z)
                force = torch.where(force.abs() <= self.even * pulls, 0.0, force)
                half = 0.5 * (force == 0).to(xi)
                up = torch.where(self.pinned, (force > 0) + half, upper.to(xi))
                down = torch.where(self.pinned, (force < 0) + half, lower.to(xi))
            else:
                up, down = upper.to(xi), lower.to(xi)
            v_hi, v_lo = v_b * up, v_b * down
        # An instance without a solution has no derivative, unless nothing depends on it.
        lost = ~known & (xi != 0).any(-1)
        parts = [v_x, v_y, v_z, v_lo, v_hi]
        every = torch.where(known.unsqueeze(-1), torch.cat(parts, -1), 0.0)
        every = every.masked_fill(lost.unsqueeze(-1), torch.nan)
        v_x, v_y, v_z, v_lo, v_hi = every.split([v.shape[-1] for v in parts], -1)
        return v_x, v_y, v_z, v_lo, v_hi, error


class Differentiable(torch.autograd.Function):
    """x as a function of all its data; of a sparse matrix, that is the values it stores."""

    @staticmethod
    def forward(
        ctx: Any,
        adjoint: Adjoint,
        batch: tuple[int, ...],
        patterns: list[tuple[Tensor, Tensor] | None],
        x: Tensor,
        *given: Tensor | None,
    ) -> Tensor:
        ctx.adjoint, ctx.batch, ctx.patterns = adjoint, batch, patterns
        ctx.shapes = [None if t is None else t.shape for t in given]
        ctx.dtype = x.dtype
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, xi: Tensor) -> Any:
        a: Adjoint = ctx.adjoint
        xi = xi.reshape(a.x.shape).double()
        v_x, v_y, v_z, v_lo, v_hi, error = a.cotangents(xi)
        _tell_missed(error)
        x = torch.where(a.there.unsqueeze(-1), a.x, 0.0)
        y = torch.where(a.there.unsqueeze(-1), a.y, 0.0)
        z = torch.where(a.there.unsqueeze(-1), a.z, 0.0)
        wanted = ctx.needs_input_grad[4:]

        def outer(which: int, *pairs: tuple[Tensor, Tensor]) -> Callable[[torch.Size], Tensor]:
            def make(shape: torch.Size) -> Tensor:
                if ctx.patterns[which] is not None:
                    rows, columns = ctx.patterns[which]
                    return -sum((u[0, rows] * v[0, columns] for u, v in pairs), x.new_zeros(()))
                left = torch.stack([u for u, _ in pairs], -1)
                right = torch.stack([v for _, v in pairs], -1)
                if len(shape) == 2:  # shared: summed over the batch without holding its parts
                    return -torch.einsum("bik,bjk->ij", left, right)
                return _reduced(-(left @ right.mT), shape, ctx.batch)

            return make

        def plain(v: Tensor) -> Callable[[torch.Size], Tensor]:
            return lambda shape: _reduced(v, shape, ctx.batch)

        makers = [
            outer(0, (0.5 * v_x, x), (0.5 * x, v_x)),
            plain(-v_x),
            outer(2, (y, v_x), (v_y, x)),
            plain(v_y),
            outer(4, (z, v_x), (v_z, x)),
            plain(v_z),
            plain(v_lo),
            plain(v_hi),
        ]
        grads = [
            make(shape).to(ctx.dtype) if need and shape is not None else None
            for make, shape, need in zip(makers, ctx.shapes, wanted, strict=True)
        ]
        return None, None, None, None, *grads


def _reduced(value: Tensor, shape: torch.Size, batch: tuple[int, ...]) -> Tensor:
    """Summed over the axes along which the datum was shared."""
    return value.reshape((*batch, *value.shape[1:])).sum_to_size(shape)


def _tell_missed(error: Tensor) -> None:
    worst = float(error.amax())
    if not worst <= _MISSED:  # NaN is no small error
        count = int((~(error <= _MISSED)).sum())
        tell(
            f"The derivative of {count} of {error.shape[0]} programs was found up to a relative "
            f"residual of {worst:.1e} only: their KKT systems are singular, and what was asked is "
            "not determined. Look at record.loose and record.dependent of solve; a small multiple "
            "of the identity in Q makes x unique.",
            InexactGradientWarning,
        )
