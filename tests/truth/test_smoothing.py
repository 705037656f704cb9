"""Smoothed problems: close to the constrained ones, and differentiable by a Hessian solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import legato as lg
from problems import MIXTURE, POSITIVE_TARGET, TARGET, A, Theta, by_name, random, relative_error

EUCLIDEAN = lg.ForwardBackward(step_size=lg.Backtracking())
ENTROPIC = lg.ForwardBackward(step_size=0.8, geometry=lg.Entropy())
INSIDE = torch.full((5,), 0.2, dtype=torch.float64)
HESSIAN = lg.Implicit(lg.CG(tol=1e-12))


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@dataclass(frozen=True)
class Smoothed:
    """θ ↦ the problem without smoothing; μ comes last in θ."""

    build: Callable[..., lg.Composite]
    theta: Theta
    algorithm: lg.ForwardBackward = EUCLIDEAN
    gradient: lg.GradientStrategy = HESSIAN

    def solve(self, *theta: Tensor, x0: Tensor = INSIDE, **options: Any) -> lg.Solution:
        *theta, mu = theta
        return lg.solve(lg.smoothed(self.build(*theta), mu), self.algorithm, x0, **options)


CASES = {
    "NonNegative": Smoothed(
        lambda A, b: lg.Composite(lg.LeastSquares(A, b), lg.NonNegative()), (A, POSITIVE_TARGET)
    ),
    "Box": Smoothed(
        lambda A, b, lo, hi: lg.Composite(lg.LeastSquares(A, b), lg.Box(lo, hi)),
        (A, POSITIVE_TARGET, INSIDE - 0.5, INSIDE + 0.6),
    ),
    "L1": Smoothed(
        lambda A, b, weight: lg.Composite(lg.LeastSquares(A, b), lg.L1(weight)),
        (A, TARGET, number(0.3)),
    ),
    "Simplex": Smoothed(  # the equality stays, so the step is no plain gradient step
        lambda A, b: lg.Composite(lg.LeastSquares(A, b), lg.Simplex()),
        (A, MIXTURE),
        ENTROPIC,
        lg.Implicit(lg.GMRES(tol=1e-12)),
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_case
def test_tends_to_the_constrained_solution(case: Smoothed) -> None:
    """The error is of order μ: a tenth of μ leaves about a tenth of the error."""
    exact = lg.solve(case.build(*case.theta), lg.ForwardBackward(), stop=lg.Stop(300)).x
    errors, x = [], INSIDE
    for mu in (1e-1, 1e-2, 1e-3):  # each from the last one: a barrier punishes rash steps
        solution = case.solve(*case.theta, mu, x0=x, stop=lg.Stop(6000, tol=1e-7))
        assert solution.converged
        x = solution.x
        errors.append(relative_error(x, exact))
    assert errors[0] > 0.01  # smoothing does something
    assert errors[1] < 0.3 * errors[0]
    assert errors[2] < 0.2 * errors[1]
    assert errors[2] < 0.02


def test_solves_the_printed_smoothing() -> None:
    """0 = ∇f + ∇g_μ with every g_μ written out; for the simplex x = softmax(−∇f/μ)."""
    mu, solutions, slopes = 0.1, {}, {}
    for name, case in CASES.items():
        x = case.solve(*case.theta, mu, stop=lg.Stop(1000, tol=1e-16)).x
        solutions[name] = x
        slopes[name] = case.theta[0].T @ (case.theta[0] @ x - case.theta[1])
    x = solutions["NonNegative"]
    assert relative_error(slopes["NonNegative"], mu / x) < 1e-12
    x, (*_, lo, hi) = solutions["Box"], CASES["Box"].theta
    assert relative_error(slopes["Box"], mu / (x - lo) - mu / (hi - x)) < 1e-12
    x, weight = solutions["L1"], CASES["L1"].theta[-1]
    assert relative_error(slopes["L1"], -weight * x / torch.sqrt(x**2 + mu**2)) < 1e-12
    x = solutions["Simplex"]
    assert relative_error(x, torch.softmax(-slopes["Simplex"] / mu, 0)) < 1e-12


@each_case
def test_derivative(case: Smoothed) -> None:
    """In the data, the terms' own parameters and μ, along a few directions of θ."""
    base = (*case.theta, number(0.1))
    theta = [t.clone().requires_grad_() for t in base]
    stop = lg.Stop(1000, tol=1e-15)
    x = case.solve(*theta, gradient=case.gradient, stop=stop).x
    loss = by_name("lasso").loss
    gradient = torch.autograd.grad(loss(x), theta)
    assert all(g.norm() > 1e-3 for g in gradient)
    h = 1e-6
    with torch.no_grad():
        for k, parameter in enumerate(base):
            for seed in range(2):
                shift = random(50 + seed, *parameter.shape)
                ends = []
                for sign in (1, -1):
                    moved = list(base)
                    moved[k] = parameter + sign * h * shift
                    ends.append(loss(case.solve(*moved, stop=stop).x))
                expected = (ends[0] - ends[1]) / (2 * h)
                found = (gradient[k] * shift).sum()
                assert abs(found - expected) < 1e-7 * gradient[k].norm() * shift.norm()


