"""Terms once more, as cvxpy writes them: what the oracle's cones are held against."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
from oracle.matrices import matrix_of
from oracle.truth import Element, Theta


def minimum(element: Element, theta: Theta) -> tuple[Any, float]:
    """Minimiser and minimum of one element's energy."""
    numbers = element._numbers(theta)
    xs = [cp.Variable(int(np.prod(s))) for s in element.shapes]
    total, constraints = 0, []
    for x, shape, geometry in zip(xs, element.shapes, element.geometries, strict=True):
        constraints += _domain(x, shape, geometry, numbers)
    for term in element.recipe["terms"]:
        if term["f"] == "joint":
            spec = term["args"]["callable"]
            A, B, b = (np.asarray(numbers(spec[k])) for k in ("A", "B", "b"))
            total += 0.5 * cp.sum_squares(A @ xs[0] + B @ xs[1] - b)
            continue
        block = term.get("block", 0)
        for one in _unstacked(term):
            value, own = _term(xs[block], element.shapes[block], one, numbers)
            total, constraints = total + value, constraints + own
    problem = cp.Problem(cp.Minimize(total), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # 1e-10 is more than it can mostly reach
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return np.concatenate([x.value for x in xs]), float(problem.value)


def _unstacked(term: dict[str, Any]) -> list[dict[str, Any]]:
    if term.get("blocks") is None:
        return [term]
    pairs = zip(term["op"]["operators"], term["blocks"], strict=True)
    scale = {"scale": term["scale"]} if term.get("scale") is not None else {}
    return [{**block, "op": operator, **scale} for operator, block in pairs]


def _term(x: Any, shape: Any, term: dict[str, Any], numbers: Any) -> tuple[Any, list[Any]]:
    if term.get("op") is not None:
        K, shape = matrix_of(term["op"], shape, numbers)
        x = K @ x
    if term.get("shift") is not None:
        x = x - np.broadcast_to(numbers(term["shift"]), shape).ravel()
    factor = 1.0 if term.get("scale") is None else float(np.squeeze(numbers(term["scale"])))
    args = term.get("args", {})

    def full(name: str, default: Any = 1.0, of: Any = shape) -> Any:
        return np.broadcast_to(numbers(args.get(name, default)), of).ravel().astype(float)

    name = term["f"]
    if term.get("conjugate"):
        name = f"{name}*"
    elif term.get("smoothed") is not None:
        name = f"{name} smoothed"
        mu = np.broadcast_to(numbers(term["smoothed"]), shape).ravel()
        args = {**args, "mu": mu.reshape(shape)}
    value, constraints = _named(name, x, shape, args, full, numbers)
    return factor * value, constraints


def _named(
    name: str, x: Any, shape: Any, args: Any, full: Any, numbers: Any
) -> tuple[Any, list[Any]]:
    dim = args.get("dim", -1)
    if name == "L1" or name == "LInfBall*":
        return full("weight" if name == "L1" else "radius") @ cp.abs(x), []
    if name in ("AsymmetricL1", "Box*"):
        lo, hi = full("lo", -1.0), full("hi", 1.0)
        finite_lo, finite_hi = np.isfinite(lo), np.isfinite(hi)
        slopes = cp.maximum(
            cp.multiply(np.where(finite_lo, lo, hi), x), cp.multiply(np.where(finite_hi, hi, lo), x)
        )
        held = [x[i] >= 0 for i in np.flatnonzero(~finite_lo)]
        return cp.sum(slopes), held + [x[i] <= 0 for i in np.flatnonzero(~finite_hi)]
    if name in ("GroupL1", "L2Ball*", "L2Ball", "GroupL1*"):
        groups = _groups(shape, args, dim, full, "radius" if "L2Ball" in name else "weight")
        if name in ("GroupL1", "L2Ball*"):
            return sum(w * cp.norm(x[i], 2) for i, w in groups), []
        return 0, [cp.norm(x[i], 2) <= w for i, w in groups]
    if name in ("NonNegative", "NonNegative*"):
        return 0, [x >= 0 if name == "NonNegative" else x <= 0]
    if name in ("Box", "AsymmetricL1*"):
        lo, hi = full("lo", -1.0), full("hi", 1.0)
        below = [x[i] >= lo[i] for i in np.flatnonzero(np.isfinite(lo))]
        return 0, below + [x[i] <= hi[i] for i in np.flatnonzero(np.isfinite(hi))]
    if name in ("LInfBall", "L1*"):
        return 0, [cp.abs(x) <= full("radius" if name == "LInfBall" else "weight")]
    if name in ("Simplex", "Simplex*"):
        rows = _slices(shape, dim)
        if name == "Simplex*":
            return sum(cp.max(x[i]) for i in rows), []
        return 0, [x >= 0, *(cp.sum(x[i]) == 1 for i in rows)]
    if name in _MORE:
        return _MORE[name](x, shape, args, full, dim)
    if name == "Equality":
        return 0, [x == full("b")]
    if name == "Zero":
        return 0, []
    if name == "Linear":
        return full("c") @ x, []
    if name == "SquaredNorm":
        return 0.5 * full("weight") @ cp.square(x), []
    if name == "SquaredDistance":
        return 0.5 * full("weight") @ cp.square(x - full("y")), []
    if name == "NegativeEntropy":
        return -(full("weight") @ cp.entr(x)), []
    if name == "BregmanTerm":
        return _kernel(x, shape, args["geometry"], numbers(args.get("weight", 1.0)), numbers), []
    if name in ("SmoothAbsolute", "L1 smoothed"):
        mu, weight = full("mu"), full("weight")
        return sum(
            w * cp.norm(cp.hstack([x[i], m]), 2)
            for i, (w, m) in enumerate(zip(weight, mu, strict=True))
        ), []
    if name in ("LogBarrier", "NonNegative smoothed", "Box smoothed", "LInfBall smoothed"):
        if name.startswith("LInf"):
            lo, hi = -full("radius"), full("radius")
        else:
            lo = full("lo", -1.0 if name.startswith("Box") else 0.0)
            hi = full("hi", 1.0 if name.startswith("Box") else np.inf)
        mu = full("mu")
        return -sum(
            mu[i]
            * (
                (cp.log(x[i] - lo[i]) if np.isfinite(lo[i]) else 0)
                + (cp.log(hi[i] - x[i]) if np.isfinite(hi[i]) else 0)
            )
            for i in range(x.size)
        ), []
    if name in ("LeastSquares", "Logistic"):
        K, out = matrix_of(args["operator"], shape, numbers)
        b = full("b", of=out)
        if name == "Logistic":
            return cp.sum(cp.logistic(cp.multiply(-b, K @ x))), []
        return 0.5 * full("weight", of=out) @ cp.square(K @ x - b), []
    if name == "Quadratic":
        Q = np.asarray(numbers(args["Q"]["matrix"]))
        Q = (Q + Q.T) / 2
        quadratic = sum(cp.quad_form(x[i], cp.psd_wrap(Q)) for i in _slices(shape, -1))
        return 0.5 * quadratic + full("c") @ x, []
    if name == "Smooth":
        return _callable(x, shape, args["callable"], numbers), []
    raise KeyError(name)


def _one_each(shape: Any, dim: int, full: Any, name: str) -> list[tuple[Any, float]]:
    """(entries, number) of every slice along an axis."""
    kept = list(shape)
    kept[dim] = 1
    numbers = np.moveaxis(full(name, of=tuple(kept)).reshape(kept), dim, -1).ravel()
    return list(zip(_slices(shape, dim), numbers, strict=True))


def _norm_over_axes(x: Any, shape: Any, args: Any, full: Any, dim: int) -> tuple[Any, list[Any]]:
    axes = len(args["dims"]["axes"])
    entries = np.arange(int(np.prod(shape))).reshape(-1, int(np.prod(shape[-axes:])))
    weights = full("weight", of=(*shape[:-axes], *[1] * axes))
    return sum(w * cp.norm(x[i], 2) for i, w in zip(entries, weights, strict=True)), []


def _sorted(x: Any, shape: Any, args: Any, full: Any, dim: int) -> tuple[Any, list[Any]]:
    rows = full("weights").reshape(-1, shape[-1])
    total = 0
    for entries, row in zip(_slices(shape, -1), rows, strict=True):
        for k, step in enumerate(np.append(row[:-1] - row[1:], row[-1]), start=1):
            total += step * cp.sum_largest(cp.abs(x[entries]), k)
    return total, []


def _sparse_groups(x: Any, shape: Any, args: Any, full: Any, dim: int) -> tuple[Any, list[Any]]:
    groups = _groups(shape, args, dim, full, "group_weight")
    return full("weight") @ cp.abs(x) + sum(w * cp.norm(x[i], 2) for i, w in groups), []


_MORE = {
    "Huber": lambda x, shape, args, full, dim: (
        sum(
            0.5 * w * cp.huber(x[i], d)
            for i, (w, d) in enumerate(zip(full("weight"), full("delta"), strict=True))
        ),
        [],
    ),
    "Quantile": lambda x, shape, args, full, dim: (
        full("weight") @ cp.maximum(-full("tau")[0] * x, (1 - full("tau")[0]) * x),
        [],
    ),
    "Hinge": lambda x, shape, args, full, dim: (
        full("weight") @ cp.pos(1 - cp.multiply(full("b"), x)),
        [],
    ),
    "L2Norm": _norm_over_axes,
    "LInfNorm": lambda x, shape, args, full, dim: (
        sum(w * cp.norm(x[i], "inf") for i, w in _one_each(shape, dim, full, "weight")),
        [],
    ),
    "MaxEntry": lambda x, shape, args, full, dim: (
        sum(w * cp.max(x[i]) for i, w in _one_each(shape, dim, full, "weight")),
        [],
    ),
    "L1Ball": lambda x, shape, args, full, dim: (
        0,
        [cp.norm(x[i], 1) <= r for i, r in _one_each(shape, dim, full, "radius")],
    ),
    "SortedL1": _sorted,
    "SparseGroupL1": _sparse_groups,
    "Monotone": lambda x, shape, args, full, dim: (
        0,
        [cp.diff(x[i]) >= 0 for i in _slices(shape, dim) if len(i) > 1],
    ),
    "TotalVariation1D": lambda x, shape, args, full, dim: (
        sum(w * cp.tv(x[i]) for i, w in _one_each(shape, dim, full, "weight") if len(i) > 1),
        [],
    ),
}


def _callable(x: Any, shape: Any, spec: Any, numbers: Any) -> Any:
    weight = np.broadcast_to(numbers(spec["weight"]), shape).ravel()
    y = x - np.broadcast_to(numbers(spec["c"]), shape).ravel()
    if spec["callable"] == "pseudo Huber":
        return sum(w * cp.norm(cp.hstack([y[i], 1.0]), 2) for i, w in enumerate(weight))
    if spec["callable"] == "softplus":
        return weight @ cp.logistic(y)
    if spec["callable"] == "fourth power":
        return 0.25 * weight @ cp.power(y, 4)
    return sum(weight[0] * cp.log_sum_exp(y[i]) for i in _slices(shape, -1))


def _kernel(x: Any, shape: Any, spec: Any, weight: Any, numbers: Any) -> Any:
    full = np.broadcast_to(weight, shape).ravel()
    kind = spec["geometry"]
    if kind == "Euclidean":
        return 0.5 * full @ cp.square(x)
    if kind == "Entropy":
        return -(full @ cp.entr(x))
    if kind == "Burg":
        return -(full @ cp.log(x))
    if kind == "Quartic":
        norms = [cp.sum_squares(x[i]) for i in _slices(shape, -1)]
        return full[0] * sum(0.25 * cp.square(s) + 0.5 * s for s in norms)
    if kind == "Interval":
        lo, hi = (np.broadcast_to(numbers(spec[k]), shape).ravel() for k in ("lo", "hi"))
        r = (hi - lo) / 2
        t = cp.multiply(1 / r, x - (lo + hi) / 2)
        return -(0.5 * full * r * r) @ (cp.entr(1 + t) + cp.entr(1 - t))
    A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))
    return -full[0] * sum(cp.sum(cp.entr(b - A @ x[i])) for i in _slices(shape, -1))


