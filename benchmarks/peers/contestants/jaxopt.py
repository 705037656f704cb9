"""jaxopt: its solvers in float64, each differentiated as it documents, everything under jit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
from contract import REGRESSIONS, Contestant, Data, Methods, parameters
from jaxopt import implicit_diff, linear_solve, objective, projection, prox

jax.config.update("jax_enable_x64", True)

Array = Any
Solver = Callable[..., Array]


def _contestant(problem: str, data: Data, prepare: Callable[[Data], Solver]) -> Contestant:
    # Data are arguments of the compiled functions: as constants they would be folded away.
    arrays = {name: jnp.asarray(value) for name, value in data.items()}
    given = [arrays.pop(name) for name in parameters(problem)]

    def solve(t: Data, *theta: Array) -> Array:
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
        return np.asarray(forward(arrays, *given))

    def gradient() -> tuple[Any, Any]:
        (_, x), grads = both(arrays, *given)
        return np.asarray(x), np.concatenate([np.ravel(np.asarray(g)) for g in grads])

    return Contestant(solution, gradient)


# --- regression -----------------------------------------------------------------------------------


def _proximal_gradient(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            X, y = t["X"], t["y"]

            def fit(w: Array) -> Array:
                return 0.5 * jnp.sum((X @ w - y) ** 2)

            form = prox.prox_elastic_net if problem == "elastic_net" else prox.prox_lasso
            solver = jaxopt.ProximalGradient(fun=fit, prox=form, **settings)

            def solve(theta: Array) -> Array:
                if problem == "elastic_net":
                    weight: Any = (theta[0], theta[1] / theta[0])
                else:
                    weight = theta if problem == "weighted_lasso" else theta[0]
                return solver.run(jnp.zeros(X.shape[1]), hyperparams_prox=weight).params

            return solve

        return _contestant(problem, data, prepare)

    return build


def _coordinate_descent(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    """The solver of the library's own lasso example."""

    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            X, y = t["X"], t["y"]
            form = prox.prox_elastic_net if problem == "elastic_net" else prox.prox_lasso
            solver = jaxopt.BlockCoordinateDescent(objective.least_squares, form, **settings)

            def solve(theta: Array) -> Array:
                n = len(y)  # the library's objective is a mean
                if problem == "elastic_net":
                    weight: Any = (theta[0] / n, theta[1] / theta[0])
                else:
                    weight = theta / n if problem == "weighted_lasso" else theta[0] / n
                return solver.run(jnp.zeros(X.shape[1]), weight, (X, y)).params

            return solve

        return _contestant(problem, data, prepare)

    return build


def _energy(problem: str, t: Data) -> Callable[[Array, Array], Array]:
    X, y = t["X"], t["y"]

    def energy(w: Array, theta: Array) -> Array:
        if problem == "ridge":
            fit = 0.5 * jnp.sum((X @ w - y) ** 2)
        else:
            fit = jnp.sum(jax.nn.softplus(-y * (X @ w)))
        return fit + 0.5 * jnp.sum(theta * w * w)

    return energy


