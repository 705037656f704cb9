"""All that a recipe may hold, taken from the package: nothing public is left out unnoticed."""

from __future__ import annotations

import inspect
from types import ModuleType

from legato import algorithms, functions, geometry, gradients, operators

NOT_A_TERM = {
    "AffineSet": "Equality behind a matrix, which is drawn: held against cvxpy by the laws",
    "Function": "the base class",
    "Halfspaces": "Box behind a matrix, which is drawn: held against cvxpy by the laws",
    "IsotropicTV": "short for GroupL1 behind Differences, which are drawn",
    "KullbackLeibler": "logarithms of data: held against cvxpy by the laws of proxes",
    "KSupport": "a minimum over shares: held against cvxpy by the laws of proxes",
    "L0": "not convex: no solver gives its minimiser",
    "BoxSection": "a box and an equation, which are drawn: held against cvxpy by the laws",
    "Hankel": "a pattern of matrices: held against cvxpy by the laws of proxes",
    "L0Ball": "not convex: no solver gives its minimiser",
    "Denoiser": "a network: there is no minimiser",
    "DenoiserResidual": "a network: there is no minimiser",
    "L0BallEnvelope": "not convex: no solver gives its minimiser",
    "LogSum": "not convex: no solver gives its minimiser",
    "ExponentialType": "not convex: no solver gives its minimiser",
    "Geman": "not convex: no solver gives its minimiser",
    "GroupL0Ball": "not convex: no solver gives its minimiser",
    "L1Sphere": "not convex: no solver gives its minimiser",
    "L2Sphere": "not convex: no solver gives its minimiser",
    "TruncatedQuadratic": "not convex: no solver gives its minimiser",
    "MCP": "not convex: no solver gives its minimiser",
    "NormMaximum": "powers: held against cvxpy by its tests",
    "Nuclear": "a cone of matrices: held against cvxpy by the laws of proxes",
    "NuclearBall": "a cone of matrices: held against cvxpy by the laws of proxes",
    "OfSingularValues": "of matrices: held against cvxpy by the laws of proxes",
    "PositiveSemidefinite": "a cone of matrices: held against cvxpy by the laws of proxes",
    "SCAD": "not convex: no solver gives its minimiser",
    "Successive": "what sums of the other terms become",
    "SecondOrderCone": "without a size of its own: held against cvxpy by the laws of proxes",
    "SpectralBall": "a cone of matrices: held against cvxpy by the laws of proxes",
    "SpectralNorm": "a cone of matrices: held against cvxpy by the laws of proxes",
    "SimplexNorm": "powers: held against closed forms",
    "SoftMaximum": "powers: held against closed forms and scipy",
    "Sum": "written with +, in every recipe of two terms",
    "Tsallis": "powers: held against closed forms and scipy",
    "WeightedNuclear": "not convex: no solver gives its minimiser",
    "mirror_prox": "a function",
    "prox": "a function",
    "register_prox": "a function",
    "registered_pairs": "a function",
}
NOT_AN_OPERATOR = {
    "AsComplex": "real variables in front of complex operators: by the laws over complex numbers",
    "Fourier": "complex: held against cvxpy by the laws over complex numbers",
    "Blur": "Convolution, which is drawn, by other means: held against SciPy",
    "Downsample": "of images: held against slices",
    "Mask": "Diagonal of zeros and ones",
    "Operator": "the base class",
    "Part": "of a tuple: held against cvxpy by total generalised variation",
    "parts": "a function",
    "Radon": "of images: held against integrals",
    "SecondDifferences": "short for SymmetrisedGradient behind Differences",
    "Sparse": "Dense by other means: held against its dense matrix",
    "SymmetrisedGradient": "of vector fields: held against its definition",
    "Wavelet": "orthonormal: held against its inverse",
    "from_deepinv": "a function",
    "from_function": "a function",
    "from_pylops": "a function",
    "from_scipy": "a function",
    "as_operator": "a function",
    "lanczos_norm": "a function",
}
NOT_A_STRATEGY = {
    "Backward": "a report",
    "GradientStrategy": "the base class",
    "FixedPointGradient": "the base class",
    "Factored": "what a solver is given",
    "LinearResult": "what a solver returns",
    "LinearSolver": "the base class",
    "Linearisation": "a derivative",
    "Task": "what a strategy is given",
    "MINRES": "primal–dual steps in Euclidean geometries: held against differences by its tests",
    "SaddleFactors": "what a solver is given",
    "random_vector": "a function",
    "spectral_radius": "a function",
    "Implicit": "named with its solver",
}
SOLVERS = ("CG", "GMRES", "BiCGStab", "Direct", "Neumann")
NOT_AN_ALGORITHM = {
    "ADMM": "quadratic data: held against the others by laws of its own",
    "Anderson": "of another algorithm: by laws of its own",
    "DouglasRachford": "two proxes: held against the others by laws of its own",
    "HalfQuadratic": "solves a smoothed problem: by laws of its own",
    "Algorithm": "the base class",
    "SplitStep": "halves of a step",
    "Nesterov": "an option of ForwardBackward",
    "Backtracking": "an option of ForwardBackward",
    "Average": "an option of PrimalDual",
    "AdaptiveBalance": "an option of PrimalDual, chosen with it to reach a tolerance",
    "Restart": "an option of PrimalDual, chosen with it to reach a tolerance",
    "Ruiz": "an option of PrimalDual",
}


