"""The laws of proximal maps, P(y) = argmin_x αg(x) + ψ(x) − ⟨y, x⟩."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import vjp

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var, tree_map
from legato.functions import Function, mirror_prox, prox
from legato.geometry import Geometry
from legato.testing import sampling
from legato.testing.report import Measured, Report, hold, skip
from legato.testing.sampling import apart, batch_law, minus, moved, normal, replica, slope_errors
from legato.testing.ties import one_sided


def check_prox(
    g: Function,
    geometry: Geometry,
    y: Var,
    step: Tensor | float = 1.0,
    feasible: Callable[[int], Var] | None = None,
    seed: int = 0,
) -> Report:
    r"""Check the laws of a closed form in the table of proxes at a float64 mirror variable y.

    .. math:: ⟨∇ψ(x) − y, z − x⟩ + α(g(z) − g(x)) ≥ 0 \quad\text{for all } z, \qquad x = P(y)

    Raises a :class:`~legato.errors.LawError` for the first law that does not hold.

    Args:
        g: the function, whose tensors are checked to get their derivatives.
        geometry: ψ.
        y: where, in mirror coordinates.
        step: α, one number.
        feasible: points z of the domain of g by a seed; None takes values of the prox and points
            near x.
        seed: of the random numbers.

    >>> y = torch.tensor([3.0, -0.2]).double()
    >>> legato.testing.check_prox(lg.L1(0.5), lg.Euclidean(), y)["optimality"] < 1e-8
    True
    """
    sampling.require_double(y)
    first = optimality(g, geometry, y, step, seed, feasible)
    laws = (monotonicity, derivatives, one_sided, batches, nan)
    rest = (law(g, geometry, y, step, seed) for law in laws)
    return Report(f"prox of {g!r} in {geometry!r}", (first, *rest))


def optimality(
    g: Function,
    geometry: Geometry,
    y: Var,
    step: Any,
    seed: int = 0,
    feasible: Callable[[int], Var] | None = None,
) -> Measured:
    """The variational inequality at x = P(y), necessary and sufficient, at random points z."""
    mirror = mirror_prox(g, geometry, y, step)
    x, slope = geometry.unmirror(mirror), minus(mirror, y)
    points = _points(g, geometry, y, step, seed) if feasible is None else map(feasible, range(200))
    value = as_number(g(x))
    shortfalls = [0.0 if abs(value) < torch.inf else torch.nan]
    for z in points:
        rise = step * (as_number(g(z)) - value)
        change = tree.dot(slope, minus(z, x))
        shortfalls.append(-as_number(change + rise) / (1 + tree.length(z) + abs(as_number(rise))))
    look = "The result is no minimiser, or not in the domain: look at steps, signs, thresholds."
    return hold("optimality", shortfalls, 1e-8, look)


def _points(g: Function, geometry: Geometry, y: Var, step: Any, seed: int) -> Iterator[Var]:
    """Values of the prox elsewhere, and points around x inside the domains of ψ and g."""
    x = prox(g, geometry, y, step)
    for s in range(seed, seed + 50):
        direction = normal(y, s)
        images = (prox(g, geometry, z, step) for z in _elsewhere(geometry, y, s))
        for z in (*images, moved(x, 0.01, direction), moved(x, 1.0, direction)):
            if bool(geometry.interior(z).all()) and bool(torch.isfinite(g(z))):
                yield z


def _elsewhere(geometry: Geometry, y: Var, seed: int) -> list[Var]:
    """Other mirror variables, near and far, that belong to points."""
    found = [moved(y, size, normal(y, seed)) for size in (0.1, 0.5, 3.0)]
    found += [moved(y, size, y) for size in (-0.5, 1.0)]
    return [z for z in found if bool(geometry.mirror_interior(z).all())]


def monotonicity(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """P is the gradient of a convex function: monotone, its Jacobian symmetric and monotone."""

    def map_(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tree.leaves(prox(g, geometry, tree.rebuild(y, tensors), step)))

    errors, at = [], tuple(tree.leaves(y))
    for s in range(seed, seed + 10):
        u, v = (tuple(tree.leaves(normal(y, s + shift))) for shift in (0, 50))
        (_, Ju), (_, Jv) = (vjp(map_, at, w) for w in (u, v))
        scale = 1e-3 + tree.length(Ju) * tree.length(v)
        errors += [abs(tree.dot(Ju, v) - tree.dot(Jv, u)) / scale, -tree.dot(Ju, u) / scale]
        for z in _elsewhere(geometry, y, s):
            turn = minus(prox(g, geometry, z, step), prox(g, geometry, y, step))
            errors.append(-tree.dot(turn, minus(z, y)) / (1 + tree.dot(z, z)))
    look = "The map is not that of a convex function: something is detached, or a branch is wrong."
    return hold("symmetric and monotone", errors, 1e-9, look)


def derivatives(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """The derivatives in y, in the step and in every tensor of g and ψ."""
    step = torch.as_tensor(step, dtype=torch.float64)
    (g, geometry, y, step), leaves = replica((g, geometry, y, step))
    errors = slope_errors(lambda: prox(g, geometry, y, step), leaves, seed=seed)
    look = "A tensor or the step is detached, or used at another place than the value says."
    return hold("derivatives", errors, 1e-6, look)


def batches(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """The prox of a batch is that of its elements."""
    coupled = None if geometry.coupled is None else g.coupled
    points = [tree_map(lambda t, f=f: f * t, y) for f in (1.0, 0.5, 2.0)]
    return batch_law(coupled, (lambda z: prox(g, geometry, z, step), points))


def nan(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """An entry of y that is NaN is NaN in the result: a broken number is not swallowed."""
    x, others = prox(g, geometry, y, step), _elsewhere(geometry, y, seed)
    if all(apart(prox(g, geometry, z, step), x) == 0 for z in others):
        return skip("NaN in, NaN out", "the domain is one point: nothing depends on y")
    y = tree.copy(y)
    for t in tree.leaves(y):
        t.view(-1)[0] = torch.nan
    swallowed = [~t.flatten()[0].isnan() for t in tree.leaves(prox(g, geometry, y, step))]
    look = "NaN went in and a number came out: torch.where and comparisons lose it, clamp does not."
    return hold("NaN in, NaN out", swallowed, 0, look)