SADDLES = {
    "TV": (lambda w: lg.L1(w) @ lg.Differences((-1,)), number(0.3)),
    "two slopes": (lambda w: lg.AsymmetricL1(-w, 2 * w) @ lg.Differences((-1,)), number(0.2)),
    "groups": (lambda w: lg.GroupL1(w, groups=torch.tensor([0, 0, 1, 1, 0])) @ A.T, number(0.2)),
}


@pytest.mark.parametrize("name", SADDLES)
def test_a_smoothed_saddle_has_the_derivative_of_its_solution(name: str) -> None:
    """By central differences; and the solution tends to that of the saddle-point problem."""
    build, weight = SADDLES[name]
    y = random(3, 5) if name != "groups" else random(3, A.shape[0])

    def solution(w: Tensor, mu: float, **options: Any) -> Tensor:
        problem = lg.Saddle(*_behind(build(w)), nonsmooth=lg.SquaredDistance(y))
        smooth = lg.smoothed(problem, mu)
        return lg.solve(smooth, lg.ForwardBackward(), stop=lg.Stop(20000, tol=1e-13), **options).x

    w = weight.clone().requires_grad_()
    (found,) = torch.autograd.grad(solution(w, 0.1, gradient=HESSIAN).square().sum(), w)
    h = 1e-6
    with torch.no_grad():
        ends = [solution(weight + s * h, 0.1).square().sum() for s in (1, -1)]
        torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)
        exact = lg.solve(lg.SquaredDistance(y) + build(weight), stop=lg.Stop(20000, tol=1e-12)).x
        errors = [relative_error(solution(weight, mu), exact) for mu in (1e-1, 1e-2)]
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 0.05


def test_a_smoothed_potts_model_has_the_derivative_of_its_solution() -> None:
    """Remark 4: pixels on simplices, weighted edges; the limit is that of a linear programme."""
    cost, weights = 2 * random(5, 3, 4), 0.1 + 0.2 * random(6, 1, 4).abs()

    def solution(w: Tensor, mu: float, tol: float = 1e-11, **options: Any) -> Tensor:
        edges = lg.L1() @ lg.Differences((-1,), weights=w)
        energy = lg.Linear(cost) + lg.Simplex(dim=-2) + edges
        smooth, algorithm = (
            lg.smoothed(lg.split(energy), mu),
            lg.ForwardBackward(None, lg.Entropy()),
        )
        return lg.solve(smooth, algorithm, stop=lg.Stop(20000, tol=tol), **options).x

    w, direction, h = weights.clone().requires_grad_(), random(7, 1, 4), 1e-6
    gradient = lg.Implicit(lg.GMRES(tol=1e-12))
    (found,) = torch.autograd.grad(solution(w, 0.3, gradient=gradient).square().sum(), w)
    with torch.no_grad():
        ends = [solution(weights + s * h * direction, 0.3).square().sum() for s in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * h)
        torch.testing.assert_close((found * direction).sum(), expected, rtol=1e-6, atol=1e-8)
        assert abs(expected) > 1e-3
        exact = _labels(cost, weights)
        errors = [relative_error(solution(weights, mu, 1e-7), exact) for mu in (0.3, 0.05)]
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 0.12


