"""How far a solution is from a change of its active set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.algorithms import Algorithm, ForwardBackward, PrimalDual
from legato.diagnostics.path import Path
from legato.diagnostics.setting import Setting
from legato.errors import GradientError
from legato.functions import (
    L1,
    AsymmetricL1,
    Box,
    Function,
    GroupL1,
    L2Ball,
    NonNegative,
    Separable,
    Simplex,
    Zero,
)
from legato.geometry import Burg, Entropy, Euclidean, Geometry, Interval, Product

FALLEN = 0.75
"""Share of its metric that an entry must lose over the last part of a run to count as leaving."""


@dataclass(frozen=True)
class Margin:
    """The strict complementarity margin; ``strict`` is None where the run was too short to tell.

    In the Euclidean geometry it is the distance of the prox argument from the nearest kink of the
    prox. In an entropic one, where entries never arrive at the boundary, it is the smallest
    1 − ratio over the entries on their way there, the ratio being that of ∇²ψ* in one iteration,
    ≈ 1 − exp(−α∂_if) under strict complementarity, and about 1/n without. Infinite where there is
    no kink and no such entry.
    Reference: :func:`legato.diagnose`.

    >>> diagnosis.facts.margin.strict
    True
    """

    value: float
    strict: bool | None


@torch.no_grad()
def margin(setting: Setting, path: Path) -> Margin | None:
    """The margin at the end of a run, None where prox or algorithm are unknown here."""
    try:
        algorithm, lean = setting.algorithm.fixed_point_map(path.state)
        _, middle = setting.algorithm.fixed_point_map(path.middle)
    except GradientError:
        return None
    after = algorithm.step(setting.problem, lean)
    found: list[Margin] = []
    for term, geometry, argument, alpha, states in _blocks(
        algorithm, setting.problem, middle, lean, after
    ):
        for part in _flatten(term, geometry, argument, alpha, states):
            one = _margin(path, *part)
            if one is None:
                return None
            found.append(one)
    if not found:
        return None
    smallest = min(m.value for m in found)
    verdicts = [m.strict for m in found]
    strict = False if False in verdicts else None if None in verdicts else True
    return Margin(smallest, strict)


def _blocks(
    algorithm: Algorithm, problem: Any, middle: Any, lean: Any, after: Any
) -> list[tuple[Any, ...]]:
    """(term, geometry, prox argument, step, mirror variables in the middle, now, next)."""
    if isinstance(algorithm, ForwardBackward):
        y, alpha = lean.mirror, algorithm.step_size
        slope = problem.smooth.grad(algorithm.geometry.unmirror(y))
        argument = tree.sub_scaled(y, alpha, slope)
        states = (middle.mirror, y, after.mirror)
        return [(problem.nonsmooth, algorithm.geometry, argument, alpha, states)]
    if isinstance(algorithm, PrimalDual):
        x = algorithm.geometry.unmirror(lean.primal)
        y = algorithm.dual_geometry.unmirror(lean.dual)
        new = algorithm.geometry.unmirror(after.primal)
        slope = tree_map(torch.add, problem.operator.adjoint(y), problem.smooth.grad(x))
        rise = problem.operator(tree.extrapolate(new, x))
        down = tree_map(lambda s: -s, algorithm.sigma)
        primal = (middle.primal, lean.primal, after.primal)
        dual = (middle.dual, lean.dual, after.dual)
        argument = tree.sub_scaled(lean.primal, algorithm.tau, slope)
        dual_argument = tree.sub_scaled(lean.dual, down, rise)
        return [
            (problem.nonsmooth, algorithm.geometry, argument, algorithm.tau, primal),
            (problem.dual, algorithm.dual_geometry, dual_argument, algorithm.sigma, dual),
        ]
    return []


def _flatten(
    term: Function, geometry: Geometry, argument: Var, alpha: Any, states: tuple[Var, ...]
) -> list[tuple[Any, ...]]:
    """One entry for each block of a product."""
    if not isinstance(argument, tuple):
        return [(term, geometry, argument, alpha, states)]
    count = len(argument)
    geometries = geometry.blocks if isinstance(geometry, Product) else (geometry,) * count
    terms = term.blocks if isinstance(term, Separable) else (term,) * count
    alphas = alpha if isinstance(alpha, tuple) else (alpha,) * count
    return [
        part
        for i in range(count)
        for part in _flatten(
            terms[i], geometries[i], argument[i], alphas[i], tuple(s[i] for s in states)
        )
    ]


def _margin(
    path: Path,
    term: Function,
    geometry: Geometry,
    argument: Tensor,
    alpha: Any,
    states: tuple[Tensor, Tensor, Tensor],
) -> Margin | None:
    core, shift, epsilon = term.split(geometry)
    if isinstance(geometry, Euclidean):
        if shift is not None:
            argument = tree.sub_scaled(argument, alpha, shift)
        if epsilon is not None:
            argument, alpha = argument / (1 + alpha * epsilon), alpha / (1 + alpha * epsilon)
        kink = _KINKS.get(type(core))
        return None if kink is None else _kink_margin(kink(core, argument, alpha), argument, path)
    if _domain_is_constraint(core, geometry):
        return _boundary_margin(geometry, states, path)
    return None


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


def _threshold(z: Tensor) -> Tensor:
    """The number that a projection onto the simplex along the last axis subtracts."""
    ordered = z.sort(dim=-1, descending=True).values
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    candidates = (ordered.cumsum(-1) - 1) / rank
    size = (ordered > candidates).sum(-1, keepdim=True)
    return candidates.gather(-1, size - 1)


def _simplex(g: Simplex, z: Tensor, alpha: Any) -> Tensor:
    z = z.movedim(g.dim, -1)
    return (z - _threshold(z)).abs()


def _ends(z: Tensor, lo: Any, hi: Any) -> Tensor:
    return torch.minimum((z - lo).abs(), (z - hi).abs())


_KINKS: dict[type[Function], Callable[[Any, Tensor, Any], Tensor]] = {
    Zero: lambda g, z, a: torch.full_like(z, torch.inf),
    L1: lambda g, z, a: (z.abs() - a * g.weight).abs(),
    AsymmetricL1: lambda g, z, a: _ends(z, a * g.lo, a * g.hi),
    NonNegative: lambda g, z, a: z.abs(),
    Box: lambda g, z, a: _ends(z, g.lo, g.hi),
    GroupL1: lambda g, z, a: (g.norms(z) - a * g.weight).abs(),
    L2Ball: lambda g, z, a: (GroupL1(dim=g.dim).norms(z) - g.radius).abs(),
    Simplex: _simplex,
}


# --- entropies ------------------------------------------------------------------------------------


def _domain_is_constraint(core: Function, geometry: Geometry) -> bool:
    if isinstance(geometry, (Entropy, Burg)):
        return isinstance(core, (Zero, NonNegative, Simplex, L1, AsymmetricL1))
    if isinstance(geometry, Interval):
        same = isinstance(core, Box) and core.lo is geometry.lo and core.hi is geometry.hi
        return isinstance(core, Zero) or same or _same_ends(core, geometry)
    return False


def _same_ends(core: Function, geometry: Interval) -> bool:
    return isinstance(core, Box) and all(
        bool((torch.as_tensor(a) == torch.as_tensor(b)).all())
        for a, b in ((core.lo, geometry.lo), (core.hi, geometry.hi))
    )


def _boundary_margin(
    geometry: Geometry, states: tuple[Tensor, Tensor, Tensor], path: Path
) -> Margin:
    middle, now, after = states
    one = torch.ones_like(now)
    leaving = geometry.transport(middle, now, one) < FALLEN
    if not bool(leaving.any()):
        return Margin(math.inf, True)
    value = float((1 - geometry.transport(now, after, one))[leaving].min())
    # Without strict complementarity an entry falls like 1/n, so that the value is about 1/n.
    return Margin(value, value * path.iterations > 10)
