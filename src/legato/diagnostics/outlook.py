"""How many iterations would be enough, and whether restarted momentum gets there sooner."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from legato._support.checks import as_number
from legato.algorithms import Backtracking, ForwardBackward, Nesterov
from legato.algorithms.base import is_euclidean
from legato.diagnostics.reference import Path
from legato.diagnostics.setting import Setting
from legato.gradients.fixed_point import FORWARD_TOLERANCE
from legato.running import Stop, most
from legato.solving import Solution

LONGEST = 10**8
"""Iterations beyond which a number is no advice."""


@dataclass(frozen=True)
class Outlook:
    r"""What it takes to bring the residual down to ``target``.

    .. math:: n = N + \frac{\log(\text{target}/r_N)}{\log q}

    ``iterations`` are counted where the long run of N iterations gets there (``counted``), else
    extrapolated at its ``rate`` q; None where there is none. ``restarted`` is how many iterations
    ``inertia=Nesterov(restart=True)`` took in a run of its own, None where it cannot be used or
    did not get there sooner. ``remedy`` is what else may help, in the algorithm's words.

    >>> diagnosis.outlook is None  # as the solve in question has converged
    True
    """

    target: float
    iterations: int | None
    counted: bool
    rate: float | None
    restarted: int | None
    remedy: str = ""


def look_ahead(
    setting: Setting, path: Path, solution: Solution, error: float | None, tol: float, stop: Stop,
    factor: float | None,
) -> Outlook:  # fmt: skip
    """What the solve lacks for its own tolerance, and for unrolling to be within ``tol``.

    Unrolled derivatives converge behind the iterates, their errors like nρⁿ where those of the
    iterates are like ρⁿ: the residual has to fall by as much as ``error``, and by n/n₀ more.

    Args:
        setting: the problem, in the precision of ``path``.
        path: the long run.
        solution: the solve in question, of n₀ iterations.
        error: of its unrolled derivative, where known.
        tol: the error that counts as right.
        stop: when that solve was to end.
        factor: q, the rate at which the long run goes on, where known.
    """
    asked = FORWARD_TOLERANCE if stop.tol is None else stop.tol
    if error is None or not error > tol:
        return _outlook(setting, path, asked, factor)
    residual = as_number(solution.residual.amax())
    target = min(asked, residual * tol / error)
    count, _ = _count(path, target, factor)
    lag = 1.0 if count is None else max(1.0, count / max(1, most(solution.iterations)))
    return _outlook(setting, path, target / lag, factor)


def _outlook(setting: Setting, path: Path, target: float, factor: float | None) -> Outlook:
    count, counted = _count(path, target, factor)
    longest = path.iterations if count is None else min(count, path.iterations)
    remedy = setting.algorithm.remedy(setting.problem, path.state)
    return Outlook(target, count, counted, factor, _restarted(setting, target, longest), remedy)


def _count(path: Path, target: float, factor: float | None) -> tuple[int | None, bool]:
    """Iterations down to ``target``, and whether the long run went that far."""
    count = next((n for n, r in enumerate(path.residuals, 1) if r <= target), None)
    if count is not None:
        return count, True
    last = path.residuals[-1]
    if factor is not None and 0 < factor < 1 and math.isfinite(last):
        more = math.log(target / last) / math.log(factor)
        return path.iterations + math.ceil(more) if more < LONGEST else None, False
    return None, False


@torch.no_grad()
def _restarted(setting: Setting, target: float, longest: int) -> int | None:
    """Iterations of restarted momentum down to ``target``, where it is sound and got there."""
    algorithm = setting.algorithm
    if not isinstance(algorithm, ForwardBackward) or not is_euclidean(algorithm.geometry):
        return None
    inertia = algorithm.inertia
    constant = isinstance(inertia, (int, float))
    plain = isinstance(inertia, Nesterov) and not inertia.restart
    if isinstance(algorithm.step_size, Backtracking) or not (constant or plain):
        return None
    faster = ForwardBackward(
        algorithm.step_size, algorithm.geometry, inertia=Nesterov(restart=True)
    )
    state = dataclasses.replace(setting, algorithm=faster).start()
    for n in range(1, longest):
        before, state = state, faster.step(setting.problem, state)
        residual = as_number(faster.residual(before, state))
        if not math.isfinite(residual):
            return None
        if residual <= target:
            return n
    return None
