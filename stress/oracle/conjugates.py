"""Conjugates f*(y) = sup ⟨x, y⟩ − f(x), as cones."""

from __future__ import annotations

import numpy as np

from oracle.cones import Program, Rows
from oracle.matrices import Shape
from oracle.meanings_prox import asymmetric_l1, between, box, group_balls, nonpositive
from oracle.spreading import Arguments, Meaning, groups, slices, spread


def _largest(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """max_i x_i along an axis: the conjugate of the simplex."""
    for entries in slices(shape, a("dim", -1)):
        t = p.variables(1)
        p.nonnegative(t.through(np.ones((len(entries), 1))).minus(x[entries]))
        p.minimise(t)


def _radius_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise(p.above_absolute(x), spread(a("radius", 1.0), shape))


def _radius_groups(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, radius in groups(shape, a, "radius"):
        t = p.variables(1)
        p.norm_below(x[entries], t)
        p.minimise(t, radius)


def _weight_linf(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    weight = spread(a("weight", 1.0), shape)
    between(p, x, -weight, weight)


def _inverse_squares(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """½ Σ y²/w."""
    p.minimise_squares(x, 1 / spread(a("weight", 1.0), shape))


def _distance_conjugate(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """½ Σ p²/w + ⟨y, p⟩."""
    p.minimise_squares(x, 1 / spread(a("weight", 1.0), shape))
    p.minimise(x, spread(a("y"), shape))


def _exponentials(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w exp(y/w − 1): the conjugate of Σ w x log x."""
    weight = spread(a("weight", 1.0), shape)
    p.minimise(p.above_exponential(x.times(1 / weight).minus(1.0)), weight)


def _at_c(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.zero(x.minus(spread(a("c"), shape)))


def _times_b(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise(x, spread(a("b"), shape))


def _at_zero(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.zero(x)


CONJUGATES: dict[str, Meaning] = {
    "L1": _weight_linf,
    "AsymmetricL1": box,
    "GroupL1": group_balls,
    "NonNegative": nonpositive,
    "Box": asymmetric_l1,
    "LInfBall": _radius_l1,
    "Simplex": _largest,
    "L2Ball": _radius_groups,
    "SquaredNorm": _inverse_squares,
    "SquaredDistance": _distance_conjugate,
    "NegativeEntropy": _exponentials,
    "Linear": _at_c,
    "Equality": _times_b,
    "Zero": _at_zero,
}
