"""Every term from its definition, as cones: what f is, said without legato.

A meaning takes (program, rows, shape, arguments): rows are the entries of the term's argument, and
arguments(name, default) gives an array. It adds the term to the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.cones import Array, Program, Rows, constant, joined
from oracle.matrices import Numbers, Shape, matrix_of

Arguments = Callable[..., Any]
Meaning = Callable[[Program, Rows, Shape, Arguments], None]


def add_term(
    program: Program, rows: Rows, shape: Shape, term: dict[str, Any], numbers: Numbers
) -> None:
    """Add scale·f(Kx − c), or the conjugate of f, to a program; x are ``rows`` of this shape."""
    operator = term.get("op")
    if operator is not None and operator["op"] == "Stack":
        for part, block in zip(operator["operators"], term["blocks"], strict=True):
            add_term(program, rows, shape, {**block, "op": part, **_outer(term)}, numbers)
        return
    if operator is not None:
        K, shape = matrix_of(operator, shape, numbers)
        rows = rows.through(K)
    if term.get("shift") is not None:
        rows = rows.minus(np.broadcast_to(numbers(term["shift"]), shape).ravel())
    factor = 1.0 if term.get("scale") is None else float(np.squeeze(numbers(term["scale"])))

    def arguments(name: str, default: Any = None) -> Any:
        value = term.get("args", {}).get(name, default)
        if isinstance(value, dict) or value is None or isinstance(value, int):
            return value  # an operator, a geometry, an axis
        return np.asarray(numbers(value))

    before = len(program.squares), len(program.linear)
    table = CONJUGATES if term.get("conjugate") else MEANINGS
    name = term["f"]
    if term.get("smoothed") is not None:
        name, own = SMOOTHED[name], arguments
        mu = np.asarray(numbers(term["smoothed"]))

        def arguments(name: str, default: Any = None) -> Any:
            return mu if name == "mu" else own(name, default)

    arguments.numbers = numbers  # type: ignore[attr-defined]
    table[name](program, rows, shape, arguments)
    _scale(program, before, factor)


def _outer(term: dict[str, Any]) -> dict[str, Any]:
    return {} if term.get("scale") is None else {"scale": term["scale"]}


def _scale(program: Program, before: tuple[int, int], factor: float) -> None:
    """Multiply what a term has just added to the objective; constraints stay as they are."""
    if factor == 1.0:
        return
    for i in range(before[0], len(program.squares)):
        rows, weight = program.squares[i]
        program.squares[i] = rows, factor * weight
    for i in range(before[1], len(program.linear)):
        program.linear[i] = program.linear[i].times(factor)


def spread(value: Any, shape: Shape) -> Array:
    return np.broadcast_to(value, shape).ravel().astype(float)


def _slices(shape: Shape, dim: int) -> list[Array]:
    """Indices of the slices along an axis, in the order of the norms that keep it with size one."""
    index = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), dim, -1)
    return list(index.reshape(-1, shape[dim]))


def _one_each(value: Any, shape: Shape, dim: int) -> Array:
    """One number a slice."""
    kept = tuple(1 if axis == dim % len(shape) else size for axis, size in enumerate(shape))
    return np.moveaxis(np.broadcast_to(value, kept), dim, -1).ravel().astype(float)


# --- norms ------------------------------------------------------------------------------------------


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


def _groups(shape: Shape, a: Arguments, name: str) -> list[tuple[Array, float]]:
    """(entries, weight) of every group."""
    labels = a("groups")
    if labels is None:
        dim = a("dim", -1)
        weights = _one_each(a(name, 1.0), shape, dim)
        return list(zip(_slices(shape, dim), weights, strict=True))
    labels = np.asarray(labels["ints"])
    count = labels.max() + 1
    weights = np.broadcast_to(a(name, 1.0), (*shape[:-1], count)).reshape(-1, count)
    index = np.arange(int(np.prod(shape))).reshape(-1, shape[-1])
    return [
        (index[row][labels == g], float(weights[row][g]))
        for row in range(len(index))
        for g in range(count)
    ]


def group_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ_G w_G ‖x_G‖₂."""
    for entries, weight in _groups(shape, a, "weight"):
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


# --- sets -------------------------------------------------------------------------------------------


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
    for entries in _slices(shape, a("dim", -1)):
        p.zero(x[entries].through(np.ones((1, len(entries)))).minus(1.0))


