"""jaxopt: its solvers, each differentiated as it documents, everything under jit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
from contract import Contestant, Data, Methods
from jaxopt import implicit_diff, linear_solve, objective, projection, prox

from contestants.jax_side import Solver, contestant, primal_dual

Array = Any


# --- regression -----------------------------------------------------------------------------------


def _proximal_gradient(problem: str, settings: dict[str, Any], products: str | None = None):  # type: ignore[no-untyped-def]
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

        return contestant(problem, data, prepare, products)

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

        return contestant(problem, data, prepare)

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

        return contestant(problem, data, prepare)

    return build


def _direct_ridge(data: Data) -> Contestant:
    """The library's first example, a direct solve behind custom_root, with a tighter adjoint."""

    def prepare(t: Data) -> Solver:
        X, y = t["X"], t["y"]

        @implicit_diff.custom_root(jax.grad(_energy("ridge", t)), solve=_ADJOINT)
        def solve(start: Array, theta: Array) -> Array:
            return jnp.linalg.solve(X.T @ X + jnp.diag(theta), X.T @ y)

        return lambda theta: solve(None, theta)

    return contestant("ridge", data, prepare)


# --- batches --------------------------------------------------------------------------------------


def _projection(data: Data) -> Contestant:
    return contestant(
        "simplex_projection", data, lambda t: jax.vmap(lambda v: projection.projection_simplex(v))
    )


def _least_squares(x: Array, A: Array, b: Array) -> Array:
    return 0.5 * jnp.sum((A @ x - b) ** 2)


def _projected_gradient(problem: str, settings: dict[str, Any], products: str | None = None):  # type: ignore[no-untyped-def]
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

        return contestant(problem, data, prepare, products)

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

        return contestant("simplex_least_squares", data, prepare)

    return build


# --- images ---------------------------------------------------------------------------------------


def _fixed_point(problem: str, settings: dict[str, Any]):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: Data) -> Solver:
            step, first = primal_dual(problem, t)
            solver = jaxopt.FixedPointIteration(step, **settings)
            return lambda theta: solver.run(first, theta).params[0]

        return contestant(problem, data, prepare)

    return build


def _fixed_point_methods(problem: str, iterations: int) -> dict[str, Any]:
    tight = {"maxiter": iterations, "tol": 1e-9, "implicit_diff_solve": _ADJOINT}
    return {
        "FixedPointIteration, default": _fixed_point(problem, {}),
        f"FixedPointIteration, {iterations} iterations": _fixed_point(problem, tight),
        f"FixedPointIteration, {iterations} unrolled": _fixed_point(
            problem, {"maxiter": iterations, "tol": 1e-9, "implicit_diff": False}
        ),
        f"FixedPointIteration, {iterations} iterations, CG 1e-5": _fixed_point(
            problem, {"maxiter": iterations, "tol": 1e-7, "implicit_diff_solve": _SINGLE_ADJOINT}
        ),
    }


# The library's linear solver stops at 1e-5 whatever the tolerance of the problem is.
_ADJOINT = functools.partial(linear_solve.solve_normal_cg, tol=1e-10, maxiter=1000)
_TIGHT = {"tol": 1e-10, "maxiter": 20_000, "implicit_diff_solve": _ADJOINT}
# Under vmap all wait for the slowest, whose line search may never be satisfied below 1e-8.
_BATCHED = {"tol": 1e-8, "maxiter": 2000, "implicit_diff_solve": _ADJOINT}
_SMOOTH_TIGHT = {"tol": 1e-9, "maxiter": 2000, "implicit_diff_solve": _ADJOINT}
# What float32 can reach; a smaller tolerance would only be missed.
_SINGLE_ADJOINT = functools.partial(linear_solve.solve_normal_cg, tol=1e-5, maxiter=1000)
_SINGLE = {"tol": 1e-5, "maxiter": 2000, "implicit_diff_solve": _SINGLE_ADJOINT}

METHODS: Methods = {
    problem: {
        "ProximalGradient implicit, default": _proximal_gradient(problem, {}),
        "ProximalGradient implicit, tol 1e-10": _proximal_gradient(problem, _TIGHT),
        "ProximalGradient implicit, tol 1e-5": _proximal_gradient(problem, _SINGLE, "highest"),
        "ProximalGradient unrolled, 500": _proximal_gradient(problem, {"implicit_diff": False}),
        "BlockCoordinateDescent implicit, default": _coordinate_descent(problem, {}),
    }
    for problem in ("lasso", "elastic_net", "weighted_lasso")
} | {
    "simplex_projection": {"projection_simplex": _projection},
    "simplex_least_squares": {
        "ProjectedGradient, default": _projected_gradient("simplex_least_squares", {}),
        "ProjectedGradient, tol 1e-8": _projected_gradient("simplex_least_squares", _BATCHED),
        "ProjectedGradient, tol 1e-5": _projected_gradient(
            "simplex_least_squares", _SINGLE, "highest"
        ),
        "MirrorDescent, step 1": _mirror_descent({"stepsize": 1.0, "maxiter": 500}),
        "MirrorDescent, step 1, 2000 iterations": _mirror_descent({"stepsize": 1.0} | _BATCHED),
    },
    "nnls": {
        "ProjectedGradient, default": _projected_gradient("nnls", {}),
        "ProjectedGradient, tol 1e-8": _projected_gradient("nnls", _BATCHED),
        "ProjectedGradient, tol 1e-5": _projected_gradient("nnls", _SINGLE, "highest"),
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
