"""Losses, norms over axes and terms of sequences from their definitions, as cones."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.cones import Program, Rows, joined
from oracle.matrices import Shape
from oracle.meanings_prox import group_l1, l1
from oracle.spreading import Arguments, one_each, slices, spread


def huber(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w min_z ½(x − z)² + δ|z|."""
    weight, delta = spread(a("weight", 1.0), shape), spread(a("delta", 1.0), shape)
    z = p.variables(len(x))
    p.minimise_squares(x.minus(z), weight)
    p.minimise(p.above_absolute(z), weight * delta)


def _positive_part(p: Program, rows: Rows) -> Rows:
    t = p.variables(len(rows))
    p.nonnegative(joined(t, t.minus(rows)))
    return t


def quantile(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w max(−τx, (1 − τ)x) = Σ w (max(x, 0) − τx)."""
    weight, tau = spread(a("weight", 1.0), shape), spread(a("tau", 0.5), shape)
    p.minimise(_positive_part(p, x), weight)
    p.minimise(x, -weight * tau)


def hinge(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ w max(0, 1 − bx)."""
    margin = x.times(-spread(a("b"), shape)).plus(1.0)
    p.minimise(_positive_part(p, margin), spread(a("weight", 1.0), shape))


def l2_norm(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """w‖x‖₂ over axes that come last."""
    axes = len(a("dims")["axes"])
    size = int(np.prod(shape[-axes:]))
    weights = np.broadcast_to(a("weight", 1.0), (*shape[:-axes], *[1] * axes)).ravel()
    for number, weight in enumerate(weights):
        t = p.variables(1)
        p.norm_below(x[number * size : (number + 1) * size], t)
        p.minimise(t, float(weight))


def _weighted_slices(shape: Shape, a: Arguments, name: str) -> Any:
    dim = a("dim", -1)
    return zip(slices(shape, dim), one_each(a(name, 1.0), shape, dim), strict=True)


def linf_norm(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, weight in _weighted_slices(shape, a, "weight"):
        t = p.variables(1)
        above = t.through(np.ones((len(entries), 1)))
        p.nonnegative(joined(above.minus(x[entries]), above.plus(x[entries])))
        p.minimise(t, weight)


def max_entry(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, weight in _weighted_slices(shape, a, "weight"):
        t = p.variables(1)
        p.nonnegative(t.through(np.ones((len(entries), 1))).minus(x[entries]))
        p.minimise(t, weight)


def l1_ball(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, radius in _weighted_slices(shape, a, "radius"):
        total = p.above_absolute(x[entries]).through(np.ones((1, len(entries))))
        p.nonnegative(total.times(-1.0).plus(radius))


def sorted_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    """Σ_k (w_k − w_{k+1}) · the sum of the k largest |x|, which is min_t kt + Σ max(|x| − t, 0)."""
    n = shape[-1]
    weights = np.broadcast_to(a("weights"), shape).reshape(-1, n)
    for entries, row in zip(slices(shape, -1), weights, strict=True):
        size = p.above_absolute(x[entries])
        for k, step in enumerate(np.append(row[:-1] - row[1:], row[-1]), start=1):
            t = p.variables(1)
            p.minimise(t, k * step)
            excess = size.minus(t.through(np.ones((n, 1))))
            p.minimise(_positive_part(p, excess), step)


def sparse_group_l1(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    def grouped(name: str, default: Any = None) -> Any:
        return a("group_weight" if name == "weight" else name, default)

    l1(p, x, shape, a)
    group_l1(p, x, shape, grouped)


def monotone(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries in slices(shape, a("dim", -1)):
        if len(entries) > 1:
            p.nonnegative(x[entries[1:]].minus(x[entries[:-1]]))


def total_variation_1d(p: Program, x: Rows, shape: Shape, a: Arguments) -> None:
    for entries, weight in _weighted_slices(shape, a, "weight"):
        if len(entries) > 1:
            p.minimise(p.above_absolute(x[entries[1:]].minus(x[entries[:-1]])), weight)
