"""Norms and sets from their definitions, as cones."""

from __future__ import annotations

import numpy as np

from oracle.cones import Array, Program, Rows, constant, joined
from oracle.matrices import Shape
from oracle.spreading import Arguments, groups, slices, spread

# --- norms ----------------------------------------------------------------------------------------


def l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w_i |x_i|."""
    p.minimise(p.above_absolute(x), spread(a("weight", 1.0), shape))


def asymmetric_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ max(lo_i x_i, hi_i x_i) = Σ lo_i x_i + (hi_i − lo_i) max(x_i, 0); ±∞ is a constraint."""
    lo, hi = spread(a("lo", -1.0), shape), spread(a("hi", 1.0), shape)
    for i in range(len(x)):
        if np.isinf(lo[i]) or np.isinf(hi[i]):  # lo = −∞ forbids x < 0, hi = ∞ forbids x > 0
            p.nonnegative(x[i].times(1.0 if np.isinf(lo[i]) else -1.0))
            p.minimise(x[i], hi[i] if np.isinf(lo[i]) else lo[i])
            continue
        p.minimise(x[i], lo[i])
        if hi[i] > lo[i]:
            positive = p.variables(1)
            p.nonnegative(joined(positive, positive.minus(x[i])))
            p.minimise(positive, hi[i] - lo[i])


def group_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ_G w_G ‖x_G‖₂."""
    for entries, weight in groups(shape, a, "weight"):
        t = p.variables(1)
        p.norm_below(x[entries], t)
        p.minimise(t, weight)


def smooth_absolute(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w_i √(x_i² + μ²)."""
    weight, mu = spread(a("weight", 1.0), shape), spread(a("mu"), shape)
    for i in range(len(x)):
        t = p.variables(1)
        p.norm_below(joined(x[i], constant(mu[i])), t)
        p.minimise(t, weight[i])


# --- sets -----------------------------------------------------------------------------------------


def nonnegative(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.nonnegative(x)


def nonpositive(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.nonnegative(x.times(-1.0))


def between(p: Program, x: Rows, lo: Array, hi: Array) -> None:
    """lo ≤ x ≤ hi, with equations where both are one number: an interior needs them apart."""
    same = np.flatnonzero(lo == hi)
    if len(same):
        p.zero(x[same].minus(lo[same]))
    below = np.flatnonzero(np.isfinite(lo) & (lo != hi))
    if len(below):
        p.nonnegative(x[below].minus(lo[below]))
    above = np.flatnonzero(np.isfinite(hi) & (lo != hi))
    if len(above):
        p.nonnegative(x[above].times(-1.0).plus(hi[above]))


def box(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    between(p, x, spread(a("lo", -1.0), shape), spread(a("hi", 1.0), shape))


def linf_ball(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    radius = spread(a("radius", 1.0), shape)
    between(p, x, -radius, radius)


def simplex(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """x ≥ 0 and Σ x = 1 along an axis."""
    p.nonnegative(x)
    for entries in slices(shape, a("dim", -1)):
        p.zero(x[entries].through(np.ones((1, len(entries)))).minus(1.0))


def l2_ball(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, radius in groups(shape, a, "radius"):
        p.norm_below(x[entries], constant(radius))


def group_balls(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """‖x_G‖₂ ≤ w_G: the conjugate of a sum of group norms."""
    for entries, radius in groups(shape, a, "weight"):
        p.norm_below(x[entries], constant(radius))


def equality(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.zero(x.minus(spread(a("b"), shape)))
