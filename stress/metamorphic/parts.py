"""Functions, proxes, operators and geometries as subjects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import legato as lg
from legato import functions as fn
from metamorphic import more_terms
from metamorphic.subject import Inputs, Numbers, Subject

GROUPS = torch.tensor([0, 1, 0, 1])
Draw = Callable[[Numbers], Inputs]


def _point(n: Numbers) -> Inputs:
    return {"x": n.normal(4)}


def _positive(n: Numbers) -> Inputs:
    return {"x": n.uniform(4, low=0.2, high=1.5)}


def _with(draw: Draw, **more: Callable[[Numbers], Tensor]) -> Draw:
    return lambda n: {**draw(n), **{k: v(n) for k, v in more.items()}}


def _weight(n: Numbers) -> Tensor:
    return n.uniform(low=0.1, high=0.8)


def _weights(n: Numbers) -> Tensor:
    return n.uniform(4, low=0.1, high=0.8)


# --- functions ------------------------------------------------------------------------------------

ALL = {"permuted": {"x": (-1,)}}
EACH = {"permuted": {"x": (-1,), "w": (-1,)}}


def _functions() -> dict[str, tuple[Draw, Callable[[Inputs], Any], dict[str, Any]]]:
    """Draw, function of the inputs, facts; those with a value for any x."""
    data = _with(_point, A=lambda n: n.matrix(5, 4), b=lambda n: n.normal(5))
    return {
        "L1": (_with(_point, w=_weight), lambda t: lg.L1(t["w"]), {**ALL}),
        "L1 per entry": (_with(_point, w=_weights), lambda t: lg.L1(t["w"]), EACH),
        "AsymmetricL1": (_with(_point, w=_weight),
                         lambda t: lg.AsymmetricL1(-t["w"], 0.3), ALL),
        "GroupL1": (_with(_point, w=_weight), lambda t: lg.GroupL1(t["w"]), ALL),
        "GroupL1 of groups": (_with(_point, w=lambda n: n.uniform(2, low=0.2)),
                              lambda t: lg.GroupL1(t["w"], groups=GROUPS), {}),
        "L0": (_with(_point, w=_weight), lambda t: fn.L0(t["w"]), ALL),
        "SquaredNorm": (_with(_point, w=_weights), lambda t: lg.SquaredNorm(t["w"]), EACH),
        "SquaredDistance": (_with(_point, w=lambda n: n.normal(4)),
                            lambda t: lg.SquaredDistance(t["w"]), EACH),
        "Linear": (_with(_point, w=lambda n: n.normal(4)), lambda t: lg.Linear(t["w"]), EACH),
        "Zero": (_point, lambda t: lg.Zero(), ALL),
        "NonNegative": (_point, lambda t: lg.NonNegative(), ALL),
        "Box": (_with(_point, w=_weights), lambda t: lg.Box(-t["w"], t["w"]), EACH),
        "LInfBall": (_with(_point, w=_weight), lambda t: lg.LInfBall(t["w"]), ALL),
        "L2Ball": (_with(_point, w=_weight), lambda t: lg.L2Ball(t["w"]), ALL),
        "Simplex": (_point, lambda t: lg.Simplex(), ALL),
        "Equality": (_with(_point, w=lambda n: n.normal(4)), lambda t: lg.Equality(t["w"]), EACH),
        "Shifted": (_with(_point, w=_weight, c=lambda n: n.normal(4)),
                    lambda t: lg.L1(t["w"]).shifted(t["c"]), {}),
        "Scaled": (_with(_point, w=_weight), lambda t: t["w"] * lg.L1(0.5), ALL),
        "Sum": (_with(_point, w=_weight, c=lambda n: n.normal(4)),
                lambda t: lg.L1(t["w"]) + lg.Linear(t["c"]) + lg.SquaredNorm(0.3), {}),
        "Conjugate": (_point, lambda t: lg.Simplex().conjugate(), ALL),
        "Conjugate of L1": (_with(_point, w=_weight), lambda t: lg.L1(t["w"]).conjugate(), ALL),
        "LeastSquares": (data, lambda t: lg.LeastSquares(t["A"], t["b"]),
                         {"permuted": {"x": (-1,), "A": (-1,)}}),
        "Logistic": (_with(_point, A=lambda n: n.matrix(5, 4)),
                     lambda t: lg.Logistic(t["A"], _ends(t["A"])),
                     {"permuted": {"x": (-1,), "A": (-1,)}}),
        "Quadratic": (_with(_point, A=lambda n: n.matrix(4, 4), c=lambda n: n.normal(4)),
                      lambda t: lg.Quadratic(t["A"].mT @ t["A"], t["c"]), {}),
        "Smooth": (_with(_point, w=_weights),
                   lambda t: lg.Smooth(lambda x: (t["w"] * torch.cosh(x)).sum()), EACH),
        "SmoothAbsolute": (_with(_point, w=_weight), lambda t: lg.L1(t["w"]).smoothed(0.1), ALL),
        "LogBarrier": (_positive, lambda t: lg.NonNegative().smoothed(0.1), ALL),
        "Composed": (data, lambda t: lg.L1(0.3) @ lg.Dense(t["A"]), {}),
        "Composed, smooth": (_with(data), lambda t: lg.SquaredNorm(0.3) @ lg.Dense(t["A"]), {}),
        "NegativeEntropy": (_with(_positive, w=_weight), lambda t: lg.NegativeEntropy(t["w"]),
                            ALL),
        "BregmanTerm": (_with(lambda n: {"x": n.uniform(4, low=-0.8, high=0.8)}, w=_weight),
                        lambda t: lg.BregmanTerm(lg.Interval(-1.0, 1.0), t["w"]), ALL),
        "SoftMaximum": (_point, lambda t: lg.SoftMaximum(1.5), ALL),
        "NormMaximum": (_point, lambda t: lg.NormMaximum(1.7), ALL),
        "SimplexNorm": (_point, lambda t: lg.SimplexNorm(1.7).conjugate(), ALL),
        "Tsallis": (_point, lambda t: lg.Tsallis(1.5).conjugate(), ALL),
        **more_terms.more_terms(),
    }  # fmt: skip


def _ends(A: Tensor) -> Tensor:
    found = torch.ones(A.shape[:-1], dtype=A.dtype)
    found[..., ::2] = -1.0
    return found


def _value(f: Any, t: Inputs) -> Tensor:
    return f(t["x"])


def _slope(f: Any, t: Inputs) -> Tensor:
    return f.grad(t["x"])


def _prox(f: Any, t: Inputs) -> Tensor:
    return f.prox(t["x"], 0.7)


def _member(f: Any, t: Inputs) -> Tensor:
    """The value at a point of the set: 0."""
    return f(f.prox(t["x"], 1.0))


SMOOTH = (
    "SquaredNorm", "SquaredDistance", "Linear", "Zero", "LeastSquares", "Logistic", "Quadratic",
    "Smooth", "SmoothAbsolute", "LogBarrier", "Composed, smooth", "NegativeEntropy", "BregmanTerm",
    "Huber", "NormMaximum", "SoftMaximum",
)  # fmt: skip
PROXABLE = (
    "L1", "L1 per entry", "AsymmetricL1", "GroupL1", "GroupL1 of groups", "L0", "SquaredNorm",
    "SquaredDistance", "Linear", "Zero", "NonNegative", "Box", "LInfBall", "L2Ball", "Simplex",
    "Equality", "Shifted", "Scaled", "Sum", "Conjugate", "Conjugate of L1",
    *more_terms.more_terms(),
)  # fmt: skip
SETS = (
    "NonNegative", "Box", "LInfBall", "L2Ball", "Simplex", "Equality", "Conjugate of L1",
    *more_terms.SETS,
)  # fmt: skip
"""Their values are 0 or infinite."""


def function_subjects() -> list[Subject]:
    found = []
    for name, (draw, make, facts) in _functions().items():
        if name in SETS and name != "Equality":  # whose prox is a constant
            found.append(Subject(name, "set", draw, make, _member, differentiable=False))
        if name not in SETS:
            alone = {k: v for k, v in facts.items() if k != "permuted"}
            found.append(Subject(name, "value", draw, make, _value, **alone))
        if name in SMOOTH:
            more = {"batched": ("x",)} if name not in ("Smooth",) else {}
            found.append(Subject(name, "grad", draw, make, _slope, **facts, **more))
        if name in PROXABLE:
            more = {"batched": ("x",)}
            found.append(Subject(name, "prox", draw, make, _prox, **facts, **more))
    return found + _mirror_proxes()


def _mirror_proxes() -> list[Subject]:
    """P(y) = argmin αg + ψ − ⟨y, ·⟩ in geometries other than the Euclidean."""
    unit = lg.Interval(-1.0, 1.0)
    y = _with(lambda n: {"x": n.normal(4)}, w=_weight)
    below = _with(lambda n: {"x": -0.5 - n.uniform(4)}, w=_weight)
    cases: dict[str, tuple[Draw, Callable[[Inputs], Any], Any]] = {
        "L1, Entropy": (y, lambda t: lg.L1(t["w"]), lg.Entropy()),
        "L1, Interval": (y, lambda t: lg.L1(t["w"]), unit),
        "L1, Burg": (below, lambda t: lg.L1(t["w"]), lg.Burg()),
        "L1, Quartic": (y, lambda t: lg.L1(t["w"]), lg.Quartic()),
        "AsymmetricL1, Interval": (y, lambda t: lg.AsymmetricL1(-t["w"], t["w"]), unit),
        "NonNegative, Entropy": (y, lambda t: lg.NonNegative(), lg.Entropy()),
        "NonNegative, Burg": (below, lambda t: lg.NonNegative(), lg.Burg()),
        "Simplex, Entropy": (y, lambda t: lg.Simplex(), lg.Entropy()),
        "Simplex with entropy": (
            y, lambda t: lg.Simplex() + lg.NegativeEntropy(t["w"]) + lg.Linear(t["x"].detach()),
            lg.Entropy(),
        ),
        "Box, Entropy": (y, lambda t: lg.Box(0.0, t["w"]), lg.Entropy()),
        "Box, Interval": (y, lambda t: lg.Box(-1.0, 1.0), unit),
        "LInfBall, Interval": (y, lambda t: lg.LInfBall(t["w"]), unit),
    }  # fmt: skip
    return [
        Subject(
            name,
            "mirror prox",
            draw,
            lambda t, make=make, geometry=geometry: (make(t), geometry),
            lambda built, t: lg.mirror_prox(built[0], built[1], t["x"], 0.7),
            covers=("mirror_prox", "prox"),
            batched=("x",),
            permuted={"x": (-1,)},
        )
        for name, (draw, make, geometry) in cases.items()
    ]


# --- operators ------------------------------------------------------------------------------------


def _operators() -> dict[str, tuple[Draw, Callable[[Inputs], Any]]]:
    def image(n: Numbers) -> Inputs:
        return {"x": n.normal(3, 4)}

    def planes(n: Numbers) -> Inputs:
        return {"x": n.normal(2, 4, 5)}

    matrix = _with(_point, A=lambda n: n.matrix(3, 4))
    pattern = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]]).to_sparse_csr()
    return {
        "Dense": (matrix, lambda t: lg.Dense(t["A"])),
        "Sparse": (_with(_point, v=lambda n: n.normal(5)), lambda t: lg.Sparse(pattern, t["v"])),
        "Diagonal": (_with(_point, d=lambda n: n.normal(4)), lambda t: lg.Diagonal(t["d"])),
        "Identity": (_point, lambda t: lg.Identity()),
        "Differences": (image, lambda t: lg.Differences()),
        "Differences, weights": (_with(image, w=lambda n: n.uniform(2, 3, 4)),
                                 lambda t: lg.Differences(weights=t["w"])),
        "Differences, offsets": (image, lambda t: lg.Differences(
            offsets=((1, 0), (0, 1), (1, 1), (1, -1)))),
        "Convolution": (_with(planes, k=lambda n: n.normal(3, 2, 2, 3)),
                        lambda t: lg.Convolution(t["k"])),
        "Convolution, mirror": (_with(planes, k=lambda n: n.normal(3, 2, 2, 3)),
                                lambda t: lg.Convolution(t["k"], "mirror")),
        "Convolution, circular": (_with(planes, k=lambda n: n.normal(3, 2, 2, 3)),
                                  lambda t: lg.Convolution(t["k"], "circular")),
        "Mask": (image, lambda t: lg.Mask(torch.eye(3, 4) > 0)),
        "Downsample": (planes, lambda t: lg.Downsample(2, (-2,))),
        "Blur": (_with(image, k=lambda n: n.normal(2, 3)), lambda t: lg.Blur(t["k"])),
        "SymmetrisedGradient": (planes, lambda t: lg.SymmetrisedGradient()),
        "SecondDifferences": (image, lambda t: lg.SecondDifferences()),
        "Wavelet": (lambda n: {"x": n.normal(4, 8)}, lambda t: lg.Wavelet(2)),
        "Radon": (lambda n: {"x": n.normal(5, 5)}, lambda t: lg.Radon([0.2, 1.4], 5)),
        "Fourier": (image, lambda t: lg.operators.AsComplex().T
                    @ lg.Fourier(torch.eye(3, 4) > 0) @ lg.operators.AsComplex()),
        "Stack": (_with(matrix), lambda t: lg.Stack(lg.Dense(t["A"]), lg.Identity())),
        "Composition": (matrix, lambda t: lg.Differences((-1,)) @ lg.Dense(t["A"])),
        "Sum": (matrix, lambda t: lg.Dense(t["A"]) + 0.5 * lg.Dense(t["A"])),
        "Scaled by a tensor": (_with(matrix, s=_weight), lambda t: t["s"] * lg.Dense(t["A"])),
        "Adjoint": (_with(lambda n: {"x": n.normal(3)}, A=lambda n: n.matrix(3, 4)),
                    lambda t: lg.Dense(t["A"]).T),
    }  # fmt: skip


def _apply(K: Any, t: Inputs) -> tuple[Tensor, ...]:
    image = K(t["x"])
    parts = image if isinstance(image, tuple) else (image,)
    return (*parts, K.adjoint(image))


def operator_subjects() -> list[Subject]:
    applied = [
        Subject(
            name, "operator", draw, make, _apply, batched=("x",), homogeneous=("x",),
            covers=("as_operator", "SecondDifferences"),
        )
        for name, (draw, make) in _operators().items()
    ]  # fmt: skip
    norms = [
        Subject(
            name, "norm", draw, make, lambda K, t: torch.as_tensor(K.norm(t["x"])),
            differentiable=False, covers=("lanczos_norm",), rounding=1e-6, shapes=("x",),
        )
        for name, (draw, make) in _operators().items()
    ]  # fmt: skip
    return applied + norms


# --- geometries -----------------------------------------------------------------------------------


def _geometry(g: Any, t: Inputs) -> tuple[Tensor, ...]:
    mirrored = g.mirror(t["x"])
    return mirrored, g.unmirror(mirrored), g.value(t["x"]), g.distance(t["x"], t["z"])


def geometry_subjects() -> list[Subject]:
    inside = _with(lambda n: {"x": n.uniform(4, low=0.1, high=0.9)},
                   z=lambda n: n.uniform(4, low=0.1, high=0.9))  # fmt: skip
    square = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    plane = _with(lambda n: {"x": n.uniform(2, low=0.1, high=0.4)},
                  z=lambda n: n.uniform(2, low=0.1, high=0.4))  # fmt: skip
    all_ = {"x": (-1,), "z": (-1,)}
    cases: dict[str, tuple[Draw, Callable[[Inputs], Any], dict[str, Any]]] = {
        "Euclidean": (inside, lambda t: lg.Euclidean(), all_),
        "Entropy": (inside, lambda t: lg.Entropy(), all_),
        "Burg": (inside, lambda t: lg.Burg(), all_),
        "Quartic": (inside, lambda t: lg.Quartic(), all_),
        "Interval": (_with(inside, hi=lambda n: n.uniform(4, low=1.1, high=2.0)),
                     lambda t: lg.Interval(-t["hi"], t["hi"]), {**all_, "hi": (-1,)}),
        "Polyhedral": (plane, lambda t: lg.Polyhedral(
            square.to(t["x"].dtype), torch.tensor([0.1, 0.1, 1.0], dtype=t["x"].dtype)), {}),
    }  # fmt: skip
    found = [
        # The first output, the mirror variable, is permuted as x is; the others follow.
        Subject(name, "geometry", draw, make, _geometry, rounding=1e-8,
                in_single=5e-3 if name == "Polyhedral" else 2e-3)
        for name, (draw, make, _) in cases.items()
    ]  # fmt: skip
    pair = lg.Product(lg.Entropy(), lg.Interval(-1.0, 1.0))
    found.append(
        Subject(
            "Product",
            "geometry",
            inside,
            lambda t: pair,
            lambda g, t: g.unmirror(g.mirror((t["x"], 0.5 * t["z"]))),
            rounding=1e-8,
        )
    )
    return found


def part_subjects() -> list[Subject]:
    return [*function_subjects(), *operator_subjects(), *geometry_subjects()]
