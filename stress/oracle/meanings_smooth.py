"""Quadratics, kernels, barriers and data terms from their definitions, as cones."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.cones import Program, Rows, constant, joined
from oracle.matrices import Numbers, Shape, matrix_of
from oracle.spreading import Arguments, slices, spread

# --- quadratics and kernels -----------------------------------------------------------------------


def zero(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    pass


def linear(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise(x, spread(a("c"), shape))


def squared_norm(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise_squares(x, spread(a("weight", 1.0), shape))


def squared_distance(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise_squares(x.minus(spread(a("y"), shape)), spread(a("weight", 1.0), shape))


def negative_entropy(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise(p.above_entropy(x), spread(a("weight", 1.0), shape))


def bregman_term(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """ε ψ(x)."""
    spec = a("geometry")
    _KERNELS[spec["geometry"]](p, x, shape, a("weight", 1.0), spec, a.numbers)  # type: ignore[attr-defined]


def _interval_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    """r²/2 Σ (1 + t) log(1 + t) + (1 − t) log(1 − t) with t = (x − m)/r."""
    lo, hi = spread(numbers(spec["lo"]), shape), spread(numbers(spec["hi"]), shape)
    r = (hi - lo) / 2
    t = x.minus((lo + hi) / 2).times(1 / r)
    w = 0.5 * r * r * spread(weight, shape)
    p.minimise(p.above_entropy(t.plus(1.0)), w)
    p.minimise(p.above_entropy(t.times(-1.0).plus(1.0)), w)


def _burg_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    p.minimise(p.below_logarithm(x).times(-1.0), spread(weight, shape))


def _quartic_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    """¼‖x‖⁴ + ½‖x‖² along the last axis."""
    for entries in slices(shape, -1):
        t = p.above_square(x[entries])
        p.minimise_squares(t, 0.5 * float(np.squeeze(weight)))
        p.minimise(t, 0.5 * float(np.squeeze(weight)))


def _polyhedral_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    """Σ s log s with s = b − Ax."""
    A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))
    for entries in slices(shape, -1):
        slack = x[entries].through(-A).plus(b)
        p.minimise(p.above_entropy(slack), float(np.squeeze(weight)))


def _euclidean_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    p.minimise_squares(x, spread(weight, shape))


def _entropy_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    p.minimise(p.above_entropy(x), spread(weight, shape))


_KERNELS = {
    "Euclidean": _euclidean_kernel,
    "Entropy": _entropy_kernel,
    "Interval": _interval_kernel,
    "Burg": _burg_kernel,
    "Quartic": _quartic_kernel,
    "Polyhedral": _polyhedral_kernel,
}


def log_barrier(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """−μ Σ log(x − lo) + log(hi − x)."""
    mu = spread(a("mu"), shape)
    lo, hi = spread(a("lo", 0.0), shape), spread(a("hi", np.inf), shape)
    for end, sign in ((lo, 1.0), (hi, -1.0)):
        entries = np.flatnonzero(np.isfinite(end))
        if len(entries):
            slack = x[entries].minus(end[entries]).times(sign)
            p.minimise(p.below_logarithm(slack).times(-1.0), mu[entries])


def symmetric_barrier(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    radius = spread(a("radius", 1.0), shape)
    ends = {"lo": -radius.reshape(shape), "hi": radius.reshape(shape), "mu": a("mu")}
    log_barrier(p, x, shape, lambda name, default=None: ends.get(name, default))


# --- data terms -----------------------------------------------------------------------------------


def least_squares(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """w/2 ‖Ax − b‖²."""
    K, out = matrix_of(a("operator"), shape, a.numbers)  # type: ignore[attr-defined]
    residual = x.through(K).minus(spread(a("b"), out))
    p.minimise_squares(residual, spread(a("weight", 1.0), out))


def quadratic(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """½⟨x, Qx⟩ + ⟨c, x⟩ along the last axis."""
    Q = np.asarray(a.numbers(a("Q")["matrix"]))  # type: ignore[attr-defined]
    for entries in slices(shape, -1):
        p.minimise_squares(x[entries], (Q + Q.T) / 2)
    p.minimise(x, spread(a("c"), shape))


def _above_softplus(p: Program, rows: Rows) -> Rows:
    """t ≥ log(1 + exp r), as exp(r − t) + exp(−t) ≤ 1."""
    t = p.variables(len(rows), 1.0)
    parts = p.above_exponential(rows.minus(t)), p.above_exponential(t.times(-1.0))
    p.nonnegative(parts[0].plus(parts[1]).times(-1.0).plus(1.0), 1.0)
    return t


def logistic(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ log(1 + exp(−b_i (Ax)_i))."""
    K, out = matrix_of(a("operator"), shape, a.numbers)  # type: ignore[attr-defined]
    margin = x.through(K).times(-spread(a("b"), out))
    p.minimise(_above_softplus(p, margin))


def smooth(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    spec = a("callable")
    numbers = a.numbers  # type: ignore[attr-defined]
    weight, c = numbers(spec["weight"]), spread(numbers(spec["c"]), shape)
    if spec["callable"] == "pseudo Huber":  # Σ w √(1 + (x − c)²)
        for i in range(len(x)):
            t = p.variables(1)
            p.norm_below(joined(x[i].minus(c[i]), constant(1.0)), t)
            p.minimise(t, spread(weight, shape)[i])
    elif spec["callable"] == "softplus":  # Σ w log(1 + exp(x − c))
        p.minimise(_above_softplus(p, x.minus(c)), spread(weight, shape))
    elif spec["callable"] == "fourth power":  # Σ w/4 (x − c)⁴
        for i in range(len(x)):
            p.minimise_squares(p.above_square(x[i].minus(c[i])), 0.5 * spread(weight, shape)[i])
    elif spec["callable"] == "log-sum-exp":  # Σ_slices w log Σ exp(x − c)
        for entries in slices(shape, -1):
            t = p.variables(1, 1.0)
            shifted = x[entries].minus(c[entries]).minus(t.through(np.ones((len(entries), 1))))
            total = p.above_exponential(shifted).through(np.ones((1, len(entries))))
            p.nonnegative(total.times(-1.0).plus(1.0), 1.0)
            p.minimise(t, float(np.squeeze(weight)))
    else:
        raise KeyError(spec["callable"])
