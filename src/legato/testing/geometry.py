"""The laws of Legendre functions."""

from __future__ import annotations

from itertools import pairwise

import torch

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.errors import LawError
from legato.geometry import Geometry
from legato.testing.report import Measured, Report, hold, skip, worst
from legato.testing.sampling import (
    H,
    apart,
    moved,
    normal,
    replica,
    require_double,
    slope_error,
    stacked,
)


def check_geometry(psi: Geometry, x: Var, seed: int = 0) -> Report:
    """Check the laws of a geometry around a float64 point x inside its domain: ∇ψ*(∇ψ(x)) = x, …

    Raises a :class:`~legato.errors.LawError` for the first law that does not hold.

    >>> legato.testing.check_geometry(lg.Entropy(), torch.ones(3).double())["inverse maps"] < 1e-9
    True
    """
    require_double(x)
    psi.require_interior(x, "x")
    laws = (inverse_maps, mirror, distance, three_points, metric, transport, modulus, centre,
            batches, derivatives)  # fmt: skip
    return Report(repr(psi), tuple(law(psi, x, seed) for law in laws))


def interior_points(psi: Geometry, x: Var, count: int, seed: int) -> list[Var]:
    """Random points inside the domain, found in mirror coordinates."""
    y, points = psi.mirror(x), [x]
    for s in range(seed, seed + count - 1):
        size, direction = 1.0, normal(y, s)
        while not bool(psi.mirror_interior(moved(y, size, direction)).all()) and size > 1e-9:
            size /= 2
        points.append(psi.unmirror(moved(y, size, direction)))
        if not bool(psi.interior(points[-1]).all()):
            raise LawError(
                "The law “unmirror leads inside” does not hold: a finite mirror variable close to "
                "∇ψ(x) is sent out of the domain. Look at unmirror() and interior()."
            )
    return points


def inverse_maps(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """∇ψ* and ∇ψ are inverse to each other."""
    errors = []
    for z in interior_points(psi, x, 5, seed):
        y = psi.mirror(z)
        back = psi.unmirror(y)
        errors += [apart(back, z, 1e-30), apart(psi.mirror(back), y)]
    return hold("inverse maps", worst(errors), 1e-9, "Look at mirror() and unmirror().")


def mirror(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """mirror is the derivative of the value, by central differences."""
    at = tree.copy(x)
    slopes = tree.leaves(tree.detach(psi.mirror(x)))
    error = slope_error(lambda: psi.value(at), tree.leaves(at), slopes, 3, seed)
    return hold("mirror = ∇ψ", error, 1e-6, "Look at value() and mirror(): they do not fit.")


def distance(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """D(x, z) = ψ(x) − ψ(z) − ⟨∇ψ(z), x − z⟩ ≥ 0, and 0 only for x = z."""
    errors = []
    for a, b in pairwise(interior_points(psi, x, 6, seed)):
        found, same = float(psi.distance(a, b)), abs(float(psi.distance(a, a)))
        linear = tree.inner(psi.mirror(b), tree_map(torch.sub, a, b))
        values = psi.value(a), psi.value(b)
        size = 1 + sum(abs(float(v)) for v in values)
        errors += [abs(found - float(values[0] - values[1] - linear)) / size, same / size]
        errors.append(0.0 if found > 0 else 1.0)
    return hold("Bregman distance", worst(errors), 1e-9, "Look at distance().")


def three_points(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """D(x, z) − D(x, y) − D(y, z) = ⟨∇ψ(y) − ∇ψ(z), x − y⟩."""
    a, b, c = interior_points(psi, x, 3, seed)
    parts = [psi.distance(a, c), psi.distance(a, b), psi.distance(b, c)]
    turn = tree_map(torch.sub, psi.mirror(b), psi.mirror(c))
    right = tree.inner(turn, tree_map(torch.sub, a, b))
    error = abs(float(parts[0] - parts[1] - parts[2] - right)) / (1 + sum(map(float, parts)))
    return hold("three points", error, 1e-9, "Look at distance() and mirror().")


def metric(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """metric is the derivative of unmirror, and inverse_metric its inverse."""
    errors = []
    for z in interior_points(psi, x, 3, seed):
        y = psi.mirror(z)
        v = normal(y, seed + 7)
        ends = [psi.unmirror(moved(y, size, v)) for size in (H, -H)]
        slope = tree_map(lambda p, m: (p - m) / (2 * H), *ends)
        found = psi.metric(y, v)
        noise = 1e-9 * tree.length(z) / max(tree.length(slope), 1e-30)
        errors.append(max(0.0, apart(found, slope, 1e-30) - noise))
        errors.append(1e3 * apart(psi.inverse_metric(y, found), v))
    return hold("metric", worst(errors), 1e-6, "Look at metric() and inverse_metric().")


def transport(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """transport(y, z, w) = ∇²ψ*(z) ∇²ψ(∇ψ*(y)) w."""
    ys = [psi.mirror(z) for z in interior_points(psi, x, 3, seed)]
    w = normal(ys[0], seed + 8)
    errors = [
        apart(psi.transport(a, b, w), psi.metric(b, psi.inverse_metric(a, w)), 1e-30)
        for a, b in pairwise(ys)
    ]
    return hold("transport", worst(errors), 1e-8, "Look at transport(): perhaps it is the inverse.")


def modulus(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """D(x, z) ≥ m/2 ‖x − z‖² on lo ≤ x ≤ hi; measured as m/ψ″ along single entries."""
    points = interior_points(psi, x, 6, seed)
    ends = tree_map(lambda *ts: (float(torch.stack(ts).amin()), float(torch.stack(ts).amax())),
                    points[0], *points[1:])  # fmt: skip
    m = psi.modulus(ends)
    if m is None:
        return skip("modulus", "unknown, so that steps need a line search")
    least = float(torch.as_tensor(m, dtype=torch.float64).detach().amin())
    ratios = [0.0]
    for z in points:
        y = psi.mirror(z)
        for unit in torch.eye(tree.flatten(y).numel(), dtype=torch.float64)[:64]:
            e = tree.unflatten(y, unit)
            ratios.append(least / tree.dot(psi.inverse_metric(y, e), e))
    look = "modulus() is too large: steps would be too long."
    return hold("modulus", worst(ratios), 1 + 1e-9, look)


def centre(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """The neutral start lies inside the domain."""
    inside = psi.interior(psi.unmirror(psi.centre(x)))
    return hold("centre inside", float((~inside).sum()), 0, "Look at centre().")


def batches(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """values(x, batch) are the values of the elements, and mirror maps do not mix."""
    law = "batch = elements"
    if psi.coupled is None:
        return skip(law, "coupled is None, so that there is no batch")
    points = interior_points(psi, x, 3, seed)
    together = stacked(*points)
    mirrors = stacked(*map(psi.mirror, points))
    errors = [
        apart(psi.values(together, 1), torch.stack([psi.value(z) for z in points])),
        apart(psi.mirror(together), mirrors),
        apart(psi.unmirror(mirrors), together),
    ]
    return hold(law, worst(errors), 1e-10, "Elements of a batch must not see each other.")


def derivatives(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """The derivatives of ∇ψ and ∇ψ*, in their argument and in every tensor of ψ."""
    (psi, x, y), leaves = replica((psi, x, tree.detach(psi.mirror(x))))
    error = slope_error(lambda: (psi.mirror(x), psi.unmirror(y)), leaves, seed=seed)
    return hold("derivatives", error, 1e-6, "A tensor is detached, or a derivative is wrong.")
