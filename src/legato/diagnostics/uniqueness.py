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
from legato.algorithms import Algorithm, ForwardBackward, Nesterov, PrimalDual
from legato.algorithms.forward_backward import InertialState
from legato.diagnostics.path import Path
from legato.diagnostics.setting import Setting
from legato.errors import LegatoError


@dataclass(frozen=True)
class Uniqueness:
    """How far apart two runs from different starts ended, ‖x − x'‖ relative as residuals are.

    ``settled`` says that both had stopped moving, without which a distance means nothing.
    ``gap`` is the relative difference of their objectives, None where it is not known.
    Reference: :func:`legato.diagnose`.

    >>> diagnosis.facts.uniqueness.settled, diagnosis.facts.uniqueness.primal < 1e-6
    (True, True)
    """

    primal: float
    dual: float
    gap: float | None
    settled: bool

    @property
    def unique(self) -> bool:
        return not self.settled or self.primal <= FAR

    @property
    def unique_dual(self) -> bool:
        return not self.settled or self.dual <= FAR


STILL, FAR = 1e-9, 1e-4
"""Residual below which a run stands still, and distance above which two points differ."""
LONGER = 5
"""A random start may be farther away: times the first run's iterations that a second may take."""


@torch.no_grad()
def compare_starts(setting: Setting, path: Path, idle: Tensor | None) -> Uniqueness | None:
    """Run again from a random start; None where the algorithm takes none that can be made up.

    ``idle`` entries of the state, which nothing moves, are left where they were.
    """
    still = STILL if _precision(path).eps < 1e-10 else 1e-5
    try:
        algorithm, state = _other_start(setting, path, idle)
        end, residual = path.state, path.residuals[-1]
        if residual > still and isinstance(end, InertialState) and _restarts(algorithm):
            again = path.start._replace(mirror=end.mirror, point=end.point, previous=end.mirror)
            end, residual = _settle(setting.problem, algorithm, again, path.iterations, 1, still)
        longer = LONGER if residual <= still else 1
        state, other = _settle(setting.problem, algorithm, state, path.iterations, longer, still)
    except (LegatoError, RuntimeError, TypeError):
        return None
    settled = residual <= still and other <= still
    first, second = setting.algorithm.solution(end), algorithm.solution(state)
    duals = setting.algorithm.dual(end), algorithm.dual(state)
    return Uniqueness(
        primal=_distance(first, second),
        dual=0.0 if duals[0] is None else _distance(*duals),
        gap=_gap(setting.problem, first, second),
        settled=settled,
    )


def _settle(
    problem: Any, algorithm: Algorithm, state: Any, least: int, longer: int, still: float
) -> tuple[Any, float]:
    """The state and residual once nothing moves, after ``least`` to ``longer`` times as many."""
    residual = math.inf
    for n in range(1, longer * least + 1):
        before, state = state, algorithm.step(problem, state)
        if n >= least:
            residual = as_number(algorithm.residual(before, state))
            if not residual > still:
                break
    algorithm.require_sound(state)
    return state, residual


def _restarts(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, ForwardBackward) and isinstance(algorithm.inertia, Nesterov)


def _precision(path: Path) -> torch.finfo:
    return torch.finfo(tree.leaves(path.state)[0].dtype)


def _other_start(setting: Setting, path: Path, idle: Tensor | None) -> tuple[Algorithm, Any]:
    generator = torch.Generator().manual_seed(1)

    def moved(t: Tensor) -> Tensor:
        size = max(1.0, float(t.square().mean().sqrt()))
        return t + size * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)

    if isinstance(setting.algorithm, (ForwardBackward, PrimalDual)):
        algorithm, _ = setting.algorithm.fixed_point_map(
            path.state
        )  # with the steps found at the end
        _, lean = setting.algorithm.fixed_point_map(path.start)
        start = tree.tree_map(moved, lean)
        if idle is not None:
            kept = torch.where(idle, tree.flatten(lean), tree.flatten(start))
            start = tree.unflatten(lean, kept)
        first = setting.algorithm
        if isinstance(first, ForwardBackward) and isinstance(first.inertia, Nesterov):
            # Momentum without restarts circles long around solutions that are not unique.
            algorithm = ForwardBackward(first.step_size, first.geometry, Nesterov(restart=True))
            fresh = first.with_variables(path.start, start)
            return algorithm, fresh._replace(previous=fresh.mirror)
        return algorithm, start
    x0 = tree.tree_map(moved, setting.algorithm.solution(path.start))
    return setting.algorithm, setting.algorithm.init(setting.problem, x0)


def _distance(x: Var, z: Var) -> float:
    change = tree.norm(tree.tree_map(torch.sub, x, z))
    return float(change / torch.clamp(tree.norm(x), min=1))


def _gap(problem: Any, x: Var, z: Var) -> float | None:
    try:
        first, second = float(problem.objective(x)), float(problem.objective(z))
    except (LegatoError, AttributeError):
        return None
    return abs(first - second) / max(1.0, abs(first))
