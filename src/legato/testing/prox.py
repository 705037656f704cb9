"""The laws of proximal maps, P(y) = argmin_x αg(x) + ψ(x) − ⟨y, x⟩."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.functions import Function, mirror_prox, prox
from legato.geometry import Geometry
from legato.testing.report import Measured, Report, hold, skip, worst
from legato.testing.sampling import (
    apart,
    moved,
    normal,
    replica,
    require_double,
    slope_error,
    stacked,
)


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

    ``feasible`` draws points z of the domain of g by a seed; None takes values of the prox itself
    and points near them. Raises a :class:`~legato.errors.LawError` for the first law that does
    not hold.

    >>> y = torch.tensor([3.0, -0.2]).double()
    >>> legato.testing.check_prox(lg.L1(0.5), lg.Euclidean(), y)["optimality"] < 1e-8
    True
    """
    require_double(y)
    laws = (symmetry, monotonicity, derivatives, batches, nan)
    first = optimality(g, geometry, y, step, feasible, seed)
    return Report(
        f"prox of {g!r} in {geometry!r}",
        (first, *(law(g, geometry, y, step, seed) for law in laws)),
    )


def optimality(
    g: Function,
    geometry: Geometry,
    y: Var,
    step: Any,
    feasible: Callable[[int], Var] | None = None,
    seed: int = 0,
) -> Measured:
    """The variational inequality at x = P(y), necessary and sufficient, at random points z."""
    mirror = mirror_prox(g, geometry, y, step)
    x = geometry.unmirror(mirror)
    slope = tree_map(torch.sub, mirror, y)
    value = float(g(x))
    shortfalls = [0.0 if abs(value) < float("inf") else float("nan")]
    points = (
        map(feasible, range(seed, seed + 200))
        if feasible is not None
        else _points(g, geometry, x, y, step, seed)
    )
    for z in points:
        rise = step * (g(z) - value)
        change = tree.inner(slope, tree_map(torch.sub, z, x))
        scale = 1 + float(tree.norm(z)) + abs(float(rise))
        shortfalls.append(-float(change + rise) / scale)
    look = "The result is no minimiser, or not in the domain: look at steps, signs, thresholds."
    return hold("optimality", worst(shortfalls), 1e-8, look)


def _points(g: Function, geometry: Geometry, x: Var, y: Var, step: Any, seed: int) -> Iterator[Var]:
    """Points of the domain: values of the prox, and points around x where g is finite."""
    for s in range(seed, seed + 50):
        direction = normal(y, s)
        for z in (
            *(_safe_prox(g, geometry, moved(y, size, direction), step) for size in (0.1, 3.0)),
            *(moved(x, size, direction) for size in (0.01, 1.0)),
        ):
            inside = bool(geometry.interior(z).all())
            if inside and bool(torch.isfinite(g(z)).all()):
                yield z


def _safe_prox(g: Function, geometry: Geometry, y: Var, step: Any) -> Var:
    """The prox where y belongs to a point; elsewhere that of its mirror image −|y|."""
    if not bool(geometry.mirror_interior(y).all()):
        y = tree_map(lambda t: -t.abs() - 1e-3, y)
    return prox(g, geometry, y, step)


def symmetry(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """P is the gradient of a convex function: its Jacobian is symmetric and monotone."""
    at = tree_map(lambda t: t.detach().clone().requires_grad_(), y)
    found = tree.leaves(prox(g, geometry, at, step))
    errors = []
    for s in range(seed, seed + 5):
        u, v = normal(y, s), normal(y, s + 50)
        Ju, Jv = (_pulled(found, at, w) for w in (u, v))
        scale = 1e-3 + tree.length(Ju) * tree.length(v)
        errors += [
            abs(tree.dot(Ju, v) - tree.dot(Jv, u)) / scale,
            -tree.dot(Ju, u) / scale,
        ]
    look = "The derivative is not that of a prox: something is detached, or a branch is wrong."
    return hold("symmetric, monotone derivative", worst(errors), 1e-9, look)


def _pulled(found: list[Tensor], at: Var, w: Var) -> Var:
    if not any(t.requires_grad for t in found):
        return tree_map(torch.zeros_like, at)
    return tuple(
        torch.zeros_like(t) if g is None else g
        for t, g in zip(
            tree.leaves(at),
            torch.autograd.grad(
                found, tree.leaves(at), tree.leaves(w), retain_graph=True, allow_unused=True
            ),
            strict=True,
        )
    )


def monotonicity(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """⟨P(y) − P(z), y − z⟩ ≥ 0, across kinks too."""
    shortfalls = []
    for s in range(seed, seed + 20):
        z = moved(y, 0.3, normal(y, s))
        if bool(geometry.mirror_interior(z).all()):
            ends = [prox(g, geometry, point, step) for point in (y, z)]
            turn, change = tree_map(torch.sub, *ends), tree_map(torch.sub, y, z)
            shortfalls.append(-tree.dot(turn, change) / (1 + tree.dot(change, change)))
    look = "The prox jumps or turns back: it is not that of a convex function."
    return hold("monotone", worst([0.0, *shortfalls]), 1e-10, look)


def derivatives(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """The derivatives in y, in the step and in every tensor of g and ψ."""
    step = torch.as_tensor(step, dtype=torch.float64)
    (g, geometry, y, step), leaves = replica((g, geometry, y, step))
    error = slope_error(lambda: prox(g, geometry, y, step), leaves, seed=seed)
    look = "A tensor or the step is detached, or used at another place than the value says."
    return hold("derivatives", error, 1e-6, look)


def batches(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """The prox of a batch is that of its elements."""
    law = "batch = elements"
    if g.coupled is None or geometry.coupled is None:
        return skip(law, "coupled is None, so that there is no batch")
    points = [y, *(tree_map(lambda t, f=f: f * t, y) for f in (0.5, 2.0))]
    singles = stacked(*(prox(g, geometry, z, step) for z in points))
    error = apart(prox(g, geometry, stacked(*points), step), singles)
    return hold(law, error, 1e-10, "Elements of a batch must not see each other.")


def nan(g: Function, geometry: Geometry, y: Var, step: Any, seed: int = 0) -> Measured:
    """An entry of y that is NaN is NaN in the result: a broken number is not swallowed."""
    law = "NaN in, NaN out"
    elsewhere = _safe_prox(g, geometry, moved(y, 1.0, normal(y, seed)), step)
    if apart(elsewhere, prox(g, geometry, y, step)) == 0:
        return skip(law, "the domain is one point: the result does not depend on y")
    y = tree.copy(y)
    for t in tree.leaves(y):
        t.view(-1)[0] = torch.nan
    found = tree.leaves(prox(g, geometry, y, step))
    swallowed = sum(not bool(t.reshape(-1)[0].isnan()) for t in found)
    look = "NaN went in and a number came out: torch.where and comparisons lose it, clamp does not."
    return hold(law, swallowed, 0, look)
