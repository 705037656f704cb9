"""Energies of every kind, with the algorithms that solve them and the symmetries they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import legato as lg
from metamorphic.subject import Inputs, Numbers

F64 = torch.float64
STEADY = lg.Backtracking(steady=True)
"""The same steps whether anything is to be differentiated or not."""


@dataclass(frozen=True)
class Energy:
    """An energy of named inputs, with the algorithms that solve it and the symmetries it has."""

    draw: Callable[[Numbers], Inputs]
    make: Callable[[Inputs], Any]
    algorithms: dict[str, Callable[[Inputs], Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    unique: bool = True
    symmetric: bool = True  # whether CG applies
    start: Callable[[Inputs], Tensor | None] = lambda t: None
    iterations: int = 60


def _plain(t: Inputs) -> Any:
    return lg.ForwardBackward(inertia=0.0)


EUCLIDEAN: dict[str, Callable[[Inputs], Any]] = {
    "chosen": lambda t: None,
    "fixed step": lambda t: lg.ForwardBackward(0.6),
    "inertia": lambda t: lg.ForwardBackward(0.5, inertia=0.2),
    "Nesterov": lambda t: lg.ForwardBackward(inertia=lg.Nesterov(restart=True)),
    "backtracking": lambda t: lg.ForwardBackward(STEADY),
}
ONE = {"chosen": EUCLIDEAN["chosen"]}
DUAL: dict[str, Callable[[Inputs], Any]] = {
    "chosen": lambda t: None,
    "balance": lambda t: lg.PrimalDual(balance=1.7),
    "precondition": lambda t: lg.PrimalDual(precondition=True),
    "restarted": lambda t: lg.PrimalDual(
        restart=lg.Restart(), balance=lg.AdaptiveBalance(), scaling=lg.Ruiz()
    ),
}
NEWTON: dict[str, Callable[[Inputs], Any]] = {"Newton": lambda t: lg.Newton()}


def _regression(n: Numbers) -> Inputs:
    A = n.matrix(5, 4)
    x = n.normal(4) * torch.tensor([1.5, 1.0, 0.3, 0.0], dtype=F64)
    return {"A": A, "b": A @ x + 0.1 * n.normal(5)}


def _with(more: Callable[[Numbers], Inputs]) -> Callable[[Numbers], Inputs]:
    return lambda n: {**_regression(n), **more(n)}


def _weight(n: Numbers) -> Inputs:
    return {"w": n.uniform(low=0.1, high=0.2)}


def _weights(n: Numbers) -> Inputs:
    return {"w": n.uniform(4, low=0.1, high=0.3)}


LASSO = {"batched": ("A", "b"), "homogeneous": ("b", "w")}
COLUMNS = {"permuted": {"A": (-1,)}}
"""Permuting the columns of the matrix permutes x."""


def _squares(t: Inputs) -> Any:
    return lg.LeastSquares(t["A"], t["b"])


def _soft(x: Tensor) -> Tensor:
    return torch.sqrt(1 + x * x).sum()


GROUPS = torch.tensor([0, 1, 0, 1])
UNIT = lg.Interval(-1.0, 1.0)


def regressions() -> dict[str, Energy]:
    flat = {"batched": ("A", "b")}
    return {
        "lasso": Energy(
            _with(_weight), lambda t: _squares(t) + lg.L1(t["w"]), EUCLIDEAN,
            {**LASSO, **COLUMNS},
        ),
        "weighted lasso": Energy(
            _with(_weights), lambda t: _squares(t) + lg.L1(t["w"]), ONE,
            {**LASSO, "batched": ("A", "b", "w"), "permuted": {"A": (-1,), "w": (-1,)}},
        ),
        "scaled lasso": Energy(
            _with(_weight), lambda t: 2.0 * _squares(t) + t["w"] * lg.L1(), ONE,
            {**LASSO, **COLUMNS},
        ),
        "asymmetric lasso": Energy(
            _with(lambda n: {"lo": -n.uniform(low=0.1), "hi": n.uniform(low=0.05, high=0.3)}),
            lambda t: _squares(t) + lg.AsymmetricL1(t["lo"], t["hi"]), ONE,
            {"batched": ("A", "b"), "homogeneous": ("b", "lo", "hi"), **COLUMNS},
        ),
        "elastic net": Energy(
            _with(lambda n: {**_weight(n), "r": n.uniform(low=0.1, high=0.5)}),
            lambda t: _squares(t) + lg.L1(t["w"]) + lg.SquaredNorm(t["r"]), ONE,
            {**LASSO, **COLUMNS},
        ),
        "ridge per entry": Energy(
            _with(lambda n: {**_weights(n), "r": n.uniform(4, low=0.1, high=0.5)}),
            lambda t: _squares(t) + lg.L1(t["w"]) + lg.SquaredNorm(t["r"]), ONE,
            {**LASSO, "batched": ("A", "b", "w", "r"),
             "permuted": {"A": (-1,), "w": (-1,), "r": (-1,)}},
        ),
        "group lasso": Energy(
            _with(_weight), lambda t: _squares(t) + lg.GroupL1(t["w"]), ONE,
            {**LASSO, **COLUMNS},
        ),
        "groups": Energy(
            _with(lambda n: {"w": n.uniform(2, low=0.1, high=0.3)}),
            lambda t: _squares(t) + lg.GroupL1(t["w"], groups=GROUPS), ONE, LASSO,
        ),
        "nnls": Energy(
            _regression, lambda t: _squares(t) + lg.NonNegative(), EUCLIDEAN,
            {"batched": ("A", "b"), "homogeneous": ("b",), **COLUMNS},
        ),
        "box": Energy(
            _with(lambda n: {"hi": n.uniform(4, low=0.3, high=0.8)}),
            lambda t: _squares(t) + lg.Box(-t["hi"], t["hi"]), ONE,
            {"batched": ("A", "b", "hi"), "homogeneous": ("b", "hi"),
             "permuted": {"A": (-1,), "hi": (-1,)}},
        ),
        "ball": Energy(
            _with(lambda n: {"r": n.uniform(low=0.3, high=0.8)}),
            lambda t: _squares(t) + lg.L2Ball(t["r"]), ONE,
            {"batched": ("A", "b"), "homogeneous": ("b", "r"), **COLUMNS},
        ),
        "cube": Energy(
            _with(lambda n: {"r": n.uniform(low=0.3, high=0.8)}),
            lambda t: _squares(t) + lg.LInfBall(t["r"]), ONE,
            {"batched": ("A", "b"), "homogeneous": ("b", "r"), **COLUMNS},
        ),
        "simplex": Energy(
            _regression, lambda t: _squares(t) + lg.Simplex(), EUCLIDEAN, {**flat, **COLUMNS},
        ),
        "simplex, entropic": Energy(
            _regression, lambda t: _squares(t) + lg.Simplex(),
            {"Entropy": lambda t: lg.ForwardBackward(0.7, lg.Entropy())}, {**flat, **COLUMNS},
            iterations=200, symmetric=False,
        ),
        "box, Interval": Energy(
            _with(lambda n: {"hi": n.uniform(4, low=0.5, high=0.9)}),
            lambda t: _squares(t) + lg.Box(-t["hi"], t["hi"]),
            {"Interval": lambda t: lg.ForwardBackward(0.4, lg.Interval(-t["hi"], t["hi"]))},
            {"batched": ("A", "b", "hi")}, iterations=200, symmetric=False,
        ),
        "nnls, Burg": Energy(
            lambda n: {"A": (A := n.matrix(5, 4).abs()), "b": A @ n.uniform(4, low=0.5)},
            lambda t: _squares(t) + lg.NonNegative(),
            {"Burg": lambda t: lg.ForwardBackward(STEADY, lg.Burg())},
            {"batched": ("A", "b")}, iterations=40, symmetric=False, unique=False,
            start=lambda t: torch.full((*t["b"].shape[:-1], 4), 0.7, dtype=t["b"].dtype),
        ),
        "quartic": Energy(
            lambda n: {"A": n.matrix(5, 4), "b": n.normal(5)},
            lambda t: _squares(t) + lg.L1(0.1),
            {"Quartic": lambda t: lg.ForwardBackward(0.5, lg.Quartic())},
            {"batched": ("A", "b")}, iterations=60, symmetric=False,
        ),
        "logistic": Energy(
            lambda n: {"A": n.matrix(6, 4), "w": n.uniform(low=0.05, high=0.1),
                       "r": n.uniform(low=0.3, high=0.6)},
            lambda t: lg.Logistic(t["A"], _labels(t["A"])) + lg.L1(t["w"])
            + lg.SquaredNorm(t["r"]),
            ONE, {"batched": ("A",), **COLUMNS},
        ),
        "quadratic": Energy(
            lambda n: {"A": n.matrix(4, 4), "c": n.normal(4), "hi": n.uniform(4, low=0.3)},
            lambda t: lg.Quadratic(t["A"].mT @ t["A"] + torch.eye(4, dtype=t["A"].dtype), t["c"])
            + lg.Box(-t["hi"], t["hi"]),
            ONE, {"batched": ("A", "c", "hi"), "homogeneous": ("c", "hi"),
                  "permuted": {"A": (-1,), "c": (-1,), "hi": (-1,)}},
        ),
        "smooth": Energy(
            _with(_weight),
            lambda t: lg.Smooth(lambda x: 0.5 * (x @ t["A"].mT - t["b"]).square().sum()
                                + 0.2 * _soft(x)) + lg.L1(t["w"]),
            {"fixed step": lambda t: lg.ForwardBackward(0.5)},
            start=lambda t: torch.zeros(4, dtype=t["b"].dtype),
        ),
        "ridge": Energy(
            _with(lambda n: {"r": n.uniform(4, low=0.2, high=0.6)}),
            lambda t: _squares(t) + lg.SquaredNorm(t["r"]), {**ONE, **NEWTON},
            {"batched": ("A", "b"), "homogeneous": ("b",),
             "permuted": {"A": (-1,), "r": (-1,)}},
        ),
        "smoothed lasso": Energy(
            _with(_weight),
            lambda t: lg.smoothed(lg.Composite(_squares(t), lg.L1(t["w"])), 0.1),
            {**NEWTON}, {**LASSO, "homogeneous": (), **COLUMNS, "covers": ("solve", "smoothed")},
            iterations=20,
        ),
        "smooth logistic": Energy(
            lambda n: {"A": n.matrix(6, 4), "c": 0.1 * n.normal(4),
                       "r": n.uniform(4, low=0.3, high=0.6)},
            lambda t: lg.Logistic(t["A"], _labels(t["A"])) + lg.Linear(t["c"])
            + lg.SquaredNorm(t["r"]),
            {**ONE, **NEWTON}, {"batched": ("A",), "permuted": {"A": (-1,), "c": (-1,),
                                                                "r": (-1,)}},
        ),
        "entropy": Energy(
            lambda n: {"c": n.normal(4), "e": n.uniform(low=0.3, high=0.8)},
            lambda t: lg.Linear(t["c"]) + lg.Simplex() + lg.NegativeEntropy(t["e"])
            + lg.SquaredDistance(torch.zeros_like(t["c"]), 0.3),
            {"Entropy": lambda t: lg.ForwardBackward(0.5, lg.Entropy())},
            {"batched": ("c",), "permuted": {"c": (-1,)}}, symmetric=False,
        ),
    }  # fmt: skip


def _labels(A: Tensor) -> Tensor:
    ends = torch.ones(A.shape[:-1], dtype=A.dtype)
    ends[..., ::2] = -1.0
    return ends


def saddles() -> dict[str, Energy]:
    signal = {"batched": ("b",), "homogeneous": ("b", "w"), "shifted": "b"}
    image = {"batched": ("b",), "homogeneous": ("b", "w"), "shifted": "b"}
    return {
        "tv": Energy(
            lambda n: {"b": n.normal(5).cumsum(0), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.L1(t["w"]) @ lg.Differences((-1,)),
            DUAL, signal, iterations=250,
        ),
        "tv, edge weights": Energy(
            lambda n: {"b": n.normal(5).cumsum(0), "w": n.uniform(1, 5, low=0.1, high=0.5)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.L1() @ lg.Differences((-1,), t["w"]),
            # The steps depend on the operator, and so do iterates on the way.
            {"chosen": DUAL["chosen"]}, {**signal, "batched": ("b", "w"), "homogeneous": ()},
            iterations=250,
        ),
        "tv, isotropic": Energy(
            lambda n: {"b": n.normal(4, 4).cumsum(0), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.GroupL1(t["w"], dim=-3) @ lg.Differences(),
            {"chosen": DUAL["chosen"]}, image, unique=False, iterations=80,
        ),
        "fused": Energy(
            _with(_weight),
            lambda t: _squares(t) + lg.L1(t["w"]) @ lg.Differences((-1,)) + lg.L1(0.05),
            DUAL, {"batched": ("A", "b")}, iterations=300,
        ),
        "analysis": Energy(
            lambda n: {"b": n.normal(4), "K": n.matrix(3, 4), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.L1(t["w"]) @ t["K"],
            DUAL, {"batched": ("b", "K"), "homogeneous": ("b", "w"),
                   "permuted": {"b": (-1,), "K": (-1,)}}, iterations=250,
        ),
        "two penalties": Energy(
            lambda n: {"b": n.normal(5), "K": n.matrix(3, 5), **_weight(n),
                       "d": n.uniform(5, low=0.5, high=1.5)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.L1(t["w"]) @ lg.Dense(t["K"])
            + lg.L1(0.1) @ lg.Diagonal(t["d"]) + lg.NonNegative(),
            {"chosen": DUAL["chosen"]}, {"batched": ("b",)}, iterations=300, unique=False,
        ),
        "filters": Energy(
            lambda n: {"b": n.normal(1, 5, 5), "k": n.normal(2, 1, 2, 2), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"])
            + lg.L1(t["w"]) @ lg.Convolution(t["k"], "mirror"),
            {"chosen": DUAL["chosen"]}, {"batched": ("b",), "homogeneous": ("b", "w")},
            iterations=100, unique=False,
        ),
        "stack": Energy(
            lambda n: {"b": n.normal(5), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.Separable(lg.L1(t["w"]), lg.LInfBall(1.5))
            @ lg.Stack(lg.Differences((-1,)), lg.Identity()),
            {"chosen": DUAL["chosen"]}, {"batched": ("b",)}, iterations=250, unique=False,
        ),
        "equality": Energy(
            lambda n: {"b": n.normal(4), "K": n.matrix(2, 4), "e": 0.3 * n.normal(2)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.Equality(t["e"]) @ t["K"],
            {"chosen": DUAL["chosen"]},
            {"batched": ("b", "K", "e"), "homogeneous": ("b", "e"),
             "permuted": {"b": (-1,), "K": (-1,)}}, iterations=250,
        ),
        "smooth potts": Energy(
            lambda n: {"c": n.normal(2, 3, 3), "w": n.uniform(2, 3, 3, low=0.1, high=0.3),
                       "e": n.uniform(low=0.3, high=0.5)},
            _smooth_potts,
            {"Entropy": lambda t: lg.PrimalDual(0.6, 0.6, lg.Entropy(), UNIT)},
            {"permuted": {"c": (0,)}, "permuted_output": 0},
            iterations=150, symmetric=False,
            start=lambda t: torch.full_like(t["c"].detach(), 0.5),
        ),
        "game": Energy(
            lambda n: {"M": n.normal(3, 3), "e": n.uniform(low=0.4, high=0.6)},
            lambda t: lg.Saddle(
                lg.Dense(t["M"]), (lg.Simplex() + lg.NegativeEntropy(t["e"])).conjugate(),
                nonsmooth=lg.Simplex() + lg.NegativeEntropy(t["e"]),
            ),
            {"Entropy": lambda t: lg.PrimalDual(
                geometry=lg.Entropy(), dual_geometry=lg.Entropy(),
                norm=t["M"].detach().abs().amax((-2, -1)),
            )},
            {"batched": ("M",), "permuted": {"M": (-1,)}}, iterations=200, symmetric=False,
            start=lambda t: torch.full(t["M"].shape[:-1], 1 / 3, dtype=t["M"].dtype),
        ),
        "average": Energy(
            lambda n: {"b": n.normal(5).cumsum(0), **_weight(n)},
            lambda t: lg.SquaredDistance(t["b"]) + lg.L1(t["w"]) @ lg.Differences((-1,)),
            {"average": lambda t: lg.PrimalDual(average=lg.Average(first=1))},
            signal, unique=False,
        ),
    }  # fmt: skip


def _smooth_potts(t: Inputs) -> Any:
    penalty = (lg.Box() + lg.BregmanTerm(UNIT, t["e"])).conjugate()
    term = lg.Simplex(dim=0) + lg.Linear(t["c"]) + lg.NegativeEntropy(t["e"])
    return lg.Saddle(lg.Differences(weights=t["w"]), penalty, nonsmooth=term)