def l2_ball(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, radius in _groups(shape, a, "radius"):
        p.norm_below(x[entries], constant(radius))


def group_balls(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """‖x_G‖₂ ≤ w_G: the conjugate of a sum of group norms."""
    for entries, radius in _groups(shape, a, "weight"):
        p.norm_below(x[entries], constant(radius))


def equality(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.zero(x.minus(spread(a("b"), shape)))


# --- quadratics and kernels -------------------------------------------------------------------------


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
    for entries in _slices(shape, -1):
        t = p.above_square(x[entries])
        p.minimise_squares(t, 0.5 * float(np.squeeze(weight)))
        p.minimise(t, 0.5 * float(np.squeeze(weight)))


def _polyhedral_kernel(
    p: Program, x: Rows, shape: Shape, weight: Any, spec: Any, numbers: Numbers
) -> None:
    """Σ s log s with s = b − Ax."""
    A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))
    for entries in _slices(shape, -1):
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
    for slack, known in ((x.minus(np.where(np.isfinite(lo), lo, 0)), np.isfinite(lo)),
                         (x.times(-1.0).plus(np.where(np.isfinite(hi), hi, 0)), np.isfinite(hi))):  # fmt: skip
        entries = np.flatnonzero(known)
        if len(entries):
            p.minimise(p.below_logarithm(slack[entries]).times(-1.0), mu[entries])


def _symmetric_barrier(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    radius = spread(a("radius", 1.0), shape)
    ends = {"lo": -radius.reshape(shape), "hi": radius.reshape(shape), "mu": a("mu")}
    log_barrier(p, x, shape, lambda name, default=None: ends.get(name, default))


# --- data terms -------------------------------------------------------------------------------------


def least_squares(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """w/2 ‖Ax − b‖²."""
    K, out = matrix_of(a("operator"), shape, a.numbers)  # type: ignore[attr-defined]
    residual = x.through(K).minus(spread(a("b"), out))
    p.minimise_squares(residual, spread(a("weight", 1.0), out))


def quadratic(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """½⟨x, Qx⟩ + ⟨c, x⟩ along the last axis, by a square root of Q."""
    Q, c = np.asarray(a.numbers(a("Q")["matrix"])), spread(a("c"), shape)  # type: ignore[attr-defined]
    values, vectors = np.linalg.eigh((Q + Q.T) / 2)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    for entries in _slices(shape, -1):
        p.minimise_squares(x[entries].through(root))
    p.minimise(x, c)


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
        for entries in _slices(shape, -1):
            t = p.variables(1, 1.0)
            shifted = x[entries].minus(c[entries]).minus(t.through(np.ones((len(entries), 1))))
            total = p.above_exponential(shifted).through(np.ones((1, len(entries))))
            p.nonnegative(total.times(-1.0).plus(1.0), 1.0)
            p.minimise(t, float(np.squeeze(weight)))
    else:
        raise KeyError(spec["callable"])


MEANINGS: dict[str, Meaning] = {
    "L1": l1,
    "AsymmetricL1": asymmetric_l1,
    "GroupL1": group_l1,
    "NonNegative": nonnegative,
    "Box": box,
    "LInfBall": linf_ball,
    "Simplex": simplex,
    "L2Ball": l2_ball,
    "Equality": equality,
    "Zero": zero,
    "Linear": linear,
    "SquaredNorm": squared_norm,
    "SquaredDistance": squared_distance,
    "NegativeEntropy": negative_entropy,
    "BregmanTerm": bregman_term,
    "LogBarrier": log_barrier,
    "SmoothAbsolute": smooth_absolute,
    "LInfBall smoothed": _symmetric_barrier,
    "LeastSquares": least_squares,
    "Quadratic": quadratic,
    "Logistic": logistic,
    "Smooth": smooth,
}

SMOOTHED = {
    "L1": "SmoothAbsolute",
    "NonNegative": "LogBarrier",
    "Box": "LogBarrier",
    "LInfBall": "LInfBall smoothed",
}


# --- conjugates -------------------------------------------------------------------------------------


def _largest(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """max_i x_i along an axis: the conjugate of the simplex."""
    for entries in _slices(shape, a("dim", -1)):
        t = p.variables(1)
        p.nonnegative(t.through(np.ones((len(entries), 1))).minus(x[entries]))
        p.minimise(t)


def _radius_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    p.minimise(p.above_absolute(x), spread(a("radius", 1.0), shape))


def _radius_groups(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, radius in _groups(shape, a, "radius"):
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


# --- what a geometry forbids ------------------------------------------------------------------------


def stay_inside(
    p: Program, x: Rows, shape: Shape, spec: dict[str, Any] | None, numbers: Numbers
) -> None:
    """The closure of a geometry's domain, in which its iterates stay."""
    name = "Euclidean" if spec is None else spec["geometry"]
    if name in ("Entropy", "Burg"):
        p.nonnegative(x)
    elif name == "Interval":
        between(p, x, spread(numbers(spec["lo"]), shape), spread(numbers(spec["hi"]), shape))  # type: ignore[index]
    elif name == "Polyhedral":
        A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))  # type: ignore[index]
        for entries in _slices(shape, -1):
            p.nonnegative(x[entries].through(-A).plus(b))
