"""Every operator as a matrix, from its definition: what K is, said without legato.

``numbers(value)`` gives the array behind an entry of a recipe, for one element of a batch. A
variable of shape S is a vector in the order of its entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.cones import Array

Shape = tuple[int, ...]
Numbers = Callable[[Any], Any]


def matrix_of(spec: dict[str, Any], shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    """K as a matrix on variables of this shape, and the shape of Kx; a stack has no such shape."""
    return OPERATORS[spec["op"]](spec, shape, numbers)


def _identity(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    return np.eye(int(np.prod(shape))), shape


def _dense(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    """(Kx)_i = Σ_j A_ij x_j along the last axis."""
    A = np.asarray(numbers(spec["matrix"]))
    others = int(np.prod(shape[:-1]))
    return np.kron(np.eye(others), A), (*shape[:-1], A.shape[0])


def _diagonal(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    return np.diag(np.broadcast_to(numbers(spec["entries"]), shape).ravel()), shape


def _differences(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    """(Ku)_{k,i} = w_{k,i}(u_{i + o_k} − u_i), 0 where i + o_k lies outside the grid."""
    if spec.get("offsets") is not None:
        offsets = [tuple(o) for o in spec["offsets"]]
    else:
        axes = -min(spec["dims"])
        offsets = [tuple(int(a == axes + d) for a in range(axes)) for d in spec["dims"]]
    axes = len(offsets[0])
    batch, grid = shape[:-axes], shape[-axes:]
    out = (*batch, len(offsets), *grid)
    K = np.zeros((int(np.prod(out)), int(np.prod(shape))))
    for lead in itertools.product(*map(range, batch)):
        for k, offset in enumerate(offsets):
            for here in itertools.product(*map(range, grid)):
                there = tuple(i + o for i, o in zip(here, offset, strict=True))
                if all(0 <= i < n for i, n in zip(there, grid, strict=True)):
                    row = np.ravel_multi_index((*lead, k, *here), out)
                    K[row, np.ravel_multi_index((*lead, *there), shape)] += 1
                    K[row, np.ravel_multi_index((*lead, *here), shape)] -= 1
    if spec.get("weights") is not None:
        K = np.broadcast_to(numbers(spec["weights"]), out).ravel()[:, None] * K
    return K, out


def _convolution(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    """(Kx)_o = Σ_i d_oi ⋆ x_i on one spatial axis; the kernel reaches (k − 1)//2 to the left."""
    kernel = np.asarray(numbers(spec["kernel"]))
    outputs, inputs, k = kernel.shape
    batch, n = shape[:-2], shape[-1]
    one = np.zeros((outputs, n, inputs, n))
    for place, tap in itertools.product(range(n), range(k)):
        source = place + tap - (k - 1) // 2
        if spec["boundary"] == "circular":
            source %= n
        elif spec["boundary"] == "mirror":
            source = -1 - source if source < 0 else 2 * n - 1 - source if source >= n else source
        if 0 <= source < n:
            one[:, place, :, source] += kernel[:, :, tap]
    K = one.reshape(outputs * n, inputs * n)
    return np.kron(np.eye(int(np.prod(batch))), K), (*batch, outputs, n)


def _composition(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    inner, between = matrix_of(spec["inner"], shape, numbers)
    outer, out = matrix_of(spec["outer"], between, numbers)
    return outer @ inner, out


def _sum(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    first, out = matrix_of(spec["first"], shape, numbers)
    return first + matrix_of(spec["second"], shape, numbers)[0], out


def _scaled(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    K, out = matrix_of(spec["operator"], shape, numbers)
    return float(np.squeeze(numbers(spec["scale"]))) * K, out


def _adjoint(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    """Kᵀ, for an operator that says the shape it acts on."""
    source = tuple(spec["source"])
    return matrix_of(spec["operator"], source, numbers)[0].T, source


def _stack(spec: Any, shape: Shape, numbers: Numbers) -> tuple[Array, Shape]:
    raise TypeError("a stack has one matrix a block: see its blocks")


OPERATORS = {
    "Identity": _identity,
    "Dense": _dense,
    "Diagonal": _diagonal,
    "Differences": _differences,
    "Convolution": _convolution,
    "Composition": _composition,
    "Sum": _sum,
    "Scaled": _scaled,
    "Adjoint": _adjoint,
    "Stack": _stack,
}