def _names(module: ModuleType, left_out: dict[str, str]) -> list[str]:
    return [name for name in module.__all__ if name not in left_out]


def terms() -> list[str]:
    return [f"term: {name}" for name in _names(functions, NOT_A_TERM)]


def operators_() -> list[str]:
    inner = {c.__name__ for c in vars(operators.base).values() if _is_operator(c)}  # type: ignore[attr-defined]
    names = {*_names(operators, NOT_AN_OPERATOR), *inner} - {"Operator"}
    return [f"operator: {name}" for name in sorted(names)]


def _is_operator(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, operators.Operator)


def geometries() -> list[str]:
    return [f"geometry: {name}" for name in geometry.__all__ if name != "Geometry"]


def strategies() -> list[str]:
    plain = [n for n in _names(gradients, NOT_A_STRATEGY) if n not in SOLVERS]
    found = [f"strategy: {name}()" for name in plain]
    found += [f"strategy: Implicit({solver})" for solver in SOLVERS]
    return found + [f"strategy: Unroll({option})" for option in ("last", "checkpoint", "tol")]


def algorithms_() -> list[str]:
    found = [f"algorithm: {name}" for name in _names(algorithms, NOT_AN_ALGORITHM)]
    return [*found, "algorithm: chosen"]


OPTIONS = [
    "option: inertia", "option: inertia restart", "option: step backtracking",
    "option: step fraction", "option: steps", "option: balance", "option: precondition",
    "option: average", "dual_geometry: Entropy", "dual_geometry: Interval",
    "kernel: Entropy", "kernel: Interval", "kernel: Burg", "kernel: Quartic", "kernel: Polyhedral",
    "callable: pseudo Huber", "callable: softplus", "callable: fourth power",
    "callable: log-sum-exp", "callable: joint least squares",
    "form: energy", "form: Composite", "form: Saddle", "form: blocks",
    "dtype: float32", "dtype: float64", "batch: none", "batch: of one size",
    "batch: of many sizes", "start: none", "start: point", "start: another's state",
    "start: another's solution",
    "term: L1 smoothed", "term: NonNegative smoothed", "term: Box smoothed",
    "term: LInfBall smoothed",
]  # fmt: skip


def everything() -> set[str]:
    return {
        *terms(), *operators_(), *geometries(), *strategies(), *algorithms_(), *OPTIONS,
    }  # fmt: skip
