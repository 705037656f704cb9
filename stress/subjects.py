"""Everything that solves and differentiates, as functions of named inputs.

A subject gives its inputs in ordinary sizes, and a function from inputs to outputs. ``homogeneous``
names the inputs that, all multiplied by s, multiply the outputs by s to the power ``degree``: so
the right answer is known at any scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato import nn

Inputs = dict[str, Tensor]


@dataclass
class Subject:
    """Inputs in double precision, what is computed from them, and how it scales."""

    inputs: Inputs
    compute: Callable[[Inputs], Tensor]
    homogeneous: tuple[str, ...] = ()
    degree: int = 1
    nonnegative: tuple[str, ...] = ()


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


STRATEGIES = {
    "Unroll": lg.Unroll(),
    "Unroll(tol)": lg.Unroll(tol=1e-5),
    "FixedPoint": lg.FixedPoint(300),
    "Implicit": lg.Implicit(),
    "BiCGStab": lg.Implicit(lg.BiCGStab()),
    "Dense": lg.Implicit(lg.Direct()),
}


def _matrix(rows: int, columns: int) -> Tensor:
    left, _, right = torch.linalg.svd(_normal(0, rows, columns), full_matrices=False)
    return left * torch.linspace(1.0, 0.4, columns, dtype=torch.float64) @ right


def _with_strategies(
    name: str, subject: Callable[[Any], Subject], strategies: dict[str, Any]
) -> dict[str, Subject]:
    return {f"{name}, {key}": subject(strategy) for key, strategy in strategies.items()}


def _composite(term: Callable[..., Any], algorithm: Any, inputs: Inputs, **options: Any) -> Any:
    def of(gradient: Any) -> Subject:
        def compute(t: Inputs) -> Tensor:
            extra = {k: v for k, v in t.items() if k not in ("A", "b")}
            problem = lg.Composite(lg.LeastSquares(t["A"], t["b"]), term(**extra))
            return lg.solve(problem, algorithm, gradient=gradient, stop=lg.Stop(100)).x

        return Subject(inputs, compute, **options)

    return of


def _total_variation(gradient: Any) -> Subject:
    def compute(t: Inputs) -> Tensor:
        data = lg.SquaredDistance(t["b"])
        problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(t["w"]), nonsmooth=data)
        return lg.solve(problem, lg.PrimalDual(), gradient=gradient, stop=lg.Stop(100)).x

    b = torch.tensor([0.1, 0.2, 0.0, 1.1, 0.9, 1.0, 1.3, -0.4], dtype=torch.float64)
    return Subject({"b": b, "w": _number(0.25)}, compute, ("b", "w"), nonnegative=("w",))


def solves() -> dict[str, Subject]:
    A = _matrix(7, 5)
    x = torch.tensor([1.2, -0.9, 0.0, 0.7, 0.0], dtype=torch.float64)
    b = A @ x + 0.1 * _normal(1, 7)
    entropic = lg.ForwardBackward(0.8, lg.Entropy())
    plain, fast = lg.ForwardBackward(inertia=0.0), lg.ForwardBackward(inertia=lg.Nesterov())
    data = {"A": A, "b": b}
    lasso = {**data, "w": _number(0.1)}
    box = {**data, "hi": torch.full((5,), 0.5, dtype=torch.float64)}
    found: dict[str, Subject] = {}
    for name, of in {
        "lasso": _composite(
            lambda w: lg.L1(w), plain, lasso, homogeneous=("b", "w"), nonnegative=("w",)
        ),
        "lasso, Nesterov": _composite(
            lambda w: lg.L1(w), fast, lasso, homogeneous=("b", "w"), nonnegative=("w",)
        ),
        "group lasso": _composite(
            lambda w: lg.GroupL1(w), plain, lasso, homogeneous=("b", "w"), nonnegative=("w",)
        ),
        "nnls": _composite(lambda: lg.NonNegative(), plain, data, homogeneous=("b",)),
        "nnls, backtracking": _composite(
            lambda: lg.NonNegative(), lg.ForwardBackward(lg.Backtracking()), data,
            homogeneous=("b",),
        ),
        "simplex": _composite(
            lambda: lg.Simplex(), plain, data, homogeneous=("A", "b"), degree=0
        ),
        "simplex, entropy": _composite(lambda: lg.Simplex(), entropic, data),
        "box": _composite(
            lambda hi: lg.Box(-hi, hi), plain, box, homogeneous=("b", "hi"), nonnegative=("hi",)
        ),
    }.items():  # fmt: skip
        found |= _with_strategies(name, of, STRATEGIES)
    saddle = {**STRATEGIES, "Piggyback": lg.Piggyback()}
    found |= _with_strategies("tv", _total_variation, saddle)
    return found


# --- layers ---------------------------------------------------------------------------------------


def _layer(
    layer: Any, inputs: Inputs, read: Callable[[Any], Tensor], *names: str, **options: Any
) -> Subject:
    def compute(t: Inputs) -> Tensor:
        like = next(iter(t.values()))
        return read(layer.to(like.device, like.dtype)(*(t[n] for n in names)))

    return Subject(inputs, compute, **options)


def _potts(**options: Any) -> Subject:
    shape = (3, 4) if "gradient" in options else (6, 7)
    weights = 0.3 + _normal(6, 1, 1, 1, *shape).sigmoid()
    inputs = {"cost": _normal(5, 1, 3, *shape), "weights": weights}
    scaling: dict[str, Any] = {"homogeneous": ("cost", "weights"), "degree": 0}
    if options.get("epsilon"):
        scaling = {}
    return _layer(
        nn.Potts(40, **options), inputs, torch.exp, "cost", "weights",
        nonnegative=("weights",), **scaling,
    )  # fmt: skip


def _tv_layer(**options: Any) -> Subject:
    inputs = {"image": _normal(7, 1, 2, 6, 7).cumsum(-1), "weight": _number(0.2)}
    return _layer(
        nn.TotalVariation(50, **options), inputs, lambda u: u, "image", "weight",
        homogeneous=("image", "weight"), nonnegative=("weight",),
    )  # fmt: skip


def layers() -> dict[str, Subject]:
    A = _matrix(7, 5)
    b = A @ _normal(8, 5).abs()
    image = {"image": _normal(9, 1, 1, 8, 8)}
    signals = {"signals": _normal(10, 3, 4)}
    payoffs = {"payoffs": _normal(11, 4, 3)}
    game = {"homogeneous": ("payoffs",), "degree": 0}
    least = {"operator": A, "data": b}
    found: dict[str, Subject] = {}
    for kernel in ("numba", "reference"):
        found |= {
            f"Potts, {kernel}": _potts(kernel=kernel),
            f"Potts, average, {kernel}": _potts(kernel=kernel, average=True),
            f"Potts, 8 neighbours, {kernel}": _potts(kernel=kernel, neighbours=8),
            f"Potts, epsilon, {kernel}": _potts(kernel=kernel, epsilon=0.1),
            f"TotalVariation, {kernel}": _tv_layer(kernel=kernel),
            f"TotalVariation, anisotropic, {kernel}": _tv_layer(kernel=kernel, isotropic=False),
            f"TotalVariation, joint, {kernel}": _tv_layer(kernel=kernel, joint_channels=True),
        }
    found |= {
        "Potts": _potts(),  # with the kernel of its device
        "TotalVariation": _tv_layer(),
        "Potts, epsilon, Implicit": _potts(epsilon=0.1, gradient=lg.Implicit()),
        "TotalVariation, Implicit": _tv_layer(gradient=lg.Implicit()),
        "AnalysisDenoiser": _layer(
            nn.AnalysisDenoiser(size=3, iterations=60), image, lambda o: o, "image"
        ),
        "AnalysisDenoiser, interval": _layer(
            nn.AnalysisDenoiser(size=3, iterations=60, interval=True), image,
            lambda o: o, "image",
        ),
        "AnalysisDenoiser, conditioned": _layer(
            nn.AnalysisDenoiser(size=3, iterations=60, conditioned=True), image,
            lambda o: o, "image",
        ),
        "AnalysisDenoiser, Implicit": _layer(
            nn.AnalysisDenoiser(size=3, iterations=60, gradient=lg.Implicit()), image,
            lambda o: o, "image",
        ),
        "SparseCoding": _layer(
            nn.SparseCoding(5, 4, iterations=60), signals, lambda o: o, "signals"
        ),
        "SparseCoding, nonnegative": _layer(
            nn.SparseCoding(5, 4, iterations=60, nonnegative=True), signals,
            lambda o: o, "signals",
        ),
        "MatrixGame": _layer(nn.MatrixGame(), payoffs, lambda o: o[0], "payoffs"),
        "MatrixGame, sharp": _layer(
            nn.MatrixGame(0.0, average=True), payoffs, lambda o: o[0], "payoffs", **game
        ),
        "NonNegativeLeastSquares": _layer(
            nn.NonNegativeLeastSquares(), least, lambda o: o, "operator", "data",
            homogeneous=("data",),
        ),
        "NonNegativeLeastSquares, entropy": _layer(
            nn.NonNegativeLeastSquares(geometry=lg.Entropy()), least, lambda o: o,
            "operator", "data", homogeneous=("operator", "data"), degree=0,
        ),
        "NonNegativeLeastSquares, entropy, Implicit": _layer(
            nn.NonNegativeLeastSquares(600, geometry=lg.Entropy(), gradient=lg.Implicit()), least,
            lambda o: o, "operator", "data", homogeneous=("data",),
        ),
        "NonNegativeLeastSquares, Burg": _layer(
            nn.NonNegativeLeastSquares(geometry=lg.Burg()), least, lambda o: o,
            "operator", "data", homogeneous=("data",),
        ),
        "SimplexLeastSquares": _layer(
            nn.SimplexLeastSquares(), least, lambda o: o, "operator", "data",
            homogeneous=("operator", "data"), degree=0,
        ),
        "SimplexLeastSquares, entropy": _layer(
            nn.SimplexLeastSquares(geometry=lg.Entropy()), least, lambda o: o,
            "operator", "data", homogeneous=("operator", "data"), degree=0,
        ),
        "ContrastWeights": _layer(
            nn.ContrastWeights(), image, lambda o: o, "image"
        ),
        "SimilarityWeights": _layer(
            nn.SimilarityWeights(), image, lambda o: o, "image"
        ),
    }  # fmt: skip
    return found


def subjects() -> dict[str, Subject]:
    """All of them, by name."""
    torch.manual_seed(0)  # layers draw their parameters
    return {**solves(), **layers()}


def _small(name: str) -> Callable[[], Subject]:
    return lambda: subjects()[name]


SUBJECTS_TO_REPEAT = {
    name: _small(name)
    for name in (
        "lasso, Unroll", "lasso, Implicit", "simplex, entropy, FixedPoint", "tv, Piggyback",
        "Potts", "TotalVariation", "AnalysisDenoiser", "MatrixGame",
    )
}  # fmt: skip
"""One of every kind of backward pass, for tests that repeat them many times."""
