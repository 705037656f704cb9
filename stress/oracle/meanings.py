"""Every term from its definition, as cones: what f is, said without legato.

A meaning takes (program, rows, shape, arguments): rows are the entries of the term's argument, and
arguments(name, default) gives an array. It adds the term to the program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle import meanings_more as more
from oracle import meanings_prox as prox
from oracle import meanings_smooth as smooth
from oracle.cones import Program, Rows
from oracle.conjugates import CONJUGATES
from oracle.matrices import Numbers, Shape, matrix_of
from oracle.spreading import Meaning, slices, spread

MEANINGS: dict[str, Meaning] = {
    "L1": prox.l1,
    "AsymmetricL1": prox.asymmetric_l1,
    "GroupL1": prox.group_l1,
    "NonNegative": prox.nonnegative,
    "Box": prox.box,
    "LInfBall": prox.linf_ball,
    "Simplex": prox.simplex,
    "L2Ball": prox.l2_ball,
    "Equality": prox.equality,
    "Huber": more.huber,
    "Quantile": more.quantile,
    "Hinge": more.hinge,
    "L2Norm": more.l2_norm,
    "LInfNorm": more.linf_norm,
    "MaxEntry": more.max_entry,
    "L1Ball": more.l1_ball,
    "SortedL1": more.sorted_l1,
    "SparseGroupL1": more.sparse_group_l1,
    "Monotone": more.monotone,
    "TotalVariation1D": more.total_variation_1d,
    "Zero": smooth.zero,
    "Linear": smooth.linear,
    "SquaredNorm": smooth.squared_norm,
    "SquaredDistance": smooth.squared_distance,
    "NegativeEntropy": smooth.negative_entropy,
    "BregmanTerm": smooth.bregman_term,
    "LogBarrier": smooth.log_barrier,
    "SmoothAbsolute": prox.smooth_absolute,
    "LInfBall smoothed": smooth.symmetric_barrier,
    "LeastSquares": smooth.least_squares,
    "Quadratic": smooth.quadratic,
    "Logistic": smooth.logistic,
    "Smooth": smooth.smooth,
}

SMOOTHED = {
    "L1": "SmoothAbsolute",
    "NonNegative": "LogBarrier",
    "Box": "LogBarrier",
    "LInfBall": "LInfBall smoothed",
}


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


def stay_inside(
    p: Program, x: Rows, shape: Shape, spec: dict[str, Any] | None, numbers: Numbers
) -> None:
    """The closure of a geometry's domain, in which its iterates stay."""
    name = "Euclidean" if spec is None else spec["geometry"]
    if name in ("Entropy", "Burg"):
        p.nonnegative(x)
    elif name == "Interval":
        prox.between(p, x, spread(numbers(spec["lo"]), shape), spread(numbers(spec["hi"]), shape))  # type: ignore[index]
    elif name == "Polyhedral":
        A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))  # type: ignore[index]
        for entries in slices(shape, -1):
            p.nonnegative(x[entries].through(-A).plus(b))
