"""What contestants written in JAX share: losses, FISTA, and one step of the primal–dual algorithm.

``benchmarks/engine.py`` runs the same loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from contract import REGRESSIONS, Contestant, Data, parameters

Array = Any
Solver = Callable[..., Array]


def contestant(
    problem: str, data: Data, prepare: Callable[[Data], Solver], products: str | None = None
) -> Contestant:
    """From a function that turns data into ``solve(*parameters) → x``, in the data's precision.

    On a GPU products of float32 matrices are rounded to fewer digits unless ``products`` says
    "highest".
    """
    names = parameters(problem)
    jax.config.update("jax_enable_x64", all(data[name].dtype == np.float64 for name in names))
    # Data are arguments of the compiled functions: as constants they would be folded away.
    arrays = {name: jnp.asarray(value) for name, value in data.items()}
    given = [arrays.pop(name) for name in names]

    def solve(t: Data, *theta: Array) -> Array:
        with jax.default_matmul_precision(products):
            return prepare(t)(*theta)

    def loss(t: Data, *theta: Array) -> tuple[Array, Array]:
        x = solve(t, *theta)
        if problem in REGRESSIONS:
            return 0.5 * jnp.sum((t["V"] @ x - t["v"]) ** 2), x
        return 0.5 * jnp.sum((x.reshape(t["target"].shape) - t["target"]) ** 2), x

    numbers = tuple(range(1, len(given) + 1))
    forward = jax.jit(solve)
    both = jax.jit(jax.value_and_grad(loss, argnums=numbers, has_aux=True))

    def solution() -> Any:
        return jax.block_until_ready(forward(arrays, *given))

    def gradient() -> tuple[Any, Any]:
        (_, x), grads = jax.block_until_ready(both(arrays, *given))
        return x, grads

    return Contestant(solution, gradient)


# --- accelerated proximal gradients ---------------------------------------------------------------


def prox(problem: str, step: Array, theta: Array) -> Callable[[Array], Array]:
    """That of ``step`` times the problem's nonsmooth term, whose weight θ may be."""
    if problem == "lasso":
        return lambda h: jnp.sign(h) * jnp.maximum(jnp.abs(h) - step * theta, 0)
    return (lambda h: jnp.maximum(h, 0)) if problem == "nnls" else project_simplex


def fista(
    A: Array, y: Array, step: Array, prox: Callable[[Array], Array], start: Array, iterations: int
) -> Array:
    """½‖Ax − y‖² and a term with a prox, by a scan with Nesterov's momentum."""

    def body(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, ...], None]:
        x, before, t = state
        following = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        ahead = x + (t - 1) / following * (x - before)
        r = jnp.einsum("...mk,...k->...m", A, ahead) - y
        return (prox(ahead - step * jnp.einsum("...mk,...m->...k", A, r)), x, following), None

    first = (start, start, jnp.ones((), start.dtype))
    return jax.lax.scan(body, first, None, length=iterations)[0][0]


# --- images ---------------------------------------------------------------------------------------


def differences(u: Array) -> Array:
    down = jnp.pad(u[..., 1:, :] - u[..., :-1, :], [(0, 0)] * (u.ndim - 2) + [(0, 1), (0, 0)])
    across = jnp.pad(u[..., 1:] - u[..., :-1], [(0, 0)] * (u.ndim - 1) + [(0, 1)])
    return jnp.stack((down, across), -3)


def spread(p: Array) -> Array:
    down, across = p[..., 0, :-1, :], p[..., 1, :, :-1]
    none = [(0, 0)] * (down.ndim - 2)
    rows, columns = [*none, (1, 0), (0, 0)], [*none, (0, 0), (1, 0)]
    rows_after, columns_after = [*none, (0, 1), (0, 0)], [*none, (0, 0), (0, 1)]
    return (
        jnp.pad(down, rows) - jnp.pad(down, rows_after)
        + jnp.pad(across, columns) - jnp.pad(across, columns_after)
    )  # fmt: skip


def project_simplex(v: Array, axis: int = -1) -> Array:
    """Projection onto the unit simplex along an axis, by sorting."""
    ordered = jnp.flip(jnp.sort(v, axis=axis), axis)
    excess = jnp.cumsum(ordered, axis) - 1
    shape = [1] * v.ndim
    shape[axis] = -1
    rank = jnp.arange(1, v.shape[axis] + 1).reshape(shape)
    size = jnp.sum(ordered * rank > excess, axis, keepdims=True)
    return jnp.maximum(v - jnp.take_along_axis(excess, size - 1, axis) / size, 0)


def primal_dual(problem: str, t: Data) -> tuple[Callable[[Any, Array], Any], Any]:
    """One step in (state, θ), the same as in ``torch_side``, and where it starts."""
    potts = problem.startswith("potts")
    start = t["cost"] if potts else jnp.atleast_2d(t["y"])[None]
    tau = sigma = 1 / math.sqrt(8 if min(start.shape[-2:]) > 1 else 4)

    def step(state: Any, theta: Array) -> Any:
        u, p = state
        if potts:
            half = (u - tau * (spread(p) + theta[1] * start)) / (1 + tau)
            new = project_simplex(half, 0)
        else:
            new = (u - tau * (spread(p) - start)) / (1 + tau)
        dual = p + sigma * differences(2 * new - u)
        if problem == "tv2d_isotropic":
            square = jnp.sum(dual**2, -3, keepdims=True)
            size = jnp.sqrt(jnp.maximum(square, 1e-30))
            return new, dual * jnp.minimum(theta[0] / size, 1)
        return new, jnp.clip(dual, -theta[0], theta[0])

    return step, (jnp.full_like(start, 1 / 3) if potts else start, differences(start) * 0)


def iterated(step: Callable[[Any, Array], Any], start: Any, theta: Array, iterations: int) -> Array:
    """u after some steps of :func:`primal_dual`, by a scan."""
    return jax.lax.scan(lambda s, _: (step(s, theta), None), start, None, length=iterations)[0][0]
