"""The point of a polyhedron whose slacks have a given entropic mirror coordinate."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.errors import DomainError
from legato.geometry.base import exp_limit
from legato.geometry.slack_basis import SlackBasis, solve_vector, times_vector

LARGEST = 1e10
"""Larger mirror coordinates have no digits left for the position on a face."""

FAR = 1e100
"""Slacks of an unbounded set beyond which squares overflow."""


def invert_mirror(y: Tensor, A: Tensor, b: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    r"""x and log s with s = b − Ax > 0 and y + Aᵀ(1 + log s) = 0.

    Newton's method on x finds the face; one on log s then finds the slacks, which may be smaller
    than anything that x can express. A y above LARGEST is shortened to it. Where y holds NaN or
    infinity, the result is NaN.
    """
    finite = torch.isfinite(y).all(-1, keepdim=True)
    safe = torch.where(finite, y, torch.zeros_like(y))
    safe = safe * (LARGEST / safe.abs().amax(-1, keepdim=True).clamp(min=LARGEST))
    log_slack, x = _log_newton(safe, A, b, torch.log(_near_slacks(safe, A, b, start)))
    nan = torch.full_like(y, torch.nan)
    return torch.where(finite, x, nan), torch.where(finite, log_slack, nan[..., :1])


def _near_slacks(y: Tensor, A: Tensor, b: Tensor, start: Tensor, iterations: int = 100) -> Tensor:
    """Slacks near those of the minimiser of ψ(x) − ⟨y, x⟩, as far as x can express them.

    A step goes at most 99.99 % of the way to the boundary and is halved until the slope along it is
    no longer steeply positive: a search on the slope needs no function values. Slacks at the level
    of rounding are held there, unless the direction enlarges them.
    """
    floor = rounding(b)
    x = start.expand_as(y).clone()
    s = inside = b - x @ A.mT
    for _ in range(iterations):
        residual = y + (1 + torch.log(s)) @ A
        resting = s <= floor
        for _ in range(2):
            direction = _solve_hessian(A, torch.where(resting, 1e-16 * floor, s), residual)
            approach = direction @ A.mT  # how fast each slack shrinks
            leaving = resting & (approach < 0)
            if not bool(leaving.any()):
                break
            resting = resting & ~leaving
        relative = torch.where(resting, torch.zeros_like(s), approach / s)
        length = torch.clamp(0.9999 / relative.amax(-1).clamp(min=1e-300), max=1.0)
        slope = (residual * direction).sum(-1)
        for _ in range(40):
            trial = torch.maximum(s - length.unsqueeze(-1) * approach, floor)
            remaining = ((y + (1 + torch.log(trial)) @ A) * direction).sum(-1)
            steep = remaining < -0.5 * slope.abs()
            if not bool(steep.any()):
                break
            length = torch.where(steep, 0.5 * length, length)
        moved = x + length.unsqueeze(-1) * direction
        carried = torch.maximum(s - length.unsqueeze(-1) * approach, floor)
        fresh = b - moved @ A.mT
        far = ~(fresh.abs().amax(-1, keepdim=True) < FAR)  # left to the method on log s
        x = torch.where(far, x, moved)
        s = torch.where(far, s, torch.where(fresh > 1e6 * floor, fresh, carried))
        if bool((relative.abs().amax(-1) <= 1e-3).all()):
            break
    # Slacks at the floor belong to no point; where more constraints meet than there are dimensions
    # they would contradict each other. A little of those inside makes them agree.
    share = (1e4 * floor / inside).amax(-1, keepdim=True).clamp(max=0.5)
    near = (s <= 1e4 * floor).any(-1, keepdim=True)
    return torch.where(near, s + share * (inside - s), s)


def _solve_hessian(A: Tensor, s: Tensor, rhs: Tensor) -> Tensor:
    """(Aᵀ diag(1/s) A)⁻¹rhs by a QR decomposition of the scaled rows, the largest first."""
    rows = A / s.sqrt().unsqueeze(-1)
    rows = rows.gather(-2, s.argsort(dim=-1).unsqueeze(-1).expand_as(rows))
    R = torch.linalg.qr(rows, mode="r").R
    z = torch.linalg.solve_triangular(R.mT, rhs.unsqueeze(-1), upper=False)
    return torch.linalg.solve_triangular(R, z, upper=True).squeeze(-1)


def rounding(b: Tensor) -> Tensor:
    """The size below which slacks b − Ax are rounding errors."""
    return 64 * torch.finfo(b.dtype).eps * (1 + b.abs())


def _log_newton(
    y: Tensor, A: Tensor, b: Tensor, log_slack: Tensor, iterations: int = 60
) -> tuple[Tensor, Tensor]:
    r"""Newton's method on F(log s_B) = Cᵀ(1 + log s) + A_B⁻ᵀy, where s = d + C s_B.

    d are the slacks at the vertex where the basis' own are 0. F′ = CᵀJ is well conditioned, and F
    is affine in the limit of small slacks. Steps are halved until ‖F‖ falls.
    """
    for _ in range(iterations):
        basis = SlackBasis.of(A, log_slack)
        C, t, offset = basis.coordinates, basis.log_basis_slack, _vertex_slacks(basis, b)
        target = solve_vector(basis.rows.mT, y)
        log_slack, _ = _all_log_slacks(offset, C, t)
        residual = times_vector(C.mT, 1 + log_slack) + target
        size = residual.norm(dim=-1)
        scale = 1 + target.norm(dim=-1) + times_vector(C.abs().mT, log_slack.abs()).norm(dim=-1)
        done = size <= 1e-15 * scale
        if bool(done.all()):
            break
        step, length = -solve_vector(basis.core, residual), torch.ones_like(size)
        for _ in range(40):
            trial = t + length.unsqueeze(-1) * step
            moved, sound = _all_log_slacks(offset, C, trial)
            left = (times_vector(C.mT, 1 + moved) + target).norm(dim=-1)
            better = sound & (left <= (1 - 0.25 * length) * size)
            if bool((better | done).all()):
                break
            length = torch.where(better, length, 0.5 * length)
        log_slack = torch.where(better.unsqueeze(-1), moved, log_slack)
        if not bool((better & (size > 1e-13 * scale)).any()):
            break
    if not bool((size <= 1e-7 * scale).all()):  # or: the step before the last left more than that
        raise DomainError(
            "Newton's method did not find the point of a Polyhedral that belongs to a mirror "
            f"coordinate (residual {float((size / scale).max()):.1e}). Scale the rows of A to "
            "similar lengths, drop constraints that nearly repeat others, or use a smaller step."
        )
    corner = torch.exp(log_slack.gather(-1, basis.index).clamp(max=exp_limit(y.dtype)))
    return log_slack, solve_vector(basis.rows, b[basis.index] - corner)


def _vertex_slacks(basis: SlackBasis, b: Tensor) -> Tensor:
    """d = b − C b_B, with exact zeros for constraints that meet in the vertex up to rounding."""
    corner = b[basis.index].unsqueeze(-1)
    offset = b - (basis.coordinates @ corner).squeeze(-1)
    size = b.abs() + (basis.coordinates.abs() @ corner.abs()).squeeze(-1)
    rounding = 64 * torch.finfo(b.dtype).eps * size
    return torch.where(offset.abs() <= rounding, torch.zeros_like(offset), offset)


def _all_log_slacks(offset: Tensor, coordinates: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """log(d + C exp(t)) without over- or underflow, and whether all are logarithms of slacks."""
    unseen = torch.full_like(coordinates, -torch.inf)
    exponents = torch.where(coordinates == 0, unseen, t.unsqueeze(-2))
    top = torch.maximum(exponents.amax(-1), torch.log(offset.abs()))
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    total = (coordinates * torch.exp(exponents - top.unsqueeze(-1))).sum(-1)
    total = total + offset.sign() * torch.exp(torch.log(offset.abs()) - top)
    positive = total > 0
    logs = top + torch.log(torch.where(positive, total, torch.ones_like(total)))
    return logs, positive.all(-1)
