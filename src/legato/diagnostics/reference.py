"""The gradient that others are measured against: a long run, unrolled, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from legato._support import tree
from legato._support.checks import as_number
from legato.diagnostics.setting import Setting, flat
from legato.gradients import Unroll
from legato.gradients.base import pull_back
from legato.running import Stop

UNROLLED_BYTES = 2**28
"""Memory that unrolling may take without checkpoints, at some 32 tensors an iteration."""


@dataclass(frozen=True, eq=False)
class Reference:
    """dL/dθ as one flat vector, how it was computed, and how far central differences are from it.

    ``twin`` says that it comes from a float64 twin of the problem, made by a factory; else it comes
    from the problem as given, in ``dtype``. ``disagreement`` is relative to the size of a
    directional derivative, None where not measured.
    It is ḡ in :func:`legato.diagnose`.

    >>> diagnosis.reference.gradient.round(decimals=4), diagnosis.reference.dtype
    (tensor([-3.], dtype=torch.float64), torch.float64)
    """

    gradient: Tensor
    loss: float
    how: str
    dtype: torch.dtype
    twin: bool
    iterations: int
    residual: float
    converged: bool
    disagreement: float | None


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """The first, an intermediate (from a quarter to a half of the way) and the last state."""

    start: Any
    middle: Any
    state: Any
    residuals: list[float]
    converged: bool

    @property
    def iterations(self) -> int:
        return len(self.residuals)

    @property
    def dtype(self) -> torch.dtype:
        return tree.leaves(self.state)[0].dtype


@torch.no_grad()
def follow(setting: Setting, stop: Stop, least: int) -> Path:
    """Iterate until the residual reaches ``stop.tol``, then a fifth longer, and at least ``least``.

    Derivatives converge behind the iterates, like nρⁿ behind ρⁿ: hence the fifth.
    """
    algorithm, problem = setting.algorithm, setting.problem
    state = start = tree.detach(setting.start())
    middle = latest = start
    residuals: list[float] = []
    reached: int | None = None
    end = max(stop.iterations, least)
    while len(residuals) < end:
        before, state = state, algorithm.step(problem, state)
        residuals.append(as_number(algorithm.residual(before, state)))
        n = len(residuals)
        if not math.isfinite(residuals[-1]):
            break
        if n & (n - 1) == 0:  # a power of two
            middle, latest = latest, state
        if reached is None and stop.tol is not None and residuals[-1] <= stop.tol:
            reached = n
            end = min(end, max(least, math.ceil(1.2 * n) + 20))
    algorithm.require_sound(state)
    return Path(start, middle, state, residuals, reached is not None)


def unrolled(setting: Setting, path: Path) -> tuple[Tensor, float]:
    """The derivative of the whole path and its loss, with checkpoints where it would not fit."""
    iterate = sum(t.numel() * t.element_size() for t in tree.leaves(path.state))
    large = 32 * iterate * path.iterations > UNROLLED_BYTES
    gradient = Unroll(checkpoint="sqrt" if large else None)
    with torch.enable_grad():
        value = setting.value(setting.solve(gradient, Stop(path.iterations)).x)
    return setting.gradient(value), float(value.detach())


# --- central differences --------------------------------------------------------------------------


class _Substitute(TorchFunctionMode):
    """Sees tensors that record gradients enter operations, and passes others in their place.

    A problem may hold θ itself, or tensors computed from θ before the solve, in dataclasses,
    modules or closures: wherever they are kept, they must enter an operation to matter.
    """

    def __init__(self, instead: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.instead = instead  # by id
        self.seen: dict[int, Tensor] = {}  # holding them, so that no id is used twice

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*self._replace(args), **self._replace(kwargs or {}))

    def _replace(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.requires_grad and not self.instead:
                self.seen[id(value)] = value
            return self.instead.get(id(value), value)
        if type(value) in (tuple, list):
            return type(value)(self._replace(part) for part in value)
        if type(value) is dict:
            return {name: self._replace(part) for name, part in value.items()}
        return value


@torch.no_grad()
def _held_tensors(setting: Setting) -> list[Tensor]:
    """θ and tensors computed from it that the problem holds: those that two runs have in common.

    What a run computes on its way records no gradient here, or belongs to that run alone.
    """
    runs = []
    for _ in range(2):
        with _Substitute({}) as watch:
            setting.two_steps()
        runs.append(watch.seen)
    return [t for key, t in runs[0].items() if key in runs[1]]


def _pushed(held: list[Tensor], theta: list[Tensor], along: list[Tensor]) -> list[Tensor]:
    """Directions of ``held`` for a direction in θ: c ↦ Jᵀc is linear, and its own transpose is J.

    Parameters that reach no held tensor are moved by nothing: their direction is set to zero.
    """
    dummies = [torch.zeros_like(t).requires_grad_() for t in held]
    with torch.enable_grad():
        pulled = torch.autograd.grad(
            held, theta, dummies, retain_graph=True, create_graph=True, allow_unused=True
        )
    for p, d in zip(pulled, along, strict=True):
        if p is None:
            d.zero_()
    return pull_back(pulled, dummies, along)


def disagreement(setting: Setting, path: Path, gradient: Tensor, directions: int) -> float | None:
    r"""The largest relative distance of ⟨∇L, d⟩ from central differences, over random directions d.

    .. math:: \frac{|⟨∇L, d⟩ − (L(θ + hd) − L(θ − hd))/2h|}{\max(σ, |⟨∇L, d⟩|)}, \quad
              σ² = \mathrm{Var}⟨∇L, d⟩

    Both sides differentiate the same number of iterations with the same derived steps, so that what
    is left is a kink, an error, or rounding. The step h = ε^{1/3} balances the truncation h² with
    the rounding ε/h; differences of less than ten times that rounding count as equal.
    Reference: Griewank and Walther (2008), Section 2.1.
    """
    generator = torch.Generator().manual_seed(0)
    theta = setting.theta
    held = _held_tensors(setting)
    if not held:
        return None
    eps = torch.finfo(path.dtype).eps
    h = eps ** (1 / 3)
    sizes = flat([torch.full_like(p, _size(p)).detach() for p in theta])
    spread = float(torch.linalg.vector_norm(gradient * sizes.to(gradient)))
    worst = 0.0
    for _ in range(directions):
        along = [_direction(p, generator) for p in theta]
        try:
            moves = _pushed(held, theta, along)
        except (RuntimeError, NotImplementedError):  # an operation without second derivatives
            return None
        up = _moved_loss(setting, path, held, moves, h)
        down = _moved_loss(setting, path, held, moves, -h)
        slope = (up - down) / (2 * h)
        expected = float(gradient @ flat(along).to(gradient))
        rounding = 10 * eps / h * (1 + abs(up))
        worst = max(worst, abs(slope - expected) / max(spread, abs(slope), abs(expected), rounding))
    return worst


def _size(p: Tensor) -> float:
    root_mean_square = float(p.detach().square().mean().sqrt())
    return root_mean_square if root_mean_square > 0 else 1.0


def _direction(p: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return noise.to(p.detach()) * _size(p)


def _moved_loss(
    setting: Setting, path: Path, held: list[Tensor], moves: Sequence[Tensor], h: float
) -> float:
    """L after the same number of iterations, with what the problem holds moved by h."""
    with torch.enable_grad():
        depends = any(t.requires_grad for t in tree.leaves(setting.start()))
    moved = {id(t): (t + h * m).detach() for t, m in zip(held, moves, strict=True)}
    with torch.no_grad(), _Substitute(moved):
        # The unmoved start, unless it depends on θ: derived steps are constants for autograd.
        state = setting.start() if depends else path.start
        for _ in range(path.iterations):
            state = setting.algorithm.step(setting.problem, state)
        return float(setting.loss(setting.algorithm.solution(state)))
