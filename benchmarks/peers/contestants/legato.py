"""legato, through its public names only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from contract import Contestant, Data, Methods
from torch import Tensor

import legato as lg
from contestants.torch_side import as_image, contestant
from legato.nn import TotalVariation

Seen = dict[str, Any]
_MOMENTUM = lg.Nesterov(restart=True)


def _with(problem: str, prepare: Callable[[dict[str, Tensor], Seen], Any], note: str = ""):  # type: ignore[no-untyped-def]
    """A contestant that tells what the solution reports about itself."""

    def build(data: Data) -> Contestant:
        seen: Seen = {}

        def tells() -> str:
            solution = seen.get("solution")
            if solution is None:
                return ""
            back = solution.backward
            said = (
                f"{solution.iterations} iterations, residual {float(solution.residual.amax()):.1e}"
            )
            if back.residual is not None:
                said += f"; backward {back.iterations}, residual {back.residual:.1e}"
            return said

        return contestant(problem, data, lambda t: prepare(t, seen), note, tells)

    return build


def _regression(problem: str, gradient: Any, stop: lg.Stop, inertia: Any = None, algorithm=None):  # type: ignore[no-untyped-def]
    if algorithm is None:
        algorithm = lg.ForwardBackward(inertia=_MOMENTUM if inertia is None else inertia)

    def prepare(t: dict[str, Tensor], seen: Seen) -> Any:
        X = lg.Dense(t["X"])  # made once: it remembers its norm, and XᵀX for Newton
        fit: Any = lg.LeastSquares(X, t["y"])
        if problem == "logistic":
            fit = lg.Logistic(X, t["y"])

        def solve(theta: Tensor) -> Tensor:
            penalty: Any
            if problem == "weighted_lasso":
                penalty = lg.L1(theta)
            elif problem == "elastic_net":
                penalty = lg.L1(theta[0]) + lg.SquaredNorm(theta[1])
            elif problem == "lasso":
                penalty = lg.L1(theta[0])
            else:
                penalty = lg.SquaredNorm(theta)
            solution = lg.solve(lg.Composite(fit, penalty), algorithm, gradient=gradient, stop=stop)
            seen["solution"] = solution
            return solution.x

        return solve

    return _with(problem, prepare)


def _simplex_projection(t: dict[str, Tensor], seen: Seen) -> Any:
    return lambda theta: lg.prox(lg.Simplex(), lg.Euclidean(), theta, 1.0)


def _batched(problem: str, geometry: Any, gradient: Any, stop: lg.Stop, algorithm: Any = None):  # type: ignore[no-untyped-def]
    algorithm = algorithm or lg.ForwardBackward(geometry=geometry, inertia=_MOMENTUM)

    def prepare(t: dict[str, Tensor], seen: Seen) -> Any:

        def run(A: Tensor | lg.Dense, b: Tensor) -> Tensor:
            inside = lg.NonNegative() if problem == "nnls" else lg.Simplex()
            made = lg.Composite(lg.LeastSquares(A, b), inside)
            solution = lg.solve(made, algorithm, gradient=gradient, stop=stop)
            seen["solution"] = solution
            return solution.x

        if problem == "nnls":
            return run
        A = lg.Dense(t["A"])  # made once: it remembers its norms
        return lambda theta: run(A, theta)

    return _with(problem, prepare)


def _total_variation(problem: str, iterations: int, gradient: Any):  # type: ignore[no-untyped-def]
    def prepare(t: dict[str, Tensor], seen: Seen) -> Any:
        layer = TotalVariation(iterations, isotropic=problem == "tv2d_isotropic", gradient=gradient)
        image = as_image(t["y"])
        return lambda theta: layer(image, theta[0])

    return _with(problem, prepare)


def _potts(problem: str, gradient: Any, stop: lg.Stop):  # type: ignore[no-untyped-def]
    def prepare(t: dict[str, Tensor], seen: Seen) -> Any:
        def solve(theta: Tensor) -> Tensor:
            energy = lg.Simplex(0) + lg.SquaredNorm() + lg.Linear(theta[1] * t["cost"])
            # K maps (L, H, W) to (L, 2, H, W); its dual variable lies in a box of size λ.
            made = lg.Saddle(lg.Differences(), penalty=lg.L1(theta[0]), nonsmooth=energy)
            start = torch.full_like(t["cost"], 1 / 3)
            solution = lg.solve(made, lg.PrimalDual(), start, gradient=gradient, stop=stop)
            seen["solution"] = solution
            return solution.x

        return solve

    return _with(problem, prepare)


def _iterated(problem: str, iterations: int):  # type: ignore[no-untyped-def]
    """Accelerated proximal gradients with a step that is computed once, as in ``jax_scan``."""

    def build(data: Data) -> Contestant:
        A = torch.as_tensor(data["X" if problem == "lasso" else "A"])
        step: Any = 1 / torch.linalg.matrix_norm(A.double(), 2).square()
        step = float(step) if problem == "lasso" else step[:, None].to(A.dtype)
        algorithm = lg.ForwardBackward(step, inertia=lg.Nesterov())
        how: tuple[Any, ...] = lg.Unroll(), lg.Stop(iterations)
        if problem == "lasso":
            return _regression(problem, *how, algorithm=algorithm)(data)
        return _batched(problem, lg.Euclidean(), *how, algorithm=algorithm)(data)

    return build


def _by(engine: lg.Engine, build: Callable[[Data], Contestant]) -> Callable[[Data], Contestant]:
    """The same method, its iterations replayed or compiled."""

    def built(data: Data) -> Contestant:
        made = build(data)

        def solve() -> Any:
            with engine:
                return made.solve()

        def gradient() -> Any:
            with engine:
                return made.gradient()  # type: ignore[misc]

        return replace(made, solve=solve, gradient=gradient)

    return built


def _tolerance(tol: float, iterations: int = 5000) -> tuple[lg.Implicit, lg.Stop]:
    """The same tolerance for the solve and for its adjoint; the residual is read now and then."""
    return lg.Implicit(lg.CG(tol=tol)), lg.Stop(iterations, tol=tol, every=5)


def _few(problem: str):  # type: ignore[no-untyped-def]
    """As many iterations as one would unroll by hand, and an adjoint to match."""
    return {
        "Implicit, 100 iterations, tol 1e-3": _potts(
            problem, lg.Implicit(lg.BiCGStab(tol=1e-3)), lg.Stop(100)
        ),
        "Unroll, 100 iterations": _potts(problem, lg.Unroll(), lg.Stop(100)),
    }


def _newton(problem: str) -> dict[str, Any]:
    """At its solution one step of Newton's method has the exact derivative."""

    def made(tol: float) -> Any:
        how: tuple[Any, ...] = lg.OneStep(), lg.Stop(100, tol=tol)
        if problem == "nnls":
            return _batched(problem, lg.Euclidean(), *how, algorithm=lg.Newton())
        return _regression(problem, *how, algorithm=lg.Newton())

    return {f"Newton, OneStep, tol {name}": made(float(name)) for name in ("1e-6", "1e-10")}


