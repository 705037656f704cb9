"""The gradient that others are measured against, and what finite differences say to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato.diagnostics.path import Path
from legato.diagnostics.replica import Replica, flat
from legato.diagnostics.setting import Setting
from legato.gradients import Unroll
from legato.running import Stop
from legato.solving import solve


@dataclass(frozen=True, eq=False)
class Reference:
    """dL/dθ as one flat vector, how it was computed, and how far central differences are from it.

    ``disagreement`` is relative to the size of a directional derivative, None where not measured.
    Reference: :func:`legato.diagnose`, where it is ḡ.

    >>> diagnosis.reference.gradient.round(decimals=4), diagnosis.reference.dtype
    (tensor([-3.], dtype=torch.float64), torch.float64)
    """

    gradient: Tensor
    loss: float
    how: str
    dtype: torch.dtype
    iterations: int
    residual: float
    converged: bool
    disagreement: float | None


ROOMY = 2**28
"""Bytes that unrolling may take without checkpoints, at some 32 tensors an iteration."""


def _sweep(path: Path) -> Unroll:
    iterate = sum(t.numel() * t.element_size() for t in tree.leaves(path.state))
    return Unroll(checkpoint="sqrt" if 32 * iterate * path.iterations > ROOMY else None)


def unrolled(replica: Replica, path: Path) -> tuple[Tensor, float]:
    """The derivative of the whole path, with checkpoints where it would not fit."""
    s = replica.setting
    with torch.enable_grad():
        solution = solve(
            s.problem,
            s.algorithm,
            s.x0,
            gradient=_sweep(path),
            stop=Stop(path.iterations),
        )
        value = s.loss(solution.x)
        grads = torch.autograd.grad(value, replica.copies, allow_unused=True)
    return replica.pull(grads), float(value.detach())


def unrolled_in_place(setting: Setting, params: list[Tensor], path: Path) -> tuple[Tensor, float]:
    """As :func:`unrolled`, through the user's own objects."""
    with torch.enable_grad():
        solution = solve(
            setting.problem,
            setting.algorithm,
            setting.x0,
            gradient=_sweep(path),
            stop=Stop(path.iterations),
        )
        value = setting.loss(solution.x)
        grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    return flat(grads, params), float(value.detach())


def disagreement(replica: Replica, path: Path, gradient: Tensor, directions: int) -> float | None:
    r"""The largest relative distance of ⟨∇L, d⟩ from central differences, over random directions d.

    .. math:: \frac{|⟨∇L, d⟩ − (L(θ + hd) − L(θ − hd))/2h|}{\max(σ, |⟨∇L, d⟩|)}, \quad
              σ² = \mathrm{Var}⟨∇L, d⟩

    Both sides differentiate the same number of iterations with the same derived steps, so that what
    is left is a kink, an error, or rounding. Reference: Griewank and Walther (2008), Section 2.1.
    """
    generator = torch.Generator().manual_seed(0)
    h = torch.finfo(replica.dtype).eps ** (1 / 3)
    worst = 0.0
    for _ in range(directions):
        direction = [_direction(p, generator) for p in replica.params]
        try:
            moves = replica.push(direction)
        except (RuntimeError, NotImplementedError):  # an operation without second derivatives
            return None
        up = _moved_loss(replica, path, moves, h)
        down = _moved_loss(replica, path, moves, -h)
        slope = (up - down) / (2 * h)
        along = torch.cat([d.reshape(-1) for d in direction]).to(gradient)
        expected = float(gradient @ along)
        sizes = torch.cat([torch.full_like(p, _size(p)).reshape(-1) for p in replica.params])
        spread = float(torch.linalg.vector_norm(gradient * sizes.to(gradient)))
        noise = 10 * torch.finfo(replica.dtype).eps / h * (1 + abs(up))
        scale = max(spread, abs(slope), abs(expected), noise)
        worst = max(worst, abs(slope - expected) / scale)
    return worst


def _size(p: Tensor) -> float:
    root_mean_square = float(p.detach().square().mean().sqrt())
    return root_mean_square if root_mean_square > 0 else 1.0


def _direction(p: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return noise.to(p.detach()) * _size(p)


@torch.no_grad()
def _moved_loss(replica: Replica, path: Path, moves: Sequence[Tensor], h: float) -> float:
    """L after the same number of iterations, with the copies moved by h."""
    s = replica.setting
    saved = [c.detach().clone() for c in replica.copies]
    try:
        for c, move in zip(replica.copies, moves, strict=True):
            c.add_(move, alpha=h)
        state = _start(s, path)
        for _ in range(path.iterations):
            state = s.algorithm.step(s.problem, state)
        return float(s.loss(s.algorithm.solution(state)))
    finally:
        for c, old in zip(replica.copies, saved, strict=True):
            c.copy_(old)


def _start(setting: Setting, path: Path) -> Any:
    """The unmoved start, unless it depends on θ: derived steps are constants for autograd."""
    with torch.enable_grad():
        start = setting.start()
    if any(t.requires_grad for t in tree.leaves(start)):
        return tree.detach(start)
    return path.start
