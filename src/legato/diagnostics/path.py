"""A detached run that remembers its residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from legato._support import tree
from legato._support.checks import as_number
from legato.diagnostics.setting import Setting
from legato.running import Stop


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
        if n & (n - 1) == 0:
            middle, latest = latest, state
        if reached is None and stop.tol is not None and residuals[-1] <= stop.tol:
            reached = n
            end = min(end, max(least, math.ceil(1.2 * n) + 20))
    algorithm.require_sound(state)
    return Path(start, middle, state, residuals, reached is not None)
