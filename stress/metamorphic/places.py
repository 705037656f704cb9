"""θ in any place gives the same gradient: one energy written in many ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import legato as lg
from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught
from metamorphic.subject import Inputs, Numbers, Subject

Write = Callable[[Tensor, Inputs], Any]


@dataclass(frozen=True)
class Family:
    """One energy of a number θ > 0 and data, and the ways to write it; the first is the truth."""

    draw: Callable[[Numbers], Inputs]
    ways: dict[str, Write]
    start: int


def _data(n: Numbers) -> Inputs:
    A = n.matrix(5, 4)
    return {"A": A, "b": A @ n.normal(4) + 0.1 * n.normal(5)}


def _squares(t: Inputs) -> Any:
    return lg.LeastSquares(t["A"], t["b"])


def _eye(t: Inputs) -> Tensor:
    return torch.eye(4, dtype=t["b"].dtype)


FAMILIES: dict[str, Family] = {
    "lasso": Family(
        _data,
        {
            "weight": lambda w, t: _squares(t) + lg.L1(w),
            "factor": lambda w, t: _squares(t) + w * lg.L1(),
            "factor of a half": lambda w, t: _squares(t) + (2 * w) * lg.L1(0.5),
            "two terms": lambda w, t: _squares(t) + lg.L1(0.5 * w) + 0.5 * w * lg.L1(),
            "weight per entry": lambda w, t: _squares(t) + lg.L1(w.expand(4)),
            "stacked weights": lambda w, t: _squares(t) + lg.L1(torch.stack([w, w, w, w])),
            "asymmetric": lambda w, t: _squares(t) + lg.AsymmetricL1(-w, w),
            "order": lambda w, t: lg.L1(w) + _squares(t),
            "problem": lambda w, t: lg.Composite(_squares(t), lg.L1(w)),
            "behind the identity": lambda w, t: _squares(t) + lg.L1(w) @ lg.Dense(_eye(t)),
            "inside the operator": lambda w, t: _squares(t) + lg.L1() @ (w * lg.Dense(_eye(t))),
            "inside the matrix": lambda w, t: _squares(t) + lg.L1() @ lg.Dense(w * _eye(t)),
            "diagonal": lambda w, t: _squares(t) + lg.L1() @ lg.Diagonal(w.expand(4)),
            "everything divided": lambda w, t: (1 / w) * _squares(t) + lg.L1(),
            "weight of the squares": lambda w, t: lg.LeastSquares(t["A"], t["b"], 1 / w) + lg.L1(),
            "conjugate of a ball": lambda w, t: _squares(t) + lg.LInfBall(w).conjugate(),
            "shifted by nothing": lambda w, t: _squares(t) + lg.L1(w).shifted(
                torch.zeros(4, dtype=t["b"].dtype)),
        },
        4,
    ),
    "ridge": Family(
        _data,
        {
            "weight": lambda w, t: _squares(t) + lg.SquaredNorm(w) + lg.L1(0.1),
            "factor": lambda w, t: _squares(t) + w * lg.SquaredNorm() + lg.L1(0.1),
            "distance": lambda w, t: _squares(t) + lg.L1(0.1)
            + lg.SquaredDistance(torch.zeros(4, dtype=t["b"].dtype), w),
            "quadratic": lambda w, t: _squares(t) + lg.L1(0.1)
            + lg.Quadratic(w * _eye(t), torch.zeros(4, dtype=t["b"].dtype)),
            "least squares": lambda w, t: _squares(t) + lg.L1(0.1)
            + lg.LeastSquares(w.sqrt() * _eye(t), torch.zeros(4, dtype=t["b"].dtype)),
            "stacked rows": lambda w, t: lg.L1(0.1) + lg.LeastSquares(
                torch.cat([t["A"], w.sqrt() * _eye(t)]),
                torch.cat([t["b"], torch.zeros(4, dtype=t["b"].dtype)])),
            "behind an operator": lambda w, t: _squares(t) + lg.L1(0.1)
            + lg.SquaredNorm(w) @ lg.Identity(),
        },
        4,
    ),
    "box": Family(
        _data,
        {
            "box": lambda w, t: _squares(t) + lg.Box(-w, w),
            "ball": lambda w, t: _squares(t) + lg.LInfBall(w),
            "per entry": lambda w, t: _squares(t) + lg.Box(-w.expand(4), w.expand(4)),
            "one end": lambda w, t: _squares(t) + lg.Box(-w, w.expand(4)),
            "behind the identity": lambda w, t: _squares(t) + lg.LInfBall(w) @ lg.Dense(_eye(t)),
        },
        4,
    ),
    "tv": Family(
        lambda n: {"b": n.normal(6).cumsum(0)},
        {
            "weight": lambda w, t: lg.SquaredDistance(t["b"]) + lg.L1(w) @ lg.Differences((-1,)),
            "factor": lambda w, t: lg.SquaredDistance(t["b"])
            + w * (lg.L1() @ lg.Differences((-1,))),
            "factor inside": lambda w, t: lg.SquaredDistance(t["b"])
            + (w * lg.L1()) @ lg.Differences((-1,)),
            "edge weights": lambda w, t: lg.SquaredDistance(t["b"])
            + lg.L1() @ lg.Differences((-1,), w.expand(1, 6)),
            "scalar of the operator": lambda w, t: lg.SquaredDistance(t["b"])
            + lg.L1() @ lg.Differences((-1,), w),
            "scaled operator": lambda w, t: lg.SquaredDistance(t["b"])
            + lg.L1() @ (w * lg.Differences((-1,))),
            "matrix": lambda w, t: lg.SquaredDistance(t["b"]) + lg.L1(w)
            @ torch.diff(torch.eye(6, dtype=t["b"].dtype), dim=0),
            "matrix times weight": lambda w, t: lg.SquaredDistance(t["b"]) + lg.L1()
            @ (w * torch.diff(torch.eye(6, dtype=t["b"].dtype), dim=0)),
            "two terms": lambda w, t: lg.SquaredDistance(t["b"])
            + lg.L1(w / 2) @ lg.Differences((-1,)) + lg.L1(w / 2) @ lg.Differences((-1,)),
            "data term divided": lambda w, t: lg.SquaredDistance(t["b"], 1 / w)
            + lg.L1() @ lg.Differences((-1,)),
            "saddle": lambda w, t: lg.Saddle(
                lg.Differences((-1,)), lg.L1(w), nonsmooth=lg.SquaredDistance(t["b"])),
            "dual ball": lambda w, t: lg.Saddle(
                lg.Differences((-1,)), lg.LInfBall(w).conjugate(),
                nonsmooth=lg.SquaredDistance(t["b"])),
        },
        6,
    ),
    "linear": Family(
        lambda n: {"c": n.normal(4), "b": n.normal(4)},
        {
            "linear": lambda w, t: lg.SquaredDistance(t["b"]) + lg.Linear(w * t["c"])
            + lg.NonNegative(),
            "factor": lambda w, t: lg.SquaredDistance(t["b"]) + w * lg.Linear(t["c"])
            + lg.NonNegative(),
            "in the data": lambda w, t: lg.SquaredDistance(t["b"] - w * t["c"])
            + lg.NonNegative(),
            "shifted": lambda w, t: lg.SquaredNorm().shifted(t["b"] - w * t["c"])
            + lg.NonNegative(),
            "least squares": lambda w, t: lg.LeastSquares(_eye(t), t["b"] - w * t["c"])
            + lg.NonNegative(),
            "quadratic": lambda w, t: lg.Quadratic(_eye(t), w * t["c"] - t["b"])
            + lg.NonNegative(),
            "box": lambda w, t: lg.SquaredDistance(t["b"]) + lg.Linear(w * t["c"])
            + lg.Box(0.0, torch.inf),
            "asymmetric": lambda w, t: lg.SquaredDistance(t["b"]) + lg.Linear(w * t["c"])
            + lg.AsymmetricL1(-torch.inf, 0.0),
        },
        4,
    ),
}  # fmt: skip

EXPRESSIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "θ": (lambda w: w, lambda theta: theta),
    "exp": (torch.log, torch.exp),
    "softplus": (lambda w: torch.log(torch.expm1(w)), nn.functional.softplus),
    "square": (torch.sqrt, torch.square),
    "sum": (lambda w: torch.stack([0.3 * w, 0.7 * w]), torch.sum),
}
"""θ ↦ w with its inverse: the chain rule is autograd's, wherever w stands."""