def _smooth(problem: str, solver: Any, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            made = solver(fun=_energy(problem, t), **settings)
            start = jnp.zeros(t["X"].shape[1])
            return lambda theta: made.run(start, theta).params

        return _contestant(problem, data, prepare)

    return build


def _direct_ridge(data: Data) -> Contestant:
    """The library's first example, a direct solve behind custom_root, with a tighter adjoint."""

    def prepare(t: Data) -> Solver:
        X, y = t["X"], t["y"]

        @implicit_diff.custom_root(jax.grad(_energy("ridge", t)), solve=_ADJOINT)
        def solve(start: Array, theta: Array) -> Array:
            return jnp.linalg.solve(X.T @ X + jnp.diag(theta), X.T @ y)

        return lambda theta: solve(None, theta)

    return _contestant("ridge", data, prepare)


# --- batches --------------------------------------------------------------------------------------


def _projection(data: Data) -> Contestant:
    return _contestant(
        "simplex_projection", data, lambda t: jax.vmap(lambda v: projection.projection_simplex(v))
    )


def _least_squares(x: Array, A: Array, b: Array) -> Array:
    return 0.5 * jnp.sum((A @ x - b) ** 2)


def _projected_gradient(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            n = t["x"].shape[-1]
            if problem == "nnls":
                solver = jaxopt.ProjectedGradient(
                    _least_squares, projection.projection_non_negative, **settings
                )
                one = jax.vmap(lambda A, b: solver.run(jnp.zeros(n), None, A, b).params)
                return lambda A, b: one(A, b)
            solver = jaxopt.ProjectedGradient(
                _least_squares, projection.projection_simplex, **settings
            )
            one = jax.vmap(lambda A, b: solver.run(jnp.full(n, 1 / n), 1.0, A, b).params)
            return lambda theta: one(t["A"], theta)

        return _contestant(problem, data, prepare)

    return build


def _mirror_descent(settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            n = t["x"].shape[-1]
            move = jaxopt.MirrorDescent.make_projection_grad(
                lambda y, _: jax.nn.softmax(y), jnp.log
            )
            solver = jaxopt.MirrorDescent(_least_squares, move, **settings)
            one = jax.vmap(lambda A, b: solver.run(jnp.full(n, 1 / n), None, A, b).params)
            return lambda theta: one(t["A"], theta)

        return _contestant("simplex_least_squares", data, prepare)

    return build


# --- images ---------------------------------------------------------------------------------------


def _differences(u: Array) -> Array:
    down = jnp.pad(u[..., 1:, :] - u[..., :-1, :], [(0, 0)] * (u.ndim - 2) + [(0, 1), (0, 0)])
    across = jnp.pad(u[..., 1:] - u[..., :-1], [(0, 0)] * (u.ndim - 1) + [(0, 1)])
    return jnp.stack((down, across), -3)


def _spread(p: Array) -> Array:
    down, across = p[..., 0, :-1, :], p[..., 1, :, :-1]
    none = [(0, 0)] * (down.ndim - 2)
    rows, columns = [*none, (1, 0), (0, 0)], [*none, (0, 0), (1, 0)]
    rows_after, columns_after = [*none, (0, 1), (0, 0)], [*none, (0, 0), (0, 1)]
    return (
        jnp.pad(down, rows) - jnp.pad(down, rows_after)
        + jnp.pad(across, columns) - jnp.pad(across, columns_after)
    )  # fmt: skip


def _project_labels(v: Array) -> Array:
    """Projection onto the simplex along the first axis, by sorting."""
    ordered = -jnp.sort(-v, axis=0)
    excess = jnp.cumsum(ordered, 0) - 1
    rank = jnp.arange(1, v.shape[0] + 1).reshape(-1, 1, 1)
    size = jnp.sum(ordered * rank > excess, 0, keepdims=True)
    return jnp.maximum(v - jnp.take_along_axis(excess, size - 1, 0) / size, 0)


def _fixed_point(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    """One step of the primal–dual algorithm, the same as in ``torch_side``."""

    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            potts = problem.startswith("potts")
            start = t["cost"] if potts else jnp.atleast_2d(t["y"])[None]
            tau = sigma = 1 / math.sqrt(8 if min(start.shape[-2:]) > 1 else 4)

            def step(state: Any, theta: Array) -> Any:
                u, p = state
                if potts:
                    half = (u - tau * (_spread(p) + theta[1] * start)) / (1 + tau)
                    new = _project_labels(half)
                else:
                    new = (u - tau * (_spread(p) - start)) / (1 + tau)
                dual = p + sigma * _differences(2 * new - u)
                if problem == "tv2d_isotropic":
                    square = jnp.sum(dual**2, -3, keepdims=True)
                    size = jnp.sqrt(jnp.maximum(square, 1e-30))
                    return new, dual * jnp.minimum(theta[0] / size, 1)
                return new, jnp.clip(dual, -theta[0], theta[0])

            solver = jaxopt.FixedPointIteration(step, **settings)
            first = (jnp.full_like(start, 1 / 3) if potts else start, _differences(start) * 0)
            return lambda theta: solver.run(first, theta).params[0]

        return _contestant(problem, data, prepare)

    return build


def _fixed_point_methods(problem: str, iterations: int) -> dict[str, Any]:
    tight = {"maxiter": iterations, "tol": 1e-9, "implicit_diff_solve": _ADJOINT}
    return {
        "FixedPointIteration, default": _fixed_point(problem, {}),
        f"FixedPointIteration, {iterations} iterations": _fixed_point(problem, tight),
        f"FixedPointIteration, {iterations} unrolled": _fixed_point(
            problem, {"maxiter": iterations, "tol": 1e-9, "implicit_diff": False}
        ),
    }


# The library's linear solver stops at 1e-5 whatever the tolerance of the problem is.
_ADJOINT = functools.partial(linear_solve.solve_normal_cg, tol=1e-10, maxiter=1000)
_TIGHT = {"tol": 1e-10, "maxiter": 20_000, "implicit_diff_solve": _ADJOINT}
# Under vmap all wait for the slowest, whose line search may never be satisfied below 1e-8.
_BATCHED = {"tol": 1e-8, "maxiter": 2000, "implicit_diff_solve": _ADJOINT}
_SMOOTH_TIGHT = {"tol": 1e-9, "maxiter": 2000, "implicit_diff_solve": _ADJOINT}

METHODS: Methods = {
    problem: {
        "ProximalGradient implicit, default": _proximal_gradient(problem, {}),
        "ProximalGradient implicit, tol 1e-10": _proximal_gradient(problem, _TIGHT),
        "ProximalGradient unrolled, 500": _proximal_gradient(problem, {"implicit_diff": False}),
        "BlockCoordinateDescent implicit, default": _coordinate_descent(problem, {}),
    }
    for problem in ("lasso", "elastic_net", "weighted_lasso")
} | {
    "simplex_projection": {"projection_simplex": _projection},
    "simplex_least_squares": {
        "ProjectedGradient, default": _projected_gradient("simplex_least_squares", {}),
        "ProjectedGradient, tol 1e-8": _projected_gradient("simplex_least_squares", _BATCHED),
        "MirrorDescent, step 1": _mirror_descent({"stepsize": 1.0, "maxiter": 500}),
        "MirrorDescent, step 1, 2000 iterations": _mirror_descent({"stepsize": 1.0} | _BATCHED),
    },
    "nnls": {
        "ProjectedGradient, default": _projected_gradient("nnls", {}),
        "ProjectedGradient, tol 1e-8": _projected_gradient("nnls", _BATCHED),
    },
    "tv1d": _fixed_point_methods("tv1d", 4000),
    "tv2d": _fixed_point_methods("tv2d", 3000),
    "tv2d_isotropic": _fixed_point_methods("tv2d_isotropic", 1000),
    "potts64": _fixed_point_methods("potts64", 1000),
    "potts256": _fixed_point_methods("potts256", 500),
    "ridge": {
        "custom_root, direct solve": _direct_ridge,
        "LBFGS implicit, default": _smooth("ridge", jaxopt.LBFGS, {}),
        "LBFGS implicit, tol 1e-9": _smooth("ridge", jaxopt.LBFGS, _SMOOTH_TIGHT),
    },
    "logistic": {
        "LBFGS implicit, default": _smooth("logistic", jaxopt.LBFGS, {}),
        "LBFGS implicit, tol 1e-9": _smooth("logistic", jaxopt.LBFGS, _SMOOTH_TIGHT),
        "GradientDescent implicit, tol 1e-9": _smooth(
            "logistic", jaxopt.GradientDescent, _SMOOTH_TIGHT
        ),
    },
}
