"""How far a solution is from a change of its active set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.algorithms import Algorithm, ForwardBackward, PrimalDual
from legato.diagnostics.reference import Path
from legato.diagnostics.setting import Setting
from legato.errors import GradientError
from legato.functions import Function, Separable, mirror_prox
from legato.functions.prox import prox_argument
from legato.geometry import Euclidean, Geometry, Polyhedral, Product

LEAVING = 0.75
"""Share of ∇²ψ* that an entry may have kept since the middle of a run to count as leaving."""


@dataclass(frozen=True)
class Margin:
    """The strict complementarity margin; ``strict`` is None where the run was too short to tell.

    In the Euclidean geometry it is the distance of the prox argument from the nearest kink of the
    prox. In an entropic one, where entries never arrive at the boundary, it is the smallest
    1 − ratio over the entries on their way there, the ratio being that of ∇²ψ* in one iteration,
    ≈ 1 − exp(−α∂_if) under strict complementarity, and about 1/n without. Infinite where there is
    no kink and no such entry.
    """

    value: float
    strict: bool | None


@dataclass(frozen=True, eq=False)
class _Prox:
    """One evaluation of a prox: of which term, where, and what became of its mirror variable."""

    term: Function
    geometry: Geometry
    argument: Var
    step: Any
    middle: Var  # the mirror variable in the middle of the run,
    now: Var  # at its end,
    after: Var  # and one iteration later


@torch.no_grad()
def margin(setting: Setting, path: Path) -> Margin | None:
    """The margin at the end of a run, None where prox or algorithm are unknown here."""
    try:
        algorithm, now = setting.algorithm.fixed_point_map(path.state)
        _, middle = setting.algorithm.fixed_point_map(path.middle)
    except GradientError:
        return None
    found = [
        _margin(part, path)
        for prox in _proxes(algorithm, setting.problem, middle, now)
        for part in _blocks(prox)
    ]
    if not found or None in found:
        return None
    known = [m for m in found if m is not None]
    verdicts = [m.strict for m in known]
    strict = False if False in verdicts else None if None in verdicts else True
    return Margin(min(m.value for m in known), strict)


def _proxes(algorithm: Algorithm[Any, Any], problem: Any, middle: Any, now: Any) -> list[_Prox]:
    """The proxes that one iteration from ``now`` evaluates."""
    if not isinstance(algorithm, (ForwardBackward, PrimalDual)):
        return []
    after: Any = algorithm.step(problem, now)
    if isinstance(algorithm, ForwardBackward):
        slope = problem.smooth.grad(algorithm.solution(now))
        argument = tree.sub_scaled(now.mirror, algorithm.step_size, slope)
        states = (middle.mirror, now.mirror, after.mirror)
        g, alpha = problem.nonsmooth, algorithm.step_size
        return [_Prox(g, algorithm.geometry, argument, alpha, *states)]
    x, y = algorithm.solution(now), algorithm.dual(now)
    slope = tree_map(torch.add, problem.operator.adjoint(y), problem.smooth.grad(x))
    rise = problem.operator(tree.extrapolate(algorithm.solution(after), x))
    down = tree_map(lambda s: -s, algorithm.sigma)
    argument = tree.sub_scaled(now.primal, algorithm.tau, slope)
    dual_argument = tree.sub_scaled(now.dual, down, rise)
    primal = (middle.primal, now.primal, after.primal)
    dual = (middle.dual, now.dual, after.dual)
    conjugate = problem.conjugate
    return [
        _Prox(problem.nonsmooth, algorithm.geometry, argument, algorithm.tau, *primal),
        _Prox(conjugate, algorithm.dual_geometry, dual_argument, algorithm.sigma, *dual),
    ]


def _blocks(prox: _Prox) -> list[_Prox]:
    """One entry for each block of a product."""
    if not isinstance(prox.argument, tuple):
        return [prox]
    count = len(prox.argument)
    term, geometry, step = prox.term, prox.geometry, prox.step
    parts = zip(
        term.blocks if isinstance(term, Separable) else (term,) * count,
        geometry.blocks if isinstance(geometry, Product) else (geometry,) * count,
        prox.argument,
        step if isinstance(step, tuple) else (step,) * count,
        prox.middle,
        prox.now,
        prox.after,
        strict=True,
    )
    return [block for part in parts for block in _blocks(_Prox(*part))]


def _margin(prox: _Prox, path: Path) -> Margin | None:
    if isinstance(prox.geometry, Euclidean):
        core, argument, step = prox_argument(prox.term, prox.geometry, prox.argument, prox.step)
        distances = core.kinks(argument, step)
        return None if distances is None else _kink_margin(distances, prox.argument, path)
    return _boundary_margin(prox, path) if _only_shifts(prox) else None


# --- Euclidean ------------------------------------------------------------------------------------


def _kink_margin(distances: Tensor, argument: Tensor, path: Path) -> Margin:
    finite = distances[torch.isfinite(distances)]
    if not finite.numel():
        return Margin(math.inf, True)
    value = float(finite.min())
    if not path.converged:
        return Margin(value, None)
    scale = max(1.0, float(argument.abs().max()))
    return Margin(value, value > 1e-6 * scale)


# --- entropies ------------------------------------------------------------------------------------


def _only_shifts(prox: _Prox) -> bool:
    """Whether the prox has no kink, the geometry's own domain being the only constraint.

    Then it is, in mirror coordinates, y ↦ y + c with c constant along the axes that the term
    couples: 0 for the domain itself, −αw for a norm that is linear on it, minus a logarithm of a
    sum for the simplex. Clipping and thresholding are not, as moves far to either side show.
    """
    core = prox.term.prox_parts(prox.geometry).core
    here, dims = prox.argument, core.prox_couples()
    far = 100 * (1 + here.abs())
    far = far * (
        1
        + torch.rand(here.shape, generator=torch.Generator().manual_seed(4), device="cpu").to(here)
    )
    for move in (far, -far):
        change = mirror_prox(core, prox.geometry, here + move, prox.step)
        change = change - mirror_prox(core, prox.geometry, here, prox.step) - move
        if dims:
            change = change - change.mean(dims, keepdim=True)
        tolerance = 100 * torch.finfo(here.dtype).eps * float(far.max())
        if not bool((change.abs() <= tolerance).all()):
            return False
    return True


def _shrinking(geometry: Geometry, before: Tensor, after: Tensor) -> Tensor:
    """The factors by which distances to the boundary change: of entries, or of slacks."""
    if isinstance(geometry, Polyhedral):
        return torch.exp(geometry.log_slack(after) - geometry.log_slack(before))
    return geometry.transport(before, after, torch.ones_like(before))


def _boundary_margin(prox: _Prox, path: Path) -> Margin:
    leaving = _shrinking(prox.geometry, prox.middle, prox.now) < LEAVING
    if not bool(leaving.any()):
        return Margin(math.inf, True)
    ratios = _shrinking(prox.geometry, prox.now, prox.after)
    value = float((1 - ratios)[leaving].min())
    # Without strict complementarity an entry falls like a power of n, so that the value is about
    # 1/n; a much smaller one belongs to an entry that does not arrive at the boundary.
    times_n = value * path.iterations
    return Margin(value, None if times_n < 0.3 else times_n > 10)