_TOLERANCES = {"Implicit, tol 1e-4": 1e-4, "Implicit, tol 1e-6": 1e-6, "Implicit, tol 1e-10": 1e-10}
_FLAT = lg.Implicit(lg.CG(tol=1e-6, iterations=2000))
_SLOW = lg.Implicit(lg.GMRES(tol=1e-8, iterations=1000))
_SHORT = lg.Implicit(lg.BiCGStab(tol=1e-6, iterations=2000))  # no basis: cheap for many unknowns

METHODS: Methods = {
    # Where the smallest curvature is known to be large, a constant inertia saves a few iterations.
    problem: {
        name: _regression(problem, *_tolerance(tol), inertia) for name, tol in _TOLERANCES.items()
    }
    | _newton(problem)
    for problem, inertia in {
        "lasso": None,
        "elastic_net": None,
        "weighted_lasso": None,
        "ridge": 0.5,
        "logistic": 0.5,
    }.items()
} | {
    "simplex_projection": {"prox": _with("simplex_projection", _simplex_projection)},
    "simplex_least_squares": {
        name: _batched("simplex_least_squares", lg.Euclidean(), *_tolerance(tol))
        for name, tol in _TOLERANCES.items()
    }
    | {
        "Implicit, Entropy, tol 1e-6": _batched(
            "simplex_least_squares",
            lg.Entropy(),
            lg.Implicit(lg.GMRES(tol=1e-6)),
            lg.Stop(5000, tol=1e-6, every=10),
        )
    },
    "nnls": {
        name: _batched("nnls", lg.Euclidean(), *_tolerance(tol))
        for name, tol in _TOLERANCES.items()
    }
    | _newton("nnls"),
    "tv1d": {
        "TotalVariation, Unroll 2000": _total_variation("tv1d", 2000, lg.Unroll()),
        "TotalVariation, Implicit 2000": _total_variation("tv1d", 2000, _FLAT),
    },
    "tv2d": {
        "TotalVariation, Unroll 2000": _total_variation("tv2d", 2000, lg.Unroll()),
        "TotalVariation, Implicit 1000": _total_variation("tv2d", 1000, _FLAT),
    },
    "tv2d_isotropic": {
        "TotalVariation, Unroll 2000": _total_variation("tv2d_isotropic", 2000, lg.Unroll()),
        "TotalVariation, Implicit 1000": _total_variation(
            "tv2d_isotropic", 1000, lg.Implicit(lg.CG(tol=1e-3, iterations=2000))
        ),
    },
    "potts64": {
        "Implicit, 1000 iterations": _potts("potts64", _SLOW, lg.Stop(1000)),
        "Unroll, 1000 iterations": _potts("potts64", lg.Unroll(), lg.Stop(1000)),
        **_few("potts64"),
    },
    "potts256": {
        "Implicit, 500 iterations": _potts("potts256", _SHORT, lg.Stop(500)),
        "Unroll, 300 iterations": _potts("potts256", lg.Unroll(), lg.Stop(300)),
        **_few("potts256"),
    },
}

for _problem in ("lasso", "simplex_least_squares", "nnls"):
    METHODS[_problem]["Unroll, 200 iterations"] = _iterated(_problem, 200)
METHODS["potts256"]["Implicit, 300 iterations, tol 1e-4"] = _potts(
    "potts256", lg.Implicit(lg.BiCGStab(tol=1e-4)), lg.Stop(300)
)
_ENGINES = {"replayed": lg.Replayed(), "compiled": lg.Compiled()}
for _problem in ("tv2d", "tv2d_isotropic"):
    METHODS[_problem]["TotalVariation, Unroll 300"] = _total_variation(_problem, 300, lg.Unroll())
for _methods in METHODS.values():
    _methods.update(
        {
            f"{method}, {name}": _by(engine, build)
            for method, build in _methods.items()
            for name, engine in _ENGINES.items()
        }
    )
