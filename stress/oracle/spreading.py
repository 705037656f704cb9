"""What meanings share: their form, and how arguments spread over entries, slices and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.cones import Array, Program, Rows
from oracle.matrices import Shape

Arguments = Callable[..., Any]
Meaning = Callable[[Program, Rows, Shape, Arguments], None]


def spread(value: Any, shape: Shape) -> Array:
    return np.broadcast_to(value, shape).ravel().astype(float)


def slices(shape: Shape, dim: int) -> list[Array]:
    """Indices of the slices along an axis, in the order of the norms that keep it with size one."""
    index = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), dim, -1)
    return list(index.reshape(-1, shape[dim]))


def one_each(value: Any, shape: Shape, dim: int) -> Array:
    """One number a slice."""
    kept = tuple(1 if axis == dim % len(shape) else size for axis, size in enumerate(shape))
    return np.moveaxis(np.broadcast_to(value, kept), dim, -1).ravel().astype(float)


def groups(shape: Shape, a: Arguments, name: str) -> list[tuple[Array, float]]:
    """(entries, weight) of every group."""
    labels = a("groups")
    if labels is None:
        dim = a("dim", -1)
        weights = one_each(a(name, 1.0), shape, dim)
        return list(zip(slices(shape, dim), weights, strict=True))
    labels = np.asarray(labels["ints"])
    count = labels.max() + 1
    weights = np.broadcast_to(a(name, 1.0), (*shape[:-1], count)).reshape(-1, count)
    index = np.arange(int(np.prod(shape))).reshape(-1, shape[-1])
    return [
        (index[row][labels == g], float(weights[row][g]))
        for row in range(len(index))
        for g in range(count)
    ]
