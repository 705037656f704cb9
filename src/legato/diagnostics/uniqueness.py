"""Does another start lead to another solution?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var
from legato.diagnostics.reference import Path
from legato.diagnostics.setting import Setting
from legato.errors import LegatoError

DISTINCT = 1e-4
"""Relative distance above which two points count as two solutions."""
SECOND_RUN = 5
"""Times the first run's iterations that a second may take: a random start may be farther away."""


@dataclass(frozen=True)
class Uniqueness:
    """How far apart two runs from different starts ended, ‖x − x'‖ relative as residuals are.

    ``settled`` says that both had stopped moving, without which a distance means nothing.
    ``gap`` is the relative difference of their objectives, None where it is not known.

    >>> diagnosis.facts.uniqueness.settled, diagnosis.facts.uniqueness.primal < 1e-6
    (True, True)
    """

    primal: float
    dual: float
    gap: float | None
    settled: bool

    @property
    def unique(self) -> bool:
        return not self.settled or self.primal <= DISTINCT

    @property
    def unique_dual(self) -> bool:
        return not self.settled or self.dual <= DISTINCT


@torch.no_grad()
def compare_starts(setting: Setting, path: Path, idle: Tensor | None) -> Uniqueness | None:
    """Run again from a random start; None where the algorithm takes none that can be made up.

    Both runs end with the algorithm's fixed-point map: momentum would circle for long around
    solutions that are not unique.

    Args:
        setting: what is diagnosed.
        path: the first run.
        idle: entries of the state that nothing moves, which are left where they were.
    """
    algorithm, problem = setting.algorithm, setting.problem
    still = 1e-9 if torch.finfo(path.dtype).eps < 1e-10 else 1e-5
    try:
        plain, end = algorithm.fixed_point_map(path.state)
        residual = path.residuals[-1]
        if residual > still:
            end, residual = _settle(problem, plain, end, path.iterations, still)
        state = _other_start(setting, path, idle)
        for _ in range(path.iterations):
            state = algorithm.step(problem, state)
        again, other_end = algorithm.fixed_point_map(state)
        more = (SECOND_RUN - 1) * path.iterations if residual <= still else 1
        other_end, other = _settle(problem, again, other_end, more, still)
    except (LegatoError, RuntimeError, TypeError):
        return None
    first, second = plain.solution(end), again.solution(other_end)
    duals = plain.dual(end), again.dual(other_end)
    return Uniqueness(
        primal=_distance(first, second),
        dual=0.0 if duals[0] is None else _distance(*duals),
        gap=_gap(problem, first, second),
        settled=residual <= still and other <= still,
    )


def _other_start(setting: Setting, path: Path, idle: Tensor | None) -> Any:
    """The start with noise on its variables, in mirror coordinates, where no domain limits them."""
    generator = torch.Generator().manual_seed(1)

    def moved(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        size = max(1.0, float(t.square().mean().sqrt()))
        return t + size * torch.randn(
            t.shape, generator=generator, dtype=torch.float64, device="cpu"
        ).to(t)

    _, variables = setting.algorithm.fixed_point_map(path.start)
    other = tree.tree_map(moved, variables)
    if idle is not None:
        kept = torch.where(idle, tree.flatten(variables), tree.flatten(other))
        other = tree.unflatten(variables, kept)
    state = setting.algorithm.with_variables(path.start, other)
    return setting.algorithm.resume(setting.problem, state)


def _settle(problem: Any, algorithm: Any, state: Any, most: int, still: float) -> tuple[Any, float]:
    """The state and residual once nothing moves, or after ``most`` iterations."""
    residual = math.inf
    for _ in range(most):
        before, state = state, algorithm.step(problem, state)
        residual = as_number(algorithm.residual(before, state))
        if not residual > still:
            break
    algorithm.require_sound(state)
    return state, residual


def _distance(x: Var, z: Var) -> float:
    change = tree.norm(tree.tree_map(torch.sub, x, z))
    return float(change / torch.clamp(tree.norm(x), min=1))


def _gap(problem: Any, x: Var, z: Var) -> float | None:
    try:
        first, second = float(problem.objective(x)), float(problem.objective(z))
    except (LegatoError, AttributeError):
        return None
    return abs(first - second) / max(1.0, abs(first))
