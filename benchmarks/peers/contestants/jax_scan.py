"""JAX without a library: the loops that one writes by hand, left to its reverse mode."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from contract import Contestant, Data, Methods

from contestants.jax_side import Array, Solver, contestant, fista, iterated, primal_dual, prox


def _fista(problem: str, iterations: int, products: str | None = None):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        A = data["X" if problem == "lasso" else "A"]
        # A step that one computes once, outside of the loop and of what is measured.
        step = 1 / np.linalg.norm(A.astype(float), 2, axis=(-2, -1)) ** 2
        steps = np.asarray(step if problem == "lasso" else step[:, None], A.dtype)

        def prepare(t: Data) -> Solver:
            start = jnp.full_like(t["x"], 1 / A.shape[-1] if problem.startswith("simplex") else 0.0)

            def run(A: Array, y: Array, theta: Array) -> Array:
                return fista(A, y, t["step"], prox(problem, t["step"], theta), start, iterations)

            if problem == "lasso":
                return lambda theta: run(t["X"], t["y"], theta[0])
            if problem == "nnls":
                return lambda A, b: run(A, b, None)
            return lambda theta: run(t["A"], theta, None)

        return contestant(problem, data | {"step": steps}, prepare, products)

    return build


def _primal_dual(problem: str, iterations: int):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            step, start = primal_dual(problem, t)
            return lambda theta: iterated(step, start, theta, iterations)

        return contestant(problem, data, prepare)

    return build


METHODS: Methods = {
    problem: {
        "200 iterations": _fista(problem, 200),
        "200 iterations, float32 products": _fista(problem, 200, "highest"),
    }
    for problem in ("lasso", "simplex_least_squares", "nnls")
} | {
    problem: {f"{n} iterations": _primal_dual(problem, n) for n in counts}
    for problem, counts in {
        "tv2d": (2000,),
        "tv2d_isotropic": (1000,),
        "potts256": (100, 300),
    }.items()
}
