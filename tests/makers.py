"""One maker for each implementation: register it here and it inherits every law of its kind.

A maker builds everything in float64 unless asked otherwise, from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import torch
from torch import Tensor

import legato as lg
from draws import crandn, rand, randn
from legato.nn.reconstruction.over_fields import Lifted
from legato.operators.base import Adjoint, Scaled
from legato.operators.base import Sum as OperatorSum
from term_cases import TERM_CASES

# --- geometries -----------------------------------------------------------------------------------


@dataclass
class GeometryCase:
    """A geometry, interior points of it by seed, and how wild its mirror variables may be."""

    geometry: lg.Geometry
    point: Callable[[int], Any]
    mirror_range: tuple[float, float] = (-(2.0**100), 2.0**100)


def _positive(seed: int) -> Tensor:
    return 0.05 + 2 * rand(3, 4, seed=seed)


def _triangle(dtype: torch.dtype) -> lg.Polyhedral:
    A = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0], [1.0, -0.5]], dtype=dtype)
    return lg.Polyhedral(A, torch.tensor([0.5, 0.4, 1.0, 0.8], dtype=dtype))


def geometries(dtype: torch.dtype = torch.float64) -> dict[str, GeometryCase]:
    lo = torch.linspace(-2, 0.5, 4, dtype=dtype)
    hi = lo + torch.linspace(0.5, 3, 4, dtype=dtype)
    cases = {
        "Euclidean": GeometryCase(lg.Euclidean(), lambda s: randn(3, 4, seed=s)),
        "Entropy": GeometryCase(lg.Entropy(), _positive),
        "Interval": GeometryCase(lg.Interval(-1.0, 1.0), lambda s: 1.9 * rand(3, 4, seed=s) - 0.95),
        "Interval ends": GeometryCase(
            lg.Interval(lo, hi),
            lambda s: lo + (hi - lo) * (0.05 + 0.9 * rand(3, 4, seed=s, dtype=dtype)),
        ),
        "Burg": GeometryCase(lg.Burg(), _positive, (-(2.0**100), -(2.0**-50))),
        "Quartic": GeometryCase(lg.Quartic(), lambda s: randn(3, 4, seed=s)),
        "Polyhedral": GeometryCase(_triangle(dtype), lambda s: 0.5 * rand(3, 2, seed=s) - 0.2),
        "Product": GeometryCase(
            lg.Product(lg.Entropy(), lg.Interval(-1.0, 1.0)),
            lambda s: (_positive(s), 1.8 * rand(5, seed=s + 1) - 0.9),
        ),
    }
    for case in cases.values():
        point = case.point
        case.point = lambda s, point=point: _cast(point(s), dtype)
    return cases


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return tuple(_cast(t, dtype) for t in x) if isinstance(x, tuple) else x.to(dtype)


# --- operators ------------------------------------------------------------------------------------


@dataclass
class OperatorCase:
    """An operator with inputs by seed; ``tight`` says how far norm() may exceed the true norm."""

    operator: lg.Operator
    point: Callable[[int], Tensor]
    tight: float = 1.01


def operators(dtype: torch.dtype = torch.float64) -> dict[str, OperatorCase]:
    def r(*shape: int, seed: int = 0) -> Tensor:
        return randn(*shape, seed=seed, dtype=dtype)

    def at(*shape: int) -> Callable[[int], Tensor]:
        return lambda s: r(*shape, seed=s)

    dense, other = lg.Dense(r(5, 7, seed=1)), lg.Dense(r(5, 7, seed=2))
    weights = rand(2, 6, 5, seed=3, dtype=dtype)
    return {
        "Dense": OperatorCase(dense, at(7)),
        "Dense on a batch": OperatorCase(dense, at(3, 7)),
        "Dense, large": OperatorCase(lg.Dense(r(520, 530, seed=4)), at(530)),
        "Dense, one matrix each": OperatorCase(lg.Dense(r(3, 5, 7, seed=5)), at(3, 7)),
        "Sparse": OperatorCase(
            lg.Sparse((r(5, 7, seed=1) * (r(5, 7, seed=13) > 0)).to_sparse_csr()), at(3, 7)
        ),
        "Differences 1-D": OperatorCase(lg.Differences((-1,)), at(40)),
        "Differences 2-D": OperatorCase(lg.Differences(), at(2, 21, 19)),
        "Differences 3-D": OperatorCase(lg.Differences((-3, -2, -1)), at(7, 8, 6), tight=1.05),
        "Differences along one axis": OperatorCase(lg.Differences((-2,)), at(2, 30, 5)),
        "Differences, weighted": OperatorCase(
            lg.Differences(weights=weights), at(2, 6, 5), tight=2.0
        ),
        "Differences, scaled": OperatorCase(lg.Differences(weights=-0.3), at(30, 30)),
        "Differences": OperatorCase(
            lg.Differences(offsets=((1, 0), (0, 1), (1, 1), (1, -1))), at(2, 14, 13), tight=1.2
        ),
        "Differences, far and weighted": OperatorCase(
            lg.Differences(offsets=((-2, 1), (0, -3)), weights=rand(2, 6, 5, seed=9, dtype=dtype)),
            at(6, 5),
            tight=2.0,
        ),
        "Differences of one pixel": OperatorCase(lg.Differences(), at(1, 1), tight=torch.inf),
        "Convolution 1-D": OperatorCase(lg.Convolution(r(2, 3, 4)), at(3, 60), tight=1.05),
        "Convolution 2-D": OperatorCase(lg.Convolution(r(4, 1, 3, 5)), at(2, 1, 16, 15), tight=1.2),
        "Convolution 3-D": OperatorCase(
            lg.Convolution(r(2, 1, 3, 2, 3)), at(1, 6, 7, 5), tight=1.6
        ),
        "Convolution, circular": OperatorCase(
            lg.Convolution(r(3, 2, 3, 4), "circular"), at(2, 8, 9)
        ),
        "Convolution 1-D, mirror": OperatorCase(
            lg.Convolution(r(2, 3, 4), "mirror"), at(3, 20), tight=1.06
        ),
        "Convolution 2-D, mirror": OperatorCase(
            lg.Convolution(r(4, 2, 3, 4), "mirror"), at(3, 2, 9, 8), tight=1.06
        ),
        "Diagonal": OperatorCase(lg.Diagonal(r(6, seed=6)), at(4, 6)),
        "Identity": OperatorCase(lg.Identity(), at(4, 6)),
        "Stack": OperatorCase(lg.Stack(lg.Differences(), lg.Identity()), at(9, 8), tight=1.1),
        "Composition": OperatorCase(lg.Dense(r(4, 5, seed=7)) @ dense, at(7), tight=torch.inf),
        "Sum": OperatorCase(dense + other, at(7), tight=torch.inf),
        "Difference": OperatorCase(dense - other, at(7), tight=torch.inf),
        "Mask": OperatorCase(lg.Mask(r(6, 5, seed=10) > 0), at(2, 6, 5)),
        "Downsample": OperatorCase(lg.Downsample(2), at(3, 6, 4)),
        "Downsample one axis": OperatorCase(lg.Downsample(3, (-2,)), at(6, 4)),
        "Blur": OperatorCase(lg.Blur(r(3, 4, seed=11)), at(2, 8, 9)),
        "Blur 1-D, zero": OperatorCase(lg.Blur(r(4, seed=11), "zero"), at(2, 30), tight=1.05),
        "Blur 2-D, zero": OperatorCase(lg.Blur(r(3, 3, seed=11), "zero"), at(20, 21), tight=1.1),
        "Blur 2-D, mirror": OperatorCase(lg.Blur(r(3, 4, seed=11), "mirror"), at(9, 8), tight=1.06),
        "SymmetrisedGradient": OperatorCase(lg.SymmetrisedGradient(), at(2, 2, 17, 15)),
        "SymmetrisedGradient 3-D": OperatorCase(
            lg.SymmetrisedGradient((-3, -2, -1)), at(3, 5, 6, 4), tight=1.2
        ),
        "SecondDifferences": OperatorCase(lg.SecondDifferences(), at(19, 21), tight=1.05),
        "Image and field": OperatorCase(Lifted(), at(2, 3, 23, 21), tight=1.02),
        "Image and field behind a blur": OperatorCase(
            Lifted(lg.Blur(r(3, 4, seed=11))), at(3, 9, 8), tight=1.5
        ),
        "Wavelet": OperatorCase(lg.Wavelet(2), at(2, 8, 12)),
        "Wavelet 1-D": OperatorCase(lg.Wavelet(3, dims=(-1,)), at(3, 16)),
        "Radon": OperatorCase(lg.Radon([0.0, 0.4, 1.3, 2.2], 8), at(2, 8, 8)),
        "Radon, few detectors": OperatorCase(lg.Radon([0.3, 1.9], 7, 5), at(7, 7)),
        "from_function": OperatorCase(
            lg.operators.from_function(lambda x: (x.flip(0) @ x.new_ones(5, 2)).cumsum(0), (4, 5)),
            at(4, 5),
        ),
        "from_scipy": OperatorCase(
            lg.operators.from_scipy(r(4, 6, seed=12).double().numpy()), at(3, 6)
        ),
        "Scaled": OperatorCase(-2.5 * dense, at(7)),
        "Scaled by a tensor": OperatorCase(r(1, seed=8).sum() * dense, at(7)),
        "Adjoint": OperatorCase(dense.T, at(5)),
    }


def complex_operators() -> dict[str, OperatorCase]:
    """Operators on complex variables; those above take them, too, where their data are real."""

    def at(*shape: int) -> Callable[[int], Tensor]:
        return lambda s: crandn(*shape, seed=s)

    mask = rand(6, 5, seed=20) > 0.4
    coils = crandn(3, 6, 5, seed=21)
    dense = lg.Dense(crandn(5, 7, seed=22))
    cases = {
        "Fourier": OperatorCase(lg.Fourier(mask), at(2, 6, 5)),
        "Fourier of lines": OperatorCase(lg.Fourier(mask[:1], dims=(-2,)), at(6, 5)),
        "Fourier with coils": OperatorCase(lg.Fourier(None, coils), at(2, 6, 5)),
        "Fourier with coils and mask": OperatorCase(lg.Fourier(mask, coils), at(6, 5), tight=1.6),
        "Fourier with coils of a batch": OperatorCase(
            lg.Fourier(mask, crandn(2, 3, 6, 5, seed=23)), at(2, 6, 5), tight=1.6
        ),
        "Dense": OperatorCase(dense, at(2, 7)),
        "Dense, real": OperatorCase(lg.Dense(randn(5, 7, seed=24)), at(2, 7)),
        "Dense, one matrix each": OperatorCase(lg.Dense(crandn(3, 5, 7, seed=25)), at(3, 7)),
        "Sparse": OperatorCase(
            lg.Sparse((crandn(5, 7, seed=22) * (randn(5, 7, seed=29) > 0)).to_sparse_csr()),
            at(2, 7),
        ),
        "Diagonal": OperatorCase(lg.Diagonal(crandn(6, seed=26)), at(4, 6)),
        "Mask": OperatorCase(lg.Mask(mask), at(2, 6, 5)),
        "Downsample": OperatorCase(lg.Downsample(2), at(4, 6)),
        "Blur": OperatorCase(lg.Blur(randn(3, 4, seed=27)), at(2, 8, 9)),
        "Blur, complex": OperatorCase(lg.Blur(crandn(3, 4, seed=27)), at(2, 8, 9)),
        "Blur, complex, mirror": OperatorCase(
            lg.Blur(crandn(3, 3, seed=27), "mirror"), at(9, 8), tight=1.1
        ),
        "Convolution": OperatorCase(
            lg.Convolution(randn(2, 1, 3, 3, seed=28)), at(1, 9, 8), tight=1.3
        ),
        "Convolution, complex": OperatorCase(
            lg.Convolution(crandn(2, 2, 3, 2, seed=28), "circular"), at(2, 9, 8)
        ),
        "Convolution, mirror": OperatorCase(
            lg.Convolution(randn(2, 1, 3, 2, seed=28), "mirror"), at(1, 9, 8), tight=1.1
        ),
        "Differences": OperatorCase(lg.Differences(), at(12, 11), tight=1.05),
        "Differences, weighted": OperatorCase(
            lg.Differences(weights=crandn(2, 6, 5, seed=29)), at(6, 5), tight=2.0
        ),
        "SymmetrisedGradient": OperatorCase(lg.SymmetrisedGradient(), at(2, 9, 8), tight=1.1),
        "Image and field": OperatorCase(Lifted(), at(2, 3, 9, 8), tight=1.1),
        "Wavelet": OperatorCase(lg.Wavelet(2), at(2, 8, 12)),
        "Radon": OperatorCase(lg.Radon([0.0, 0.4, 1.3], 6), at(6, 6)),
        "Stack": OperatorCase(lg.Stack(lg.Identity(), lg.Fourier()), at(6, 5)),
        "Scaled": OperatorCase((0.5 - 2j) * dense, at(7)),
        "Real images": OperatorCase(
            lg.Fourier(mask) @ lg.operators.AsComplex(), lambda s: randn(6, 5, seed=s), tight=1.2
        ),
        "Real parts": OperatorCase(lg.operators.AsComplex().T, at(3, 4)),
        "from_function": OperatorCase(
            lg.operators.from_function(torch.fft.fft, (6,), torch.complex128), at(6)
        ),
        "from_scipy": OperatorCase(
            lg.operators.from_scipy(crandn(4, 6, seed=30).numpy()), at(3, 6)
        ),
    }
    return cases


OPERATOR_TYPES = {Adjoint, Scaled, OperatorSum}
"""Types that only arise from others by algebra; the cases above build them with symbols."""

# --- prox pairs -----------------------------------------------------------------------------------


@dataclass
class ProxCase:
    """A pair (function, geometry) built from differentiable parameters.

    ``model`` is α g(x) + ψ(x) with its constraints for cvxpy, or None where another case says the
    same; ``feasible`` draws points of the domain.
    """

    build: Callable[..., tuple[lg.Function, lg.Geometry]]
    y: Any
    feasible: Callable[[int], Any]
    parameters: tuple[Tensor, ...] = ()
    alpha: float = 0.7
    model: Callable[[cp.Variable], tuple[Any, list[Any]]] | None = None
    solver_tolerance: float = 1e-11


Y = randn(3, 4, seed=11) * 2
W = 0.2 + rand(3, 4, seed=12)
LO, HI = -0.3 - rand(4, seed=13), 0.4 + rand(4, seed=14)


def _np(t: Tensor) -> Any:
    return t.detach().numpy()


def _sq(x: cp.Variable) -> Any:
    return 0.5 * cp.sum_squares(x)


def _ent(x: cp.Variable) -> Any:
    return -cp.sum(cp.entr(x))


def _interval(x: cp.Variable, lo: float = -1.0, hi: float = 1.0) -> Any:
    r, m = (hi - lo) / 2, (hi + lo) / 2
    t = (x - m) / r
    return -0.5 * r * r * (cp.sum(cp.entr(1 + t)) + cp.sum(cp.entr(1 - t)))


def _free(s: int) -> Tensor:
    return 3 * randn(3, 4, seed=s)


def _orthant(s: int) -> Tensor:
    return 3 * rand(3, 4, seed=s) * (rand(3, 4, seed=s + 999) > 0.3)


def _unit(s: int) -> Tensor:
    return 1.98 * rand(3, 4, seed=s) - 0.99


def _softmax(s: int) -> Tensor:
    return torch.softmax(6 * randn(3, 4, seed=s), -1)


def _box(s: int) -> Tensor:
    return LO + (HI - LO) * rand(3, 4, seed=s)


def _ball(s: int) -> Tensor:
    z = randn(3, 4, seed=s)
    return 0.9 * z / z.norm(dim=-1, keepdim=True) * rand(3, 1, seed=s)


GROUPS = torch.tensor([0, 1, 0, 1])
a = 0.7  # the step of all cases, for the cvxpy models below

PROX: dict[tuple[type, type], list[ProxCase]] = {}


def case(function: type, geometry: type, **kwargs: Any) -> None:
    PROX.setdefault((function, geometry), []).append(ProxCase(**kwargs))


E, H, B, I, Q = lg.Euclidean(), lg.Entropy(), lg.Burg(), lg.Interval(-1.0, 1.0), lg.Quartic()

case(lg.Zero, lg.Geometry, build=lambda: (lg.Zero(), Q), y=Y, feasible=_free)
case(
    lg.Zero,
    lg.Geometry,
    build=lambda c: (lg.Linear(c), H),
    y=Y,
    feasible=_orthant,
    parameters=(randn(3, 4, seed=15),),
    model=lambda x: (a * cp.sum(cp.multiply(_np(randn(3, 4, seed=15)), x)) + _ent(x), []),
)
case(
    lg.Zero,
    lg.Geometry,
    build=lambda w: (lg.SquaredNorm(w), E),
    y=Y,
    feasible=_free,
    parameters=(torch.tensor(0.3, dtype=torch.float64),),
    model=lambda x: ((1 + a * 0.3) * _sq(x), []),
)
case(
    lg.Zero,
    lg.Geometry,
    build=lambda: (lg.Zero(), lg.Product(H, I)),
    y=(Y, Y),
    feasible=lambda s: (_orthant(s), _unit(s)),
)
case(
    lg.Zero,
    lg.Geometry,
    build=lambda y, w: (0.5 * lg.SquaredDistance(y, w), E),
    y=Y,
    feasible=_free,
    parameters=(randn(4, seed=19), 0.2 + rand(3, 4, seed=20)),
)
case(
    lg.functions.Separable,
    lg.Geometry,
    y=(Y, Y),
    parameters=(W,),
    build=lambda w: (lg.Separable(lg.L1(w), lg.Simplex()), lg.Product(E, H)),
    feasible=lambda s: (_free(s), _softmax(s)),
)
case(
    lg.functions.Separable,
    lg.Geometry,
    y=(Y, Y),
    parameters=(W,),
    build=lambda w: (lg.Separable(lg.L1(w), lg.NonNegative()), E),
    feasible=lambda s: (_free(s), _orthant(s)),
)
case(
    lg.Equality,
    lg.Euclidean,
    y=Y,
    parameters=(randn(3, 4, seed=21),),
    build=lambda b: (lg.Equality(b), E),
    feasible=lambda s: randn(3, 4, seed=21),
)
case(
    lg.functions.Shifted,
    lg.Euclidean,
    y=Y,
    parameters=(W, randn(4, seed=22)),
    build=lambda w, c: (lg.L1(w).shifted(c), E),
    feasible=_free,
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(W), cp.abs(x - _np(randn(4, seed=22).expand(3, 4))))) + _sq(x),
        [],
    ),
)
case(
    lg.functions.Conjugate,
    lg.Euclidean,
    y=Y,
    build=lambda: (lg.Simplex().conjugate(), E),
    feasible=_free,
    model=lambda x: (a * cp.sum(cp.max(x, axis=1)) + _sq(x), []),
)
case(
    lg.functions.Conjugate,
    lg.Euclidean,
    y=Y,
    parameters=(torch.tensor(0.6, dtype=torch.float64),),
    build=lambda c: ((c * lg.L1(0.5)).conjugate(), E),
    feasible=lambda s: 0.59 * rand(3, 4, seed=s) - 0.295,
    model=lambda x: (_sq(x), [cp.abs(x) <= 0.3]),
)
case(
    lg.L1,
    lg.Euclidean,
    build=lambda w: (lg.L1(w), E),
    y=Y,
    feasible=_free,
    parameters=(W,),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), cp.abs(x))) + _sq(x), []),
)
case(
    lg.L1,
    lg.Euclidean,
    y=Y,
    feasible=_free,
    build=lambda w, c, e: (lg.L1(w) + lg.Linear(c) + lg.SquaredNorm(e), E),
    parameters=(
        torch.tensor(0.4, dtype=torch.float64),
        randn(4, seed=3),
        torch.tensor(0.6, dtype=torch.float64),
    ),
    model=lambda x: (
        a * (0.4 * cp.sum(cp.abs(x)) + cp.sum(x @ _np(randn(4, seed=3)))) + (1 + a * 0.6) * _sq(x),
        [],
    ),
)
case(
    lg.L1,
    lg.Quartic,
    build=lambda w: (lg.L1(w), Q),
    y=Y,
    feasible=_free,
    parameters=(W,),
    solver_tolerance=1e-9,
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(W), cp.abs(x)))
        + sum(0.25 * cp.square(cp.sum_squares(x[i])) for i in range(3))
        + _sq(x),
        [],
    ),
)
case(
    lg.L1,
    lg.Entropy,
    build=lambda w: (lg.L1(w), H),
    y=Y,
    feasible=_orthant,
    parameters=(W,),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), x)) + _ent(x), []),
)
case(
    lg.L1,
    lg.Burg,
    build=lambda w: (lg.L1(w), B),
    y=-0.1 - Y.abs(),
    feasible=lambda s: 0.01 + _orthant(s),
    parameters=(W,),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), x)) - cp.sum(cp.log(x)), []),
)
case(
    lg.L1,
    lg.Interval,
    build=lambda w: (lg.L1(w), I),
    y=Y,
    feasible=_unit,
    parameters=(W,),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), cp.abs(x))) + _interval(x), []),
)
case(
    lg.L1,
    lg.Interval,
    y=Y,
    parameters=(W, LO, HI),
    build=lambda w, lo, hi: (lg.L1(w), lg.Interval(lo, hi)),
    feasible=_box,
)
case(
    lg.L1,
    lg.Interval,
    build=lambda w: (lg.L1(w), lg.Interval(0.2, 1.0)),
    y=Y,
    parameters=(W,),
    feasible=lambda s: 0.2 + 0.8 * rand(3, 4, seed=s),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), x)) + _interval(x, 0.2, 1.0), []),
)
case(
    lg.AsymmetricL1,
    lg.Euclidean,
    build=lambda lo, hi: (lg.AsymmetricL1(lo, hi), E),
    y=Y,
    feasible=_free,
    parameters=(LO, HI),
)
case(
    lg.AsymmetricL1,
    lg.Euclidean,
    y=Y,
    feasible=_orthant,
    parameters=(W,),
    build=lambda w: (lg.AsymmetricL1(-torch.inf, w), E),
    model=lambda x: (a * cp.sum(cp.multiply(_np(W), x)) + _sq(x), [x >= 0]),
)
case(
    lg.AsymmetricL1,
    lg.Entropy,
    build=lambda hi: (lg.AsymmetricL1(-1.0, hi), H),
    y=Y,
    feasible=_orthant,
    parameters=(W,),
)
case(
    lg.AsymmetricL1,
    lg.Burg,
    build=lambda hi: (lg.AsymmetricL1(-1.0, hi), B),
    y=-0.1 - Y.abs(),
    feasible=lambda s: 0.01 + _orthant(s),
    parameters=(W,),
)
case(
    lg.AsymmetricL1,
    lg.Interval,
    build=lambda lo, hi: (lg.AsymmetricL1(lo, hi), I),
    y=Y,
    feasible=_unit,
    parameters=(LO, HI),
)
case(
    lg.GroupL1,
    lg.Euclidean,
    y=Y,
    feasible=_free,
    parameters=(0.5 + rand(3, 1, seed=16),),
    build=lambda w: (lg.GroupL1(w), E),
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(0.5 + rand(3, 1, seed=16))[:, 0], cp.norm(x, axis=1))) + _sq(x),
        [],
    ),
)
case(
    lg.GroupL1,
    lg.Euclidean,
    y=Y,
    feasible=_free,
    parameters=(0.5 + rand(2, seed=17),),
    build=lambda w: (lg.GroupL1(w, groups=GROUPS), E),
)
case(
    lg.NonNegative,
    lg.Euclidean,
    build=lambda: (lg.NonNegative(), E),
    y=Y,
    feasible=_orthant,
    model=lambda x: (_sq(x), [x >= 0]),
)
case(
    lg.NonNegative,
    lg.Entropy,
    build=lambda: (lg.NonNegative(), H),
    y=Y,
    feasible=_orthant,
    model=lambda x: (_ent(x), []),
)
case(
    lg.NonNegative,
    lg.Burg,
    build=lambda: (lg.NonNegative(), B),
    y=-0.1 - Y.abs(),
    feasible=lambda s: 0.01 + _orthant(s),
    model=lambda x: (-cp.sum(cp.log(x)), []),
)
case(
    lg.Box,
    lg.Euclidean,
    build=lambda lo, hi: (lg.Box(lo, hi), E),
    y=Y,
    feasible=_box,
    parameters=(LO, HI),
    model=lambda x: (_sq(x), [x >= _np(LO.expand(3, 4)), x <= _np(HI.expand(3, 4))]),
)
case(
    lg.LInfBall,
    lg.Euclidean,
    build=lambda r: (lg.LInfBall(r), E),
    y=Y,
    feasible=lambda s: W * (2 * rand(3, 4, seed=s) - 1),
    parameters=(W,),
    model=lambda x: (_sq(x), [cp.abs(x) <= _np(W)]),
)
case(
    lg.LInfBall,
    lg.Interval,
    build=lambda: (lg.LInfBall(), I),
    y=Y,
    feasible=_unit,
    model=lambda x: (_interval(x), []),
)
case(
    lg.LInfBall,
    lg.Interval,
    build=lambda r: (lg.LInfBall(r), lg.Interval(-2.0, 2.0)),
    y=Y,
    feasible=lambda s: W * (2 * rand(3, 4, seed=s) - 1),
    parameters=(W,),
    model=lambda x: (_interval(x, -2.0, 2.0), [cp.abs(x) <= _np(W)]),
)
case(
    lg.Box,
    lg.Interval,
    build=lambda: (lg.Box(-1.0, 1.0), I),
    y=Y,
    feasible=_unit,
    model=lambda x: (_interval(x), []),
)
case(
    lg.Box,
    lg.Interval,
    build=lambda lo, hi: (lg.Box(lo, hi), lg.Interval(lo, hi)),
    y=Y,
    feasible=_box,
    parameters=(LO, HI),
)
case(
    lg.Box,
    lg.Interval,
    build=lambda lo, hi: (lg.Box(lo, hi), lg.Interval(-2.0, 2.0)),
    y=Y,
    feasible=_box,
    parameters=(LO, HI),
    model=lambda x: (
        _interval(x, -2.0, 2.0),
        [x >= _np(LO.expand(3, 4)), x <= _np(HI.expand(3, 4))],
    ),
)
case(
    lg.Box,
    lg.Entropy,
    build=lambda hi: (lg.Box(0.0, hi), H),
    y=Y,
    parameters=(HI,),
    feasible=lambda s: HI * rand(3, 4, seed=s),
    model=lambda x: (_ent(x), [x <= _np(HI.expand(3, 4))]),
)
case(
    lg.Simplex,
    lg.Euclidean,
    build=lambda: (lg.Simplex(), E),
    y=Y,
    feasible=_softmax,
    model=lambda x: (_sq(x), [x >= 0, cp.sum(x, axis=1) == 1]),
)
case(
    lg.Simplex,
    lg.Euclidean,
    build=lambda: (lg.Simplex(dim=0), E),
    y=Y,
    feasible=lambda s: torch.softmax(6 * randn(3, 4, seed=s), 0),
)
case(
    lg.Simplex,
    lg.Entropy,
    build=lambda: (lg.Simplex(), H),
    y=Y,
    feasible=_softmax,
    model=lambda x: (_ent(x), [cp.sum(x, axis=1) == 1]),
)
case(
    lg.Simplex,
    lg.Entropy,
    y=Y,
    feasible=_softmax,
    build=lambda c, e: (lg.Simplex() + lg.Linear(c) + lg.NegativeEntropy(e), H),
    parameters=(randn(3, 4, seed=18), torch.tensor(0.25, dtype=torch.float64)),
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(randn(3, 4, seed=18)), x)) + (1 + a * 0.25) * _ent(x),
        [cp.sum(x, axis=1) == 1],
    ),
)
case(
    lg.L2Ball,
    lg.Euclidean,
    build=lambda r: (lg.L2Ball(r), E),
    y=Y,
    feasible=_ball,
    parameters=(torch.full((3, 1), 0.95, dtype=torch.float64),),
    model=lambda x: (_sq(x), [cp.sum(cp.square(x), axis=1) <= 0.95**2]),
)

for function, kwargs in TERM_CASES:
    case(function, lg.Euclidean, **kwargs)

PROX_CASES = [
    (f"{f.__name__}-{g.__name__}-{i}", c)
    for (f, g), cases in PROX.items()
    for i, c in enumerate(cases)
]