def _labels(cost: Tensor, weights: Tensor) -> Tensor:
    """min ⟨c, u⟩ + Σ w|u_{i+1} − u_i| with u_i in simplices, by HiGHS."""
    labels, pixels = cost.shape
    edges = pixels - 1
    number = labels * pixels
    D = np.zeros((labels * edges, number))
    for label in range(labels):
        for i in range(edges):
            D[label * edges + i, label * pixels + i : label * pixels + i + 2] = -1, 1
    I = np.eye(labels * edges)
    price = np.tile(weights[0, :edges].numpy(), labels)
    found = linprog(
        np.concatenate([cost.flatten().numpy(), price]),
        np.block([[D, -I], [-D, -I]]),
        np.zeros(2 * labels * edges),
        np.hstack([np.tile(np.eye(pixels), labels), np.zeros((pixels, labels * edges))]),
        np.ones(pixels),
    )
    return torch.from_numpy(found.x[:number]).reshape(cost.shape)


def _behind(energy: Any) -> tuple[Any, Any]:
    return energy.operator, energy.function


def test_an_infinite_slope_is_not_smoothed() -> None:
    with pytest.raises(lg.errors.InputError, match="infinite"):
        lg.AsymmetricL1(-float("inf"), 1.0).smoothed(0.1)


# --- the paper's toy ------------------------------------------------------------------------------

# λ, b, θ*, x⁰, μ of the errata's two sets of values
SETS = {"A": (1.0, 1.0, 1.0, 1.0, 0.01), "B": (5.0, 2.0, 0.5, 0.5, 0.05)}


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("at", [0.3, 0.0, -0.4])
def test_log_barrier_of_the_toy(at: float, values: tuple[float, ...]) -> None:
    """min λ/2 (θx − b)² + ½x² − μ log x, and dL/dθ = −(x − g) f''⁻¹ ∂_θ f' for L = ½(x − g)²."""
    lam, b, target, start, mu = values
    theta = number(at).requires_grad_()
    data = lg.LeastSquares(theta.reshape(1, 1), number(b).reshape(1), lam) + lg.SquaredNorm()
    solution = lg.solve(
        lg.smoothed(lg.Composite(data, lg.NonNegative()), mu),
        lg.ForwardBackward(step_size=lg.Backtracking(initial=1.0)),
        number(start).reshape(1),
        gradient=HESSIAN,
        stop=lg.Stop(500, tol=1e-16),
    )
    x = solution.x.detach()
    slope = lam * at * (at * x - b) + x - mu / x
    assert slope.abs() < 1e-13  # x solves the smoothed problem
    g = max(0.0, lam * target * b / (1 + lam * target**2))
    (found,) = torch.autograd.grad(0.5 * (solution.x - g).square().sum(), theta)
    curvature = lam * at**2 + 1 + mu / x**2
    expected = -(x - g) / curvature * (2 * lam * at * x - lam * b)
    assert relative_error(found, expected) < 1e-12


