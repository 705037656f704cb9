"""Solutions on the boundary of an entropic geometry, against closed forms on their support.

Under strict complementarity the fixed-point family is exact there (errata 13), also after entries
have underflowed to 0, where a quotient of primal values would be 0/0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import legato as lg
from problems import MIXTURE, PAYOFF, POSITIVE_TARGET, A, Theta, by_name, relative_error

STRATEGIES = {
    "Implicit(GMRES)": lg.Implicit(lg.GMRES(tol=1e-12)),
    "Implicit(BiCGStab)": lg.Implicit(lg.BiCGStab(tol=1e-12)),
    "Implicit(Direct)": lg.Implicit(lg.Direct()),
    "FixedPoint": lg.FixedPoint(terms=2000, tol=1e-12),
}


@dataclass(frozen=True)
class Boundary:
    """A problem, its solution on a known support, and how long until the rest has underflowed.

    ``closed`` is differentiable: autograd through it is the closed form of the derivative.
    ``at_bound`` marks the entries of the solution that are exactly at the boundary.
    """

    build: Callable[..., tuple[Any, lg.Algorithm, Tensor]]
    theta: Theta
    closed: Callable[..., Tensor]
    at_bound: Callable[..., Tensor]
    iterations: int
    underflow: dict[torch.dtype, int]
    single: float = 1e-4
    """The error allowed in float32."""


# --- closed forms ---------------------------------------------------------------------------------

INSIDE = torch.tensor([True, True, False, True, False])  # checked by the tests


def scatter(values: Tensor, support: Tensor) -> Tensor:
    return torch.zeros(len(support), dtype=values.dtype).masked_scatter(support, values)


def closed_nnls(A: Tensor, b: Tensor) -> Tensor:
    S = A[:, INSIDE]
    return scatter(torch.linalg.solve(S.T @ S, S.T @ b), INSIDE)


def closed_simplex(A: Tensor, b: Tensor) -> Tensor:
    """The KKT system with one multiplier for Σx = 1."""
    S = A[:, INSIDE]
    one = torch.ones(S.shape[1], 1, dtype=A.dtype)
    top = torch.cat([S.T @ S, one], dim=1)
    bottom = torch.cat([one.T, torch.zeros(1, 1, dtype=A.dtype)], dim=1)
    right = torch.cat([S.T @ b, one[0]])
    return scatter(torch.linalg.solve(torch.cat([top, bottom]), right)[:-1], INSIDE)


def box(A: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    algorithm = lg.ForwardBackward(step_size=0.35, geometry=lg.Interval(lo, hi))
    problem = lg.Composite(lg.LeastSquares(A, b), lg.Box(lo, hi))
    return problem, algorithm, ((lo + hi) / 2).detach()


# Binary fractions: middle ± radius is then exactly an end, in float32 too.
LOW = torch.tensor([-0.5, -0.375, -0.25, -0.625, -0.125], dtype=torch.float64)
HIGH = torch.tensor([0.5, 1.0, 0.625, 0.375, 0.875], dtype=torch.float64)
SIDES = {  # POSITIVE_TARGET asks for (0.9, 0.6, −0.5, 0.8, −0.4)
    "low": torch.tensor([False, False, True, False, True]),
    "high": torch.tensor([True, False, False, True, False]),
}


def closed_box(A: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    free = ~(SIDES["low"] | SIDES["high"])
    fixed = torch.where(SIDES["low"], lo, torch.where(SIDES["high"], hi, torch.zeros_like(lo)))
    S = A[:, free]
    return fixed + scatter(torch.linalg.solve(S.T @ S, S.T @ (b - A @ fixed)), free)


def box_at_bound(x: Tensor, *theta: Tensor) -> Tensor:
    *_, lo, hi = theta
    return (x == lo) & SIDES["low"] | (x == hi) & SIDES["high"]


ROWS, COLUMNS = torch.tensor([False, False, True, True]), torch.tensor([False, True, True])


def closed_game(M: Tensor) -> Tensor:
    """x makes all rows in use pay the same: M_S x_S = v·1, Σx = 1."""
    S = M[ROWS][:, COLUMNS]
    one = torch.ones(len(S), dtype=M.dtype)
    weights = torch.linalg.solve(S, one)
    return scatter(weights / weights.sum(), COLUMNS)


WALLS = torch.cat([torch.eye(5), -torch.eye(5), torch.ones(1, 5)]).double()
ENDS = torch.ones(11).double()
ACTIVE = torch.tensor([0, 3, 10])
OUTSIDE = A @ torch.tensor([2.5, 0.6, -0.3, 1.2, -0.1]).double()


def polytope(A: Tensor, b: Tensor, walls: Tensor, ends: Tensor) -> tuple[Any, lg.Algorithm, Tensor]:
    algorithm = lg.ForwardBackward(step_size=0.9, geometry=lg.Polyhedral(walls, ends))
    return lg.Composite(lg.LeastSquares(A, b)), algorithm, torch.zeros_like(A[0])


def closed_polytope(A: Tensor, b: Tensor, walls: Tensor, ends: Tensor) -> Tensor:
    """The KKT system of the active rows."""
    G = walls[ACTIVE]
    top = torch.cat([A.T @ A, G.T], dim=1)
    bottom = torch.cat([G, torch.zeros(3, 3, dtype=A.dtype)], dim=1)
    return torch.linalg.solve(torch.cat([top, bottom]), torch.cat([A.T @ b, ends[ACTIVE]]))[:5]


def polytope_at_bound(x: Tensor, A: Tensor, b: Tensor, walls: Tensor, ends: Tensor) -> Tensor:
    return ends - walls @ x <= 8 * torch.finfo(x.dtype).eps


def zero(x: Tensor, *theta: Tensor) -> Tensor:
    return x == 0


CASES = {
    "nnls": Boundary(
        by_name("nnls entropic").build,
        (A, POSITIVE_TARGET),
        closed_nnls,
        zero,
        iterations=300,
        underflow={torch.float32: 1000, torch.float64: 5000},
    ),
    "simplex": Boundary(
        by_name("simplex least squares").build,
        (A, MIXTURE),
        closed_simplex,
        zero,
        iterations=400,
        underflow={torch.float32: 1000, torch.float64: 5000},
    ),
    "box": Boundary(
        box,
        (A, POSITIVE_TARGET, LOW, HIGH),
        closed_box,
        box_at_bound,
        iterations=400,
        underflow={torch.float32: 1000, torch.float64: 5000},
    ),
    "polytope": Boundary(
        polytope,
        (A, OUTSIDE, WALLS, ENDS),
        closed_polytope,
        polytope_at_bound,
        iterations=130,  # slacks of 1e-16: what x can express ends here
        underflow={torch.float32: 200, torch.float64: 300},
        single=1e-3,  # the gradient in the walls is a difference of terms with the factor log s
    ),
    "game": Boundary(
        by_name("game").build,
        (PAYOFF,),
        closed_game,
        zero,
        iterations=1000,
        underflow={torch.float32: 3000, torch.float64: 8000},
    ),
}


def strategies_of(case: Boundary) -> dict[str, lg.GradientStrategy]:
    piggyback = {"Piggyback": lg.Piggyback(iterations=3000, tol=1e-12)}
    return STRATEGIES | (piggyback if case is CASES["game"] else {})


each_pair = pytest.mark.parametrize(
    ("name", "gradient"),
    [
        pytest.param(name, gradient, id=f"{name}-{how}")
        for name, case in CASES.items()
        for how, gradient in strategies_of(case).items()
    ],
)


def loss(x: Tensor) -> Tensor:
    return by_name("nnls").loss(x)  # any smooth function of all entries


def closed_gradient(case: Boundary) -> tuple[Tensor, Theta]:
    theta = [t.clone().requires_grad_() for t in case.theta]
    x = case.closed(*theta)
    return x, torch.autograd.grad(loss(x), theta)


@cache
def reached(name: str, iterations: int, dtype: torch.dtype) -> Any:
    """The state after so many iterations, solved once for all strategies."""
    case = CASES[name]
    with torch.no_grad():
        theta = [t.to(dtype) for t in case.theta]
        return lg.solve(*case.build(*theta), stop=lg.Stop(iterations)).state


def solution_and_gradient(
    name: str, gradient: lg.GradientStrategy, iterations: int, dtype: torch.dtype
) -> tuple[Tensor, Theta]:
    theta = [t.to(dtype).clone().requires_grad_() for t in CASES[name].theta]
    problem, algorithm, _ = CASES[name].build(*theta)
    start = reached(name, iterations - 1, dtype)
    x = lg.solve(problem, algorithm, start, gradient=gradient, stop=lg.Stop(1)).x
    return x.detach(), torch.autograd.grad(loss(x), theta)


def require_close(found: Theta, expected: Theta, bound: float) -> None:
    for g, truth in zip(found, expected, strict=True):
        assert torch.isfinite(g).all()
        assert truth.norm() > 1e-3
        assert relative_error(g, truth) < bound


@pytest.mark.parametrize("name", CASES)
def test_the_closed_form_is_the_solution(name: str) -> None:
    """That is, the supports above are right, and strictly complementary."""
    case = CASES[name]
    expected, _ = closed_gradient(case)
    state = reached(name, case.underflow[torch.float64], torch.float64)
    with torch.no_grad():
        found = lg.solve(*case.build(*case.theta)[:2], state, stop=lg.Stop(1)).x
    assert relative_error(found, expected) < 1e-13
    active = case.at_bound(found, *case.theta)
    assert 0 < active.sum() < active.numel()
    moved = [t + 2**-10 for t in case.theta]
    with torch.no_grad():
        stop = lg.Stop(case.underflow[torch.float64] // 4)
        nearby = lg.solve(*case.build(*moved)[:2], state, stop=stop).x
    assert torch.equal(case.at_bound(nearby, *moved), active)


@each_pair
def test_before_underflow(name: str, gradient: lg.GradientStrategy) -> None:
    case = CASES[name]
    _, expected = closed_gradient(case)
    _, found = solution_and_gradient(name, gradient, case.iterations, torch.float64)
    require_close(found, expected, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@each_pair
def test_after_underflow(name: str, gradient: lg.GradientStrategy, dtype: torch.dtype) -> None:
    case = CASES[name]
    exact, expected = closed_gradient(case)
    x, found = solution_and_gradient(name, gradient, case.underflow[dtype], dtype)
    active = case.at_bound(exact, *case.theta)
    rounded = [t.to(dtype) for t in case.theta]
    assert active.sum() > 0
    assert torch.equal(case.at_bound(x, *rounded), active)  # exactly 0, or exactly an end
    require_close(found, expected, 1e-8 if dtype == torch.float64 else case.single)