GRADIENTS: dict[str, Any] = {
    "Implicit": lg.Implicit(lg.GMRES(tol=1e-11)),
    "BiCGStab": lg.Implicit(lg.BiCGStab(tol=1e-11)),
    "Direct": lg.Implicit(lg.Direct()),
    "Unroll": lg.Unroll(),
    "FixedPoint": lg.FixedPoint(3000, tol=1e-11),
    "last": lg.Unroll(last=600),
    "checkpoint": lg.Unroll(checkpoint=40),
}


def _solved(energy: Any, gradient: Any) -> Tensor:
    paths = isinstance(gradient, lg.Unroll)
    stop = lg.Stop(700) if paths else lg.Stop(20000, tol=1e-13)
    return lg.solve(energy, gradient=gradient, stop=stop).x


def any_place(name: str, seed: int, judge: Judge) -> None:
    """All ways to write a family with one strategy each, and θ through one expression each."""
    family = FAMILIES[name]
    inputs = family.draw(Numbers(seed))
    w = Numbers(seed + 1).uniform(low=0.1, high=0.4)
    case = Case(Subject(name, "place", lambda n: inputs, lambda t: None, lambda b, t: ()), seed)
    first = next(iter(family.ways.values()))
    truth = _outcome(first, w, inputs, "θ", GRADIENTS["Implicit"])
    if not truth.fine:
        judge.tally.finding(
            "a subject does not work", f"place {name}: {truth.refusal or truth.raw}"
        )
        return
    strategies = list(GRADIENTS)
    expressions = list(EXPRESSIONS)
    for number, (way, write) in enumerate(family.ways.items()):
        strategy = strategies[(number + seed) % len(strategies)]
        through = expressions[(number + seed // 3) % len(expressions)]
        found = _outcome(write, w, inputs, through, GRADIENTS[strategy])
        judge.same(
            case, f"places: {way}, {strategy}, {through}", found, truth, rounding=1e-5,
            warned_is_fine=True,
        )  # fmt: skip


def _outcome(write: Write, w: Tensor, inputs: Inputs, through: str, gradient: Any) -> Outcome:
    inverse, expression = EXPRESSIONS[through]

    def work() -> Outcome:
        theta = inverse(w).detach().clone().requires_grad_()
        x = _solved(write(expression(theta), inputs), gradient)
        slope = torch.cos(1.0 + torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
        (grad,) = torch.autograd.grad((slope * x).sum(), theta)
        # dL/dw from dL/dθ
        again = theta.detach().requires_grad_()
        (inner,) = torch.autograd.grad(expression(again), again)
        per_weight = (grad.sum() / inner.sum()).detach()
        return Outcome([x.detach()], {"w": per_weight})

    return caught(work)