def _domain(x: Any, shape: Any, spec: Any, numbers: Any) -> list[Any]:
    kind = "Euclidean" if spec is None else spec["geometry"]
    if kind in ("Entropy", "Burg"):
        return [x >= 0]
    if kind == "Interval":
        lo, hi = (np.broadcast_to(numbers(spec[k]), shape).ravel() for k in ("lo", "hi"))
        return [x >= lo, x <= hi]
    if kind == "Polyhedral":
        A, b = np.asarray(numbers(spec["A"])), np.asarray(numbers(spec["b"]))
        return [A @ x[i] <= b for i in _slices(shape, -1)]
    return []


def _slices(shape: Any, dim: int) -> list[Any]:
    every = np.arange(int(np.prod(shape))).reshape(shape)
    lines = np.apply_along_axis(lambda line: line, dim, every)
    return list(np.moveaxis(lines, dim, -1).reshape(-1, shape[dim]))


def _groups(shape: Any, args: Any, dim: int, full: Any, name: str) -> list[tuple[Any, float]]:
    if args.get("groups") is None:
        kept = list(shape)
        kept[dim] = 1
        weights = np.moveaxis(full(name, of=tuple(kept)).reshape(kept), dim, -1).ravel()
        return list(zip(_slices(shape, dim), weights, strict=True))
    labels = np.asarray(args["groups"]["ints"])
    count = int(labels.max()) + 1
    weights = full(name, of=(*shape[:-1], count)).reshape(-1, count)
    every = np.arange(int(np.prod(shape))).reshape(-1, shape[-1])
    return [
        (row[labels == g], w[g])
        for row, w in zip(every, weights, strict=True)
        for g in range(count)
    ]