def test_the_toy_tends_to_its_analytic_derivative() -> None:
    """Set A at θ = 0.3: −0.17215831 without smoothing (errata)."""
    lam, b, target, start, _ = SETS["A"]
    errors = []
    for mu in (1e-2, 1e-3, 1e-4):
        theta = number(0.3).requires_grad_()
        data = lg.LeastSquares(theta.reshape(1, 1), number(b).reshape(1), lam) + lg.SquaredNorm()
        x = lg.solve(
            lg.smoothed(lg.Composite(data, lg.NonNegative()), mu),
            EUCLIDEAN,
            number(start).reshape(1),
            gradient=HESSIAN,
            stop=lg.Stop(500, tol=1e-16),
        ).x
        g = lam * target * b / (1 + lam * target**2)
        (found,) = torch.autograd.grad(0.5 * (x - g).square().sum(), theta)
        errors.append(abs(float(found) + 0.17215831))
    assert 0.03 < errors[0] < 0.05  # the errata's 3.9e-2
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 0.2 * errors[1]


# --- ends and line searches -----------------------------------------------------------------------


def test_infinite_ends_have_no_barrier() -> None:
    """A box that is open on some sides is as good as a constraint on the others."""
    lo = torch.tensor([0.0, 0.0, -torch.inf, 0.0, -torch.inf], dtype=torch.float64)
    hi = torch.full_like(lo, torch.inf)
    half = lg.smoothed(lg.Composite(lg.LeastSquares(A, POSITIVE_TARGET), lg.Box(lo, hi)), 0.1)
    bounded = torch.isfinite(lo)
    barrier = -0.1 * torch.log(INSIDE[bounded]).sum()
    data = lg.LeastSquares(A, POSITIVE_TARGET)
    assert relative_error(half.objective(INSIDE), data.value(INSIDE) + barrier) < 1e-14
    x = lg.solve(half, EUCLIDEAN, INSIDE, stop=lg.Stop(500)).x
    slope = data.grad(x) - torch.where(bounded, 0.1 / x, torch.zeros_like(x))
    assert slope.norm() < 1e-12


@pytest.mark.parametrize("grow", [1.0, 2.0])
def test_a_line_search_settles(grow: float) -> None:
    """Also where every step is tried longer first, and to more than half of the digits."""
    data = lg.LeastSquares(A, TARGET)
    algorithm = lg.ForwardBackward(step_size=lg.Backtracking(grow=grow))
    solution = lg.solve(lg.Composite(data), algorithm, stop=lg.Stop(500, tol=1e-12))
    assert solution.converged
    assert solution.steps["step"] < 2 / data.lipschitz()


def test_a_hessian_solve_where_one_step_is_enough() -> None:
    """αH = I leaves only rounding in A_x, which is not symmetric but no reason to stop either."""
    Q, _ = torch.linalg.qr(random(70, 6, 4))
    b = random(71, 6).requires_grad_()
    problem = lg.Composite(lg.LeastSquares(Q, b))
    x = lg.solve(problem, lg.ForwardBackward(step_size=1.0), gradient=HESSIAN).x
    (found,) = torch.autograd.grad(x.sum(), b)
    assert relative_error(found, Q.sum(1)) < 1e-12


@pytest.mark.parametrize(("lo", "hi"), [(0.0, float("inf")), (float("-inf"), 1.0), (0.0, 1.0)])
def test_a_barrier_of_an_infinite_end_has_all_derivatives(lo, hi):
    """Newton differentiates the Hessian: 1/∞² is 0, and its derivative was NaN."""
    mu = torch.tensor(0.3).double().requires_grad_()
    x = torch.tensor([0.2, 0.7]).double().requires_grad_()
    barrier = lg.Box(lo, hi).smoothed(mu)
    assert torch.autograd.gradcheck(lambda m, t: lg.Box(lo, hi).smoothed(m).grad(t), (mu, x))
    assert torch.autograd.gradcheck(lambda m, t: lg.Box(lo, hi).smoothed(m).hessian(t), (mu, x))
    expected = torch.func.hessian(lambda t: barrier(t))(x.detach())
    torch.testing.assert_close(barrier.hessian(x.detach()), expected)
