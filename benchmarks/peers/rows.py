"""All rows of the races: problem, library, method, and the CPU seconds a row may take."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table; ``method`` is a key of the contestant's METHODS."""

    problem: str
    library: str
    method: str
    limit: float


LIMITS = {"cvxpylayers": 90.0}
LIMIT = 60.0

_PROXIMAL_GRADIENT = (
    "ProximalGradient implicit, default",
    "ProximalGradient implicit, tol 1e-10",
)
_FISTA = ("custom_root, FISTA 1000, default", "custom_root, FISTA 1000, CG 1e-10")
_LBFGS = ("custom_root, L-BFGS, default", "custom_root, L-BFGS, CG 1e-10")
_QPLAYER = ("QPLayer, default", "QPLayer, backward tolerances 1e-9")
_CONES = ("default solver", "Clarabel")
_BY_LSMR = "default solver, eps 1e-8, lsmr"


def _fixed_point(iterations: int) -> tuple[str, ...]:
    return (
        "FixedPointIteration, default",
        f"FixedPointIteration, {iterations} iterations",
    )


def _equilibrium(iterations: int) -> tuple[str, ...]:
    return (
        "default (Jacobian-free)",
        "ift, otherwise default",
        f"Jacobian-free, {iterations} iterations",
        f"ift, {iterations} and {iterations} iterations",
        "ift, Anderson",
    )


_IMPLICIT = ("Implicit, tol 1e-4", "Implicit, tol 1e-6", "Implicit, tol 1e-10")
_FEW = ("Implicit, 100 iterations, tol 1e-3", "Unroll, 100 iterations")
_NEWTON = ("Newton, OneStep, tol 1e-6", "Newton, OneStep, tol 1e-10")

TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "lasso": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": (
            *_PROXIMAL_GRADIENT,
            "ProximalGradient unrolled, 500",
            "BlockCoordinateDescent implicit, default",
        ),
        "torchopt": _FISTA,
        "cvxpylayers": _CONES,
        "celer": ("celer, tol 1e-10", "scikit-learn, tol 1e-10"),
    },
    "elastic_net": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": _PROXIMAL_GRADIENT,
        "torchopt": _FISTA,
        "cvxpylayers": ("Clarabel",),
        "celer": ("celer, tol 1e-10", "scikit-learn, tol 1e-10"),
    },
    "weighted_lasso": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": _PROXIMAL_GRADIENT,
        "torchopt": _FISTA,
        "cvxpylayers": ("Clarabel",),
        "celer": ("celer, tol 1e-10",),
    },
    "simplex_projection": {
        "legato": ("prox",),
        "jaxopt": ("projection_simplex",),
        "entmax": ("sparsemax",),
        "proxsuite": _QPLAYER,
        "cvxpylayers": (*_CONES, _BY_LSMR),
    },
    "simplex_least_squares": {
        "legato": (*_IMPLICIT, "Implicit, Entropy, tol 1e-6"),
        "jaxopt": (
            "ProjectedGradient, default",
            "ProjectedGradient, tol 1e-8",
            "MirrorDescent, step 1",
            "MirrorDescent, step 1, 2000 iterations",
        ),
        "proxsuite": _QPLAYER,
        "cvxpylayers": ("Clarabel",),
    },
    "nnls": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": ("ProjectedGradient, default", "ProjectedGradient, tol 1e-8"),
        "proxsuite": _QPLAYER,
        "cvxpylayers": ("default solver", "SCS, eps 1e-8", _BY_LSMR, "Clarabel"),
    },
    "tv1d": {
        "legato": ("TotalVariation, Unroll 2000", "TotalVariation, Implicit 2000"),
        "jaxopt": _fixed_point(4000),
        "torchdeq": _equilibrium(4000),
        "deepinv": ("TVDenoiser, default", "TVDenoiser, 2000 iterations"),
        "prox_tv": ("tv1_1d",),
    },
    "tv2d": {
        "legato": ("TotalVariation, Unroll 2000", "TotalVariation, Implicit 1000"),
        "jaxopt": _fixed_point(3000),
        "torchdeq": _equilibrium(2000),
        "prox_tv": ("tv1_2d, default", "tv1_2d, 1000 iterations"),
    },
    "tv2d_isotropic": {
        "legato": ("TotalVariation, Unroll 2000", "TotalVariation, Implicit 1000"),
        "jaxopt": _fixed_point(1000),
        "torchdeq": _equilibrium(1000),
        "deepinv": (
            "TVDenoiser, default",
            "TVDenoiser, 500 iterations",
            "DEQ, PGD",
            "DEQ, PDCP (primal–dual)",
        ),
    },
    "potts64": {
        "legato": (*_FEW, "Implicit, 1000 iterations", "Unroll, 1000 iterations"),
        "unrolled": ("100 iterations", "1000 iterations"),
        "jaxopt": _fixed_point(1000),
        "torchdeq": _equilibrium(1000),
        "cvxpylayers": _CONES,
    },
    "potts256": {
        "legato": (*_FEW, "Implicit, 500 iterations", "Unroll, 300 iterations"),
        "unrolled": ("100 iterations", "300 iterations"),
        "jaxopt": _fixed_point(500),
        "torchdeq": _equilibrium(500),
    },
    "ridge": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": (
            "custom_root, direct solve",
            "LBFGS implicit, default",
            "LBFGS implicit, tol 1e-9",
        ),
        "torchopt": _LBFGS,
    },
    "logistic": {
        "legato": (*_IMPLICIT, *_NEWTON),
        "jaxopt": (
            "LBFGS implicit, default",
            "LBFGS implicit, tol 1e-9",
            "GradientDescent implicit, tol 1e-9",
        ),
        "torchopt": _LBFGS,
    },
}

