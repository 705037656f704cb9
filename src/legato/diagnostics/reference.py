"""The gradient that others are measured against: a long run, unrolled, and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato.diagnostics.setting import Setting
from legato.gradients import Unroll
from legato.running import Stop

UNROLLED_BYTES = 2**28
"""Memory that unrolling may take without checkpoints, at some 32 tensors an iteration."""


@dataclass(frozen=True, eq=False)
class Reference:
    """dL/dθ as one flat vector, how it was computed, and how far differences are from it.

    ``twin`` says that it comes from a float64 twin of the problem, made by a factory; else it comes
    from the problem as given, in ``dtype``. ``disagreement`` is relative to the size of a
    directional derivative, None where not measured. ``uncertainty`` is the relative distance of the
    unrolled derivative from the implicit one at the same last iterate: both tend to ḡ, in different
    ways, so that they part where the run was too short. None where only one of them exists.
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
    uncertainty: float | None = None

    def settles(self, tol: float) -> bool:
        """Whether errors of the size ``tol`` can be told by this reference."""
        return self.converged or (self.uncertainty is not None and self.uncertainty <= tol)


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
    def midway(self) -> int:
        """The number of the intermediate state: half of the largest power of two on the way."""
        return 1 << max(0, self.iterations.bit_length() - 2)

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
