"""Makers of the terms with a Euclidean prox that stand in files of their own.

(function, arguments of a case), see ``makers.case``; ``a`` is the step that all cases take.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import legato as lg
from draws import rand, randn

E = lg.Euclidean()
Y = randn(3, 4, seed=11) * 2
W = 0.2 + rand(3, 4, seed=12)
V = 0.5 + rand(3, 1, seed=16)
COUNTS = torch.tensor([[3.0, 0.0, 1.0, 7.0], [0.0, 2.0, 5.0, 1.0], [4.0, 1.0, 0.0, 2.0]]).double()
LABELS = torch.sign(randn(3, 4, seed=41))
SLOPE = torch.tensor([1.7, 1.1, 0.6, 0.3], dtype=torch.float64)
GROUPS = torch.tensor([0, 1, 0, 1])
MATRICES = 1.5 * randn(2, 3, 4, seed=42)
FLAT = randn(2, 4, seed=47)
SEEN = [tuple(i) for i in COUNTS.nonzero().tolist()]
a = 0.7
TERM_CASES: list[tuple[type, dict[str, Any]]] = []


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def case(function: type, **kwargs: Any) -> None:
    TERM_CASES.append((function, {"y": Y, **kwargs}))


def _np(t: Tensor) -> Any:
    return t.detach().numpy()


def _sq(x: cp.Variable) -> Any:
    return 0.5 * cp.sum_squares(x)


def _free(s: int) -> Tensor:
    return 3 * randn(3, 4, seed=s)


def _rows(weights: Tensor, function: Any) -> Any:
    """Σ over rows of a weight times a function of the row, as cvxpy sees it."""
    return lambda x: (
        a * sum(float(w) * function(x[i]) for i, w in enumerate(weights.flatten())) + _sq(x),
        [],
    )


# --- losses ---------------------------------------------------------------------------------------

DELTA = 0.3 + rand(4, seed=43)
case(
    lg.Huber,
    build=lambda d, w: (lg.Huber(d, w), E),
    parameters=(DELTA, W),
    feasible=_free,
    model=lambda x: (
        0.5
        * a
        * sum(
            float(W[i, j]) * cp.huber(x[i, j], float(DELTA[j])) for i in range(3) for j in range(4)
        )
        + _sq(x),
        [],
    ),
)
TAU = torch.tensor([0.1, 0.5, 0.8, 0.95], dtype=torch.float64)
case(
    lg.Quantile,
    build=lambda t, w: (lg.Quantile(t, w), E),
    parameters=(TAU, W),
    feasible=_free,
    model=lambda x: (
        a
        * cp.sum(
            cp.multiply(
                _np(W),
                cp.maximum(
                    cp.multiply(-_np(TAU.expand(3, 4)), x),
                    cp.multiply(_np(1 - TAU.expand(3, 4)), x),
                ),
            )
        )
        + _sq(x),
        [],
    ),
)
case(
    lg.Hinge,
    build=lambda w: (lg.Hinge(LABELS.to(w.dtype), w), E),
    parameters=(W,),
    feasible=_free,
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(W), cp.pos(1 - cp.multiply(_np(LABELS), x)))) + _sq(x),
        [],
    ),
)
BACKGROUND = 0.1 + rand(3, 4, seed=44)
case(
    lg.KullbackLeibler,
    build=lambda c, b: (lg.KullbackLeibler(c, b), E),
    parameters=(COUNTS + 0.5, BACKGROUND),
    feasible=lambda s: 5 * rand(3, 4, seed=s) - BACKGROUND,
    model=lambda x: (
        a * (cp.sum(x) - cp.sum(cp.multiply(_np(COUNTS + 0.5), cp.log(x + _np(BACKGROUND)))))
        + _sq(x),
        [],
    ),
)
case(
    lg.KullbackLeibler,
    build=lambda c: (lg.KullbackLeibler(c), E),
    parameters=(COUNTS,),
    solver_tolerance=1e-9,
    feasible=lambda s: 1e-3 + 5 * rand(3, 4, seed=s),
    model=lambda x: (
        a * (cp.sum(x) - sum(float(COUNTS[i]) * cp.log(x[i]) for i in SEEN)) + _sq(x),
        [x >= 0],
    ),
)

# --- norms and balls ------------------------------------------------------------------------------

case(
    lg.L2Norm,
    build=lambda w: (lg.L2Norm(w), E),
    parameters=(one(1.3),),
    feasible=_free,
    model=lambda x: (a * 1.3 * cp.norm(x, "fro") + _sq(x), []),
)
case(
    lg.L2Norm,
    y=MATRICES,
    build=lambda w: (lg.L2Norm(w, (-2, -1)), E),
    parameters=(0.5 + rand(2, 1, 1, seed=45),),
    feasible=lambda s: 3 * randn(2, 3, 4, seed=s),
)
case(
    lg.LInfNorm,
    build=lambda w: (lg.LInfNorm(w), E),
    parameters=(2 * V,),
    feasible=_free,
    model=_rows(2 * V, lambda row: cp.norm(row, "inf")),
)
case(
    lg.MaxEntry,
    build=lambda w: (lg.MaxEntry(w), E),
    parameters=(2 * V,),
    feasible=_free,
    model=_rows(2 * V, cp.max),
)
case(
    lg.MaxEntry,
    build=lambda w: (lg.MaxEntry(w, dim=0), E),
    parameters=(one(0.8),),
    feasible=_free,
)
case(
    lg.L1Ball,
    build=lambda r: (lg.L1Ball(r), E),
    parameters=(V,),
    feasible=lambda s: V * (_free(s) / (1e-3 + _free(s).abs().sum(-1, keepdim=True))),
    model=lambda x: (_sq(x), [cp.norm(x[i], 1) <= float(V[i]) for i in range(3)]),
)
case(
    lg.Nuclear,
    y=MATRICES,
    build=lambda w: (lg.Nuclear(w), E),
    parameters=(0.5 + rand(2, 1, 1, seed=46),),
    feasible=lambda s: 3 * randn(2, 3, 4, seed=s),
)
case(
    lg.Nuclear,
    build=lambda w: (lg.Nuclear(w), E),
    parameters=(one(1.2),),
    feasible=_free,
    solver_tolerance=1e-10,
    model=lambda x: (a * 1.2 * cp.normNuc(x) + _sq(x), []),
)
case(
    lg.SpectralBall,
    build=lambda r: (lg.SpectralBall(r), E),
    parameters=(one(1.2),),
    feasible=lambda s: 1.2 * _free(s) / torch.linalg.matrix_norm(_free(s), 2),
    solver_tolerance=1e-10,
    model=lambda x: (_sq(x), [cp.sigma_max(x) <= 1.2]),
)
case(
    lg.SpectralBall,
    y=MATRICES.mT.contiguous(),
    build=lambda r: (lg.SpectralBall(r), E),
    parameters=(0.5 + rand(2, 1, 1, seed=46),),
    feasible=lambda s: 0.1 * rand(2, 4, 3, seed=s),
)
case(
    lg.SpectralNorm,
    build=lambda w: (lg.SpectralNorm(w), E),
    parameters=(one(1.2),),
    feasible=_free,
    solver_tolerance=1e-10,
    model=lambda x: (a * 1.2 * cp.sigma_max(x) + _sq(x), []),
)
case(
    lg.SpectralNorm,
    y=MATRICES,
    build=lambda w: (lg.SpectralNorm(w), E),
    parameters=(0.5 + rand(2, 1, 1, seed=46),),
    feasible=lambda s: 3 * randn(2, 3, 4, seed=s),
)
case(
    lg.NuclearBall,
    build=lambda r: (lg.NuclearBall(r), E),
    parameters=(one(1.2),),
    feasible=lambda s: 0.1 * rand(3, 4, seed=s),
    solver_tolerance=1e-10,
    model=lambda x: (_sq(x), [cp.normNuc(x) <= 1.2]),
)
case(
    lg.NuclearBall,
    y=MATRICES.mT.contiguous(),
    build=lambda r: (lg.NuclearBall(r), E),
    parameters=(0.5 + rand(2, 1, 1, seed=46),),
    feasible=lambda s: 0.1 * rand(2, 4, 3, seed=s),
)
case(
    lg.functions.Hankel,
    build=lambda: (lg.functions.Hankel(), E),
    feasible=lambda s: lg.functions.Hankel().prox(_free(s)),
    model=lambda x: (_sq(x), [x[i, j] == x[i - 1, j + 1] for i in (1, 2) for j in range(3)]),
)
case(
    lg.SecondOrderCone,
    build=lambda: (lg.SecondOrderCone(), E),
    feasible=lambda s: torch.cat([_free(s).norm(dim=-1, keepdim=True), _free(s)[:, 1:]], -1),
    model=lambda x: (_sq(x), [cp.norm(x[i, 1:]) <= x[i, 0] for i in range(3)]),
)
case(
    lg.SecondOrderCone,
    build=lambda: (lg.SecondOrderCone(dim=0), E),
    feasible=lambda s: torch.cat([_free(s).norm(dim=0, keepdim=True), _free(s)[1:]], 0),
    model=lambda x: (_sq(x), [cp.norm(x[1:, i]) <= x[0, i] for i in range(4)]),
)
case(
    lg.PositiveSemidefinite,
    y=MATRICES[0, :, :3].contiguous(),
    build=lambda: (lg.PositiveSemidefinite(), E),
    feasible=lambda s: _free(s) @ _free(s).mT,
    model=lambda x: (_sq(x), [x >> 0, x == x.T]),
)
case(
    lg.AffineSet,
    build=lambda A, b: (lg.AffineSet(A, b), E),
    parameters=(FLAT, FLAT @ randn(4, seed=48)),
    feasible=lambda s: lg.AffineSet(FLAT, FLAT @ randn(4, seed=48)).prox(_free(s)),
    model=lambda x: (_sq(x), [x @ _np(FLAT.mT) == np.tile(_np(FLAT @ randn(4, seed=48)), (3, 1))]),
)
case(
    lg.Halfspaces,
    build=lambda a, beta: (lg.Halfspaces(a, beta), E),
    parameters=(randn(3, 4, seed=49), randn(3, seed=50)),
    feasible=lambda s: lg.Halfspaces(randn(3, 4, seed=49), randn(3, seed=50)).prox(_free(s)),
    model=lambda x: (
        _sq(x),
        [cp.sum(cp.multiply(_np(randn(3, 4, seed=49)), x), 1) <= _np(randn(3, seed=50))],
    ),
)
BUDGET, SHARES = 1.2 + rand(3, 1, seed=51), randn(4, seed=52)
case(
    lg.BoxSection,
    build=lambda c: (lg.BoxSection(c), E),
    parameters=(BUDGET,),
    feasible=lambda s: lg.BoxSection(BUDGET).prox(_free(s)),
    model=lambda x: (_sq(x), [x >= 0, x <= 1, cp.sum(x, axis=1) == _np(BUDGET)[:, 0]]),
)
case(
    lg.BoxSection,
    build=lambda c, w, hi: (lg.BoxSection(c, w, -torch.inf, hi), E),
    parameters=(one(0.3), SHARES, 0.1 + rand(3, 4, seed=53)),
    feasible=lambda s: lg.BoxSection(one(0.3), SHARES, -torch.inf, 0.1 + rand(3, 4, seed=53)).prox(
        _free(s)
    ),
    model=lambda x: (_sq(x), [x <= _np(0.1 + rand(3, 4, seed=53)), x @ _np(SHARES) == 0.3]),
)
case(
    lg.BoxSection,
    build=lambda w, lo: (lg.BoxSection(-0.5, w, lo, 0.4, dim=0), E),
    parameters=(0.5 + rand(3, 1, seed=54), -1 - rand(4, seed=55)),
    feasible=lambda s: lg.BoxSection(
        -0.5, 0.5 + rand(3, 1, seed=54), -1 - rand(4, seed=55), 0.4, dim=0
    ).prox(_free(s)),
)
case(
    lg.SortedL1,
    build=lambda w: (lg.SortedL1(w), E),
    parameters=(SLOPE,),
    feasible=_free,
    model=_rows(
        torch.ones(3),
        lambda row: sum(
            float(d) * cp.sum_largest(cp.abs(row), k + 1)
            for k, d in enumerate(np.append(-np.diff(SLOPE.numpy()), float(SLOPE[-1])))
        ),
    ),
)
case(
    lg.SparseGroupL1,
    build=lambda w, v: (lg.SparseGroupL1(w, v), E),
    parameters=(W, V),
    solver_tolerance=1e-9,
    feasible=_free,
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(W), cp.abs(x)))
        + a * cp.sum(cp.multiply(_np(V)[:, 0], cp.norm(x, axis=1)))
        + _sq(x),
        [],
    ),
)
case(
    lg.SparseGroupL1,
    build=lambda w, v: (lg.SparseGroupL1(w, v, groups=GROUPS), E),
    parameters=(one(0.4), 0.5 + rand(2, seed=17)),
    feasible=_free,
)


def _half_k_support(count: int) -> Any:
    """½ min Σ x_i²/θ_i over shares θ ≤ 1 of a row, k in all."""

    def model(x: cp.Variable) -> tuple[Any, list[Any]]:
        shares = cp.Variable((3, 4))
        cost = sum(cp.quad_over_lin(x[i, j], shares[i, j]) for i in range(3) for j in range(4))
        limits = [shares >= 0, shares <= 1, cp.sum(shares, axis=1) <= count]
        return a * 0.8 * 0.5 * cost + _sq(x), limits

    return model


case(
    lg.functions.KSupport,
    build=lambda w: (lg.functions.KSupport(2, w), E),
    parameters=(one(0.8),),
    feasible=_free,
    solver_tolerance=1e-9,
    model=_half_k_support(2),
)
case(
    lg.functions.KSupport,
    build=lambda w: (lg.functions.KSupport(1, w, dim=0), E),
    parameters=(0.5 + rand(1, 4, seed=57),),
    feasible=_free,
)
case(
    lg.functions.OfSingularValues,
    y=MATRICES,
    build=lambda w: (lg.functions.OfSingularValues(lg.functions.KSupport(2, w)), E),
    parameters=(one(0.8),),
    feasible=lambda s: 3 * randn(2, 3, 4, seed=s),
)
case(
    lg.functions.OfSingularValues,
    build=lambda w: (lg.functions.OfSingularValues(lg.L1(w)), E),
    parameters=(one(1.2),),
    feasible=_free,
    solver_tolerance=1e-10,
    model=lambda x: (a * 1.2 * cp.normNuc(x) + _sq(x), []),
)

# --- sequences ------------------------------------------------------------------------------------

case(
    lg.Monotone,
    build=lambda: (lg.Monotone(), E),
    feasible=lambda s: _free(s).sort(-1).values,
    model=lambda x: (_sq(x), [x[:, 1:] >= x[:, :-1]]),
)
case(
    lg.Monotone,
    build=lambda: (lg.Monotone(dim=0), E),
    feasible=lambda s: _free(s).sort(0).values,
    model=lambda x: (_sq(x), [x[1:] >= x[:-1]]),
)
case(
    lg.TotalVariation1D,
    build=lambda w: (lg.TotalVariation1D(w), E),
    parameters=(V,),
    feasible=_free,
    model=_rows(V, lambda row: cp.norm(cp.diff(row), 1)),
)
case(
    lg.TotalVariation1D,
    build=lambda w: (lg.TotalVariation1D(w, dim=0), E),
    parameters=(one(0.8),),
    feasible=_free,
)

# --- sums that have one prox ----------------------------------------------------------------------

case(
    lg.functions.Successive,
    build=lambda w, hi: (lg.L1(w) + lg.Box(-0.4, hi), E),
    parameters=(W, 0.5 + W),
    feasible=lambda s: _free(s).clamp(min=-0.4).minimum(0.5 + W),
    model=lambda x: (
        a * cp.sum(cp.multiply(_np(W), cp.abs(x))) + _sq(x),
        [x >= -0.4, x <= _np(0.5 + W)],
    ),
)
case(
    lg.functions.Successive,
    build=lambda w: (lg.GroupL1(w) + lg.NonNegative(), E),
    parameters=(V,),
    feasible=lambda s: _free(s).clamp(min=0),
)
case(
    lg.functions.Composed,
    build=lambda w: (lg.L1(w) @ lg.Wavelet(2, dims=(-1,)), E),
    parameters=(W,),
    feasible=_free,
)
case(
    lg.LeastSquares,
    build=lambda b: (lg.LeastSquares(randn(2, 4, seed=48).to(b.dtype), b), E),
    parameters=(randn(3, 2, seed=49),),
    feasible=_free,
    model=lambda x: (
        a * 0.5 * cp.sum_squares(x @ _np(randn(2, 4, seed=48)).T - _np(randn(3, 2, seed=49)))
        + _sq(x),
        [],
    ),
)
case(
    lg.Quadratic,
    build=lambda c: (lg.Quadratic(lg.Diagonal(W[0].to(c.dtype)), c), E),
    parameters=(randn(4, seed=50),),
    feasible=_free,
)
