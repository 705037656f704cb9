"""The laws of Legendre functions."""

from __future__ import annotations

from itertools import pairwise

import torch

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var, tree_map
from legato.geometry import Geometry
from legato.testing import sampling
from legato.testing.report import Measured, Report, hold, skip
from legato.testing.sampling import H, apart, batch_law, minus, moved, normal, replica, slope_errors


def check_geometry(psi: Geometry, x: Var, seed: int = 0) -> Report:
    """Check the laws of a geometry around a float64 point x inside its domain, as ∇ψ*(∇ψ(x)) = x.

    Raises a :class:`~legato.errors.LawError` for the first law that does not hold.

    >>> legato.testing.check_geometry(lg.Entropy(), torch.ones(3).double())["inverse maps"] < 1e-9
    True
    """
    sampling.require_double(x)
    psi.require_interior(x, "x")
    laws = (inverse_maps, mirror, distance, metric, transport, lost, modulus, batches, derivatives)
    return Report(repr(psi), tuple(law(psi, x, seed) for law in laws))


def interior_points(psi: Geometry, x: Var, count: int, seed: int) -> list[Var]:
    """Random points inside the domain, found in mirror coordinates."""
    y, points = psi.mirror(x), [x]
    for s in range(seed, seed + count - 1):
        candidates = [moved(y, size, normal(y, s)) for size in (1.0, 0.3, 0.1, 0.01, 0.0)]
        near = next(z for z in candidates if bool(psi.mirror_interior(z).all()))
        points.append(psi.unmirror(near))
    return points


def inverse_maps(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """∇ψ* and ∇ψ are inverse to each other, and ∇ψ* leads inside, from the centre too."""
    errors, centre = [], psi.unmirror(psi.centre(x))
    for z in (centre, *interior_points(psi, x, 5, seed)):
        y = psi.mirror(z)
        back = psi.unmirror(y)
        outside = not bool(psi.interior(z).all())
        errors += [apart(back, z, 1e-30), apart(psi.mirror(back), y), float(outside)]
    look = "Look at mirror(), unmirror(), interior() and centre()."
    return hold("inverse maps", errors, 1e-9, look)


def mirror(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """mirror is the derivative of the value, by central differences."""
    at, slopes = tree.copy(x), tree.leaves(tree.detach(psi.mirror(x)))
    errors = slope_errors(lambda: psi.value(at), tree.leaves(at), slopes, seed)
    return hold("mirror = ∇ψ", errors, 1e-6, "Look at value() and mirror(): they do not fit.")


def distance(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """D(a, b) = ψ(a) − ψ(b) − ⟨∇ψ(b), a − b⟩ > 0 unless a = b, and the three-point identity."""
    errors = []
    points = interior_points(psi, x, 6, seed)
    for a, b, c in zip(points, points[1:], points[2:], strict=False):
        D, size = psi.distance, 1 + sum(abs(as_number(psi.value(z))) for z in (a, b, c))
        linear = tree.dot(psi.mirror(b), minus(a, b))
        turn = tree.dot(minus(psi.mirror(b), psi.mirror(c)), minus(a, b))
        errors += [abs(as_number(D(a, b) - psi.value(a) + psi.value(b)) + linear) / size]
        errors += [abs(as_number(D(a, c) - D(a, b) - D(b, c)) - turn) / size]
        errors += [abs(as_number(D(a, a))) / size, float(D(a, b) <= 0)]
    return hold("Bregman distance", errors, 1e-9, "Look at distance().")


def metric(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """metric is the derivative of unmirror, and inverse_metric its inverse."""
    errors = []
    for z in interior_points(psi, x, 3, seed):
        y = psi.mirror(z)
        v = normal(y, seed + 7)
        ends = [psi.unmirror(moved(y, size, v)) for size in (H, -H)]
        slope = tree_map(lambda p, m: (p - m) / (2 * H), *ends)
        noise = 1e-9 * tree.length(z) / max(tree.length(slope), 1e-30)
        errors.append(apart(psi.metric(y, v), slope, 1e-30) - noise)
        errors.append(apart(psi.inverse_metric(y, psi.metric(y, v)), v))
    return hold("metric", errors, 1e-6, "Look at metric() and inverse_metric().")


def transport(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """transport(y, z, w) = ∇²ψ*(z) ∇²ψ(∇ψ*(y)) w."""
    ys = [psi.mirror(z) for z in interior_points(psi, x, 3, seed)]
    w = normal(ys[0], seed + 8)
    errors = [
        apart(psi.transport(a, b, w), psi.metric(b, psi.inverse_metric(a, w)), 1e-30)
        for a, b in pairwise(ys)
    ]
    return hold("transport", errors, 1e-8, "Look at transport(): perhaps it is the inverse.")


def lost(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """A cotangent that is NaN comes out of every map as NaN: a zero would look healthy."""
    y = psi.mirror(x)
    w = tree_map(lambda t: torch.full_like(t, torch.nan), y)
    maps = (psi.metric(y, w), psi.inverse_metric(y, w), psi.transport(y, y, w))
    swallowed = [bool(torch.isfinite(t).any()) for carried in maps for t in tree.leaves(carried)]
    look = "metric(), inverse_metric() or transport() replaces what is no number."
    return hold("NaN stays NaN", [float(s) for s in swallowed], 0.0, look)


def modulus(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """D(x, z) ≥ m/2 ‖x − z‖² on lo ≤ x ≤ hi; measured as m/ψ″ along single entries."""
    points = interior_points(psi, x, 6, seed)
    together = tree_map(lambda *ts: torch.stack(ts), *points)
    m = psi.modulus(tree_map(lambda t: (float(t.amin()), float(t.amax())), together))
    if m is None:
        return skip("modulus", "unknown, so that steps need a line search")
    least = float(torch.as_tensor(m, dtype=torch.float64).detach().amin())
    ratios = []
    for y in map(psi.mirror, points):
        for unit in torch.eye(tree.flatten(y).numel(), dtype=torch.float64)[:64]:
            e = tree.unflatten(y, unit)
            ratios.append(least / tree.dot(psi.inverse_metric(y, e), e))
    look = "modulus() is too large: steps would be too long."
    return hold("modulus", ratios, 1 + 1e-9, look)


def batches(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """values(x, batch) are the values of the elements, and mirror maps do not mix."""
    points = interior_points(psi, x, 3, seed)
    values = (lambda z: psi.values(z, z.ndim - x.ndim), points)
    mirrors = [psi.mirror(z) for z in points]
    return batch_law(psi.coupled, values, (psi.mirror, points), (psi.unmirror, mirrors))


def derivatives(psi: Geometry, x: Var, seed: int = 0) -> Measured:
    """The derivatives of ∇ψ and ∇ψ*, in their argument and in every tensor of ψ."""
    (psi, x, y), leaves = replica((psi, x, tree.detach(psi.mirror(x))))
    errors = slope_errors(lambda: (psi.mirror(x), psi.unmirror(y)), leaves, seed=seed)
    return hold("derivatives", errors, 1e-6, "A tensor is detached, or a derivative is wrong.")
