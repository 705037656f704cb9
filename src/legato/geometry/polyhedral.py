"""The entropy of the slacks of a polyhedron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.errors import InputError
from legato.geometry.base import Geometry


@dataclass(frozen=True, repr=False, eq=False)
class Polyhedral(Geometry):
    r"""Entropy of the slacks of {x : Ax ≤ b}, a set with interior whose A has full column rank.

    .. math:: ψ(x) = \sum_i s_i \log s_i, \quad s = b − Ax, \quad ∇ψ(x) = −A^⊤(1 + \log s)

    ∇ψ* has no closed form: a damped Newton method computes it and the implicit function theorem
    differentiates it, in y, A and b. ``start`` is any interior point (found for you if the origin
    is one). Reference: Example 4 of Ochs et al. (2016).

    >>> A = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]).double()
    >>> psi = lg.Polyhedral(A, torch.ones(3).double())  # x₁ + x₂ ≤ 1, x ≥ −1
    >>> x = torch.tensor([0.2, -0.3]).double()
    >>> torch.allclose(psi.unmirror(psi.mirror(x)), x)
    True
    """

    A: Tensor
    b: Tensor
    start: Tensor | None = None

    def __post_init__(self) -> None:
        if self.A.ndim != 2 or self.b.shape != self.A.shape[:1]:
            raise InputError(
                f"Polyhedral needs A of shape (m, n) and b of shape (m,), "
                f"not {tuple(self.A.shape)} and {tuple(self.b.shape)}."
            )
        inside = self._start()
        if not bool((self.slack(inside.detach()) > 0).all()):
            raise InputError(
                "Polyhedral needs a point strictly inside {Ax ≤ b} to start Newton's method from: "
                f"{'the origin' if self.start is None else 'the given start'} is not. "
                "Pass start=…, e.g. the Chebyshev centre."
            )

    def _start(self) -> Tensor:
        return self.A.new_zeros(self.A.shape[1]) if self.start is None else self.start

    def slack(self, x: Tensor) -> Tensor:
        return self.b - x @ self.A.mT

    def summands(self, x: Var) -> Tensor:
        s = self.slack(x)
        return torch.xlogy(s, s)

    @property
    def coupled(self) -> int:
        return 1

    def mirror(self, x: Var) -> Var:
        return -(1 + torch.log(self.slack(x))) @ self.A

    def unmirror(self, y: Var) -> Var:
        start = self._start().detach()
        return _InverseMirror.apply(y, self.A, self.b, start)  # type: ignore[no-untyped-call]

    def interior(self, x: Var) -> Tensor:
        return (self.slack(x) > 0).all(-1)

    def _advice(self) -> str:
        return "Polyhedral needs Ax < b."


class _InverseMirror(torch.autograd.Function):
    """x = ∇ψ*(y) by Newton; dx = H⁻¹(dy − ∂∇ψ·d(A, b)) with H = Aᵀ diag(1/s) A."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, A: Tensor, b: Tensor, start: Tensor) -> Tensor:
        x, s = _newton(y.double(), A.double(), b.double(), start.double())
        x, s = x.to(y.dtype), s.to(y.dtype)
        ctx.save_for_backward(x, A, b)
        ctx.slack = s
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, A, b = ctx.saved_tensors
        recomputed = b - x @ A.mT
        s = ctx.slack + (recomputed - recomputed.detach())  # exact value, right derivative
        w = _solve_hessian(A, s, grad)
        pull = (w @ A.mT) / s
        outer = (1 + torch.log(s)).unsqueeze(-1) * w.unsqueeze(-2)
        grad_A = outer - pull.unsqueeze(-1) * x.unsqueeze(-2)
        return w, grad_A.reshape(-1, *A.shape).sum(0), pull.reshape(-1, *b.shape).sum(0), None


def _solve_hessian(A: Tensor, s: Tensor, rhs: Tensor) -> Tensor:
    """H⁻¹rhs by a QR decomposition of the scaled rows.

    Near the boundary the rows' scales differ by many orders of magnitude. Forming H would drown the
    small ones; QR with the large rows first does not.
    """
    order = s.detach().argsort(dim=-1)
    rows = A / s.sqrt().unsqueeze(-1)
    rows = rows.gather(-2, order.unsqueeze(-1).expand_as(rows))
    R = torch.linalg.qr(rows).R
    z = torch.linalg.solve_triangular(R.mT, rhs.unsqueeze(-1), upper=False)
    return torch.linalg.solve_triangular(R, z, upper=True).squeeze(-1)


def _newton(
    y: Tensor, A: Tensor, b: Tensor, start: Tensor, iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """Minimise ψ(x) − ⟨y, x⟩ without leaving the interior; the minimiser and its slacks.

    A step goes at most 99 % of the way to the boundary and is halved until the slope along it is
    no longer steeply positive: a search on the slope needs no function values and so works to full
    precision. Slacks are carried along with x, because near the boundary b − Ax is all rounding;
    what is below the precision of b stops there, for x could not express it anyway.
    """
    floor = 64 * torch.finfo(y.dtype).eps * (1 + b.abs())
    y = torch.clamp(y, -1e10, 1e10)  # beyond, every minimiser is at the floor anyway
    x = start.expand_as(y).clone()
    s = b - x @ A.mT
    for _ in range(iterations):
        residual = y + (1 + torch.log(s)) @ A
        resting = s <= floor
        for _ in range(2):  # slacks at the floor are held there, unless the direction enlarges them
            direction = _solve_hessian(A, torch.where(resting, 1e-16 * floor, s), residual)
            approach = direction @ A.mT  # how fast each slack shrinks
            leaving = resting & (approach < 0)
            if not bool(leaving.any()):
                break
            resting = resting & ~leaving
        relative = torch.where(resting, torch.zeros_like(s), approach / s)
        length = torch.clamp(0.99 / relative.amax(-1).clamp(min=1e-300), max=1.0)
        slope = (residual * direction).sum(-1)
        for _ in range(40):
            trial = torch.maximum(s - length.unsqueeze(-1) * approach, floor)
            remaining = ((y + (1 + torch.log(trial)) @ A) * direction).sum(-1)
            steep = remaining < -0.5 * slope.abs()
            if not bool(steep.any()):
                break
            length = torch.where(steep, 0.5 * length, length)
        x = x + length.unsqueeze(-1) * direction
        carried = torch.maximum(s - length.unsqueeze(-1) * approach, floor)
        fresh = b - x @ A.mT
        s = torch.where(fresh > 1e6 * floor, fresh, carried)
        if bool((relative.abs().amax(-1) <= 1e-7).all()):  # quadratic: the next error is 1e-14
            break
    return x, s