_ITERATED = "Unroll, 200 iterations, compiled"
_SCANS = ("200 iterations", "200 iterations, float32 products")
_EQUILIBRIA = ("default (Jacobian-free)", "ift, otherwise default")


def _single(iterations: int) -> tuple[str, ...]:
    return (
        "FixedPointIteration, default",
        f"FixedPointIteration, {iterations} iterations, CG 1e-5",
    )


_PROGRAMS: dict[str, tuple[str, ...]] = {
    "legato": ("QuadraticProgram",),
    "qpax": ("solve_qp_primal, tol 1e-8",),
    "qpth": ("QPFunction",),
}

_VARIATION = (
    "TotalVariation, Unroll 300",
    "TotalVariation, Unroll 2000",
    "TotalVariation, Implicit 1000",
)

GPU: dict[str, dict[str, tuple[str, ...]]] = {
    "lasso": {
        "legato": (
            _ITERATED,
            "Implicit, tol 1e-4, compiled",
            "Newton, OneStep, tol 1e-6",
        ),
        "jax_scan": _SCANS,
        "jaxopt": ("ProximalGradient implicit, default", "ProximalGradient implicit, tol 1e-5"),
    },
    "nnls": {
        "legato": (
            _ITERATED,
            "Implicit, tol 1e-4, compiled",
            "Newton, OneStep, tol 1e-6",
        ),
        "jax_scan": _SCANS,
        "jaxopt": ("ProjectedGradient, default", "ProjectedGradient, tol 1e-5"),
    },
    "simplex_least_squares": {
        "legato": (
            _ITERATED,
            "Implicit, tol 1e-4, replayed",
        ),
        "jax_scan": _SCANS,
        "jaxopt": ("ProjectedGradient, default", "ProjectedGradient, tol 1e-5"),
    },
    "potts256": {
        "legato": (
            "Unroll, 100 iterations, compiled",
            "Unroll, 300 iterations, compiled",
            "Implicit, 100 iterations, tol 1e-3, replayed",
            "Implicit, 300 iterations, tol 1e-4, replayed",
        ),
        "jax_scan": ("100 iterations", "300 iterations"),
        "jaxopt": _single(500),
        "torchdeq": (*_EQUILIBRIA, "ift, 500 and 500 iterations"),
    },
    "tv2d": {
        "legato": _VARIATION,
        "jax_scan": ("2000 iterations",),
        "jaxopt": _single(3000),
        "torchdeq": (*_EQUILIBRIA, "ift, 2000 and 2000 iterations"),
    },
    "tv2d_isotropic": {
        "legato": _VARIATION,
        "jax_scan": ("1000 iterations",),
        "jaxopt": _single(1000),
        "torchdeq": (*_EQUILIBRIA, "ift, 1000 and 1000 iterations"),
        "deepinv": ("TVDenoiser, default", "TVDenoiser, 500 iterations"),
    },
    "programs 4096 × (50, 50)": _PROGRAMS,
    "programs 512 × (200, 200)": _PROGRAMS,
    "programs 1024 × (20, 30)": _PROGRAMS,
    "programs 65536 × (8, 8)": _PROGRAMS,
}
"""The rows of the race on a GPU (gpu.py), in float32 but for the programs."""

ROWS = [
    Row(problem, library, method, LIMITS.get(library, LIMIT))
    for problem, libraries in TABLE.items()
    for library, methods in libraries.items()
    for method in methods
]
