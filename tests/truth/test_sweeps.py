"""The paper's reverse sweeps, with explicit partial derivatives, equal Unroll.

The maps are written out here, not taken from the library, so that two independent derivations meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

import legato as lg
from legato.studies.sweeps import (
    ForwardBackwardPartials,
    PrimalDualPartials,
    StepPartials,
    geometric_series,
    implicit,
    reverse_abstract,
    reverse_forward_backward,
    reverse_primal_dual,
)
from legato.testing import SmallProblem
from problems import SPLITTINGS, by_name, random, relative_error

N = 12


def flatten(tensors: Any) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def split(vector: Tensor, like: Any) -> list[Tensor]:
    pieces = torch.split(vector, [t.numel() for t in like])
    return [p.reshape(t.shape) for p, t in zip(pieces, like, strict=True)]


def by_unroll(problem: SmallProblem, iterations: int = N, dual: bool = False) -> Tensor:
    """The gradient of ⟨ξ, xᴺ⟩ (and ⟨ξ_p, pᴺ⟩) in all parameters."""
    theta = problem.leaves()
    solution = problem.solve(*theta, iterations=iterations)
    loss = (cotangent(solution.x) * solution.x).sum()
    if dual:
        loss = loss + (cotangent(solution.y) * solution.y).sum()
    return flatten(torch.autograd.grad(loss, theta))


def cotangent(x: Tensor) -> Tensor:
    """A fixed ξ: the sweeps take the gradient of the loss as given."""
    return random(40 + x.numel(), *x.shape)


# --- Algorithm 1: any iteration -------------------------------------------------------------------


def abstract_step(problem: SmallProblem) -> tuple[Callable[[Tensor, Tensor], Tensor], Tensor]:
    """The step as a map on points (primal and dual ones in one vector), and its start."""
    composed, algorithm, x0 = problem.build(*problem.parameters)
    first = algorithm.init(composed, x0)

    def points(state: Any) -> tuple[Tensor, ...]:
        x = algorithm.solution(state)
        return (x, algorithm.dual(state)) if isinstance(composed, lg.Saddle) else (x,)

    def step(z: Tensor, theta: Tensor) -> Tensor:
        composed, algorithm, _ = problem.build(*split(theta, problem.parameters))
        x, *y = split(z, points(first))
        if y:
            state = first._replace(
                primal=algorithm.geometry.mirror(x),
                dual=algorithm.dual_geometry.mirror(y[0]),
                x=x,
                y=y[0],
            )
        else:
            state = first._replace(mirror=algorithm.geometry.mirror(x), point=x)
        return flatten(points(algorithm.step(composed, state)))

    return step, flatten(points(first))


def abstract_partials(problem: SmallProblem, iterations: int) -> tuple[list[StepPartials], Tensor]:
    step, z = abstract_step(problem)
    theta = flatten(problem.parameters)
    partials = []
    for _ in range(iterations):
        partials.append(StepPartials(*jacobian(step, (z, theta))))
        z = step(z, theta)
    return partials, z


@pytest.mark.parametrize("name", SPLITTINGS)
def test_abstract_sweep(name: str) -> None:
    problem = by_name(name)
    partials, z = abstract_partials(problem, N)
    x = problem.solve(*problem.parameters, iterations=N).x
    xi = torch.zeros_like(z)
    xi[: x.numel()] = cotangent(x).reshape(-1)
    assert relative_error(reverse_abstract(partials, xi), by_unroll(problem)) < 1e-12


def fixed_point(name: str, gradient: lg.GradientStrategy) -> tuple[StepPartials, Tensor, Tensor]:
    """The partials at a solution, ξ, and the library's gradient there."""
    problem = by_name(name)
    step, z = abstract_step(problem)
    theta = flatten(problem.parameters)
    for _ in range(problem.iterations):
        z = step(z, theta)
    leaves = problem.leaves()
    x = problem.solve(*leaves, iterations=problem.iterations, gradient=gradient).x
    found = flatten(torch.autograd.grad((cotangent(x) * x).sum(), leaves))
    xi = torch.zeros_like(z)
    xi[: x.numel()] = cotangent(x).reshape(-1)
    return StepPartials(*jacobian(step, (z, theta))), xi, found


@pytest.mark.parametrize("name", ["lasso", "simplex projected", "smooth potts", "smooth game"])
def test_fixed_point_sweeps(name: str) -> None:
    """Interior and Euclidean solutions: there the textbook formulas need no care."""
    for terms in (1, 5):
        at_solution, xi, found = fixed_point(name, lg.FixedPoint(terms, tol=None))
        assert relative_error(geometric_series(at_solution, xi, terms), found) < 1e-11
    at_solution, xi, found = fixed_point(name, lg.Implicit(lg.Direct()))
    # The solution itself is known up to rounding/(1 − ρ) only: hence not 1e-12.
    assert relative_error(implicit(at_solution, xi), found) < 1e-11


# --- Algorithm 2: forward–backward ----------------------------------------------------------------


class ForwardBackwardMaps:
    """prox(y, θ), ∇f(x, θ) and ∇ψ(x), written by hand for one problem."""

    def __init__(
        self,
        name: str,
        prox: Callable[[Tensor, Tensor], Tensor],
        mirror: Callable[[Tensor], Tensor],
        alpha: float,
    ) -> None:
        self.problem = by_name(name)
        self.prox, self.mirror, self.alpha = prox, mirror, alpha

    def grad(self, x: Tensor, theta: Tensor) -> Tensor:
        matrix, b, *_ = split(theta, self.problem.parameters)
        return matrix.T @ (matrix @ x - b)

    def partials(self) -> tuple[list[ForwardBackwardPartials], Tensor]:
        theta = flatten(self.problem.parameters)
        x = self.problem.build(*self.problem.parameters)[2]
        partials = []
        for _ in range(N):
            y = self.mirror(x) - self.alpha * self.grad(x, theta)
            partials.append(
                ForwardBackwardPartials(
                    *jacobian(self.prox, (y, theta)),
                    *jacobian(self.grad, (x, theta)),
                    jacobian(self.mirror, x),
                )
            )
            x = self.prox(y, theta)
        return partials, x


LAMBDA = 7 * 5 + 7  # where θ = (A, b, λ, …) keeps the weight of the ℓ1 norm


def soft(y: Tensor, threshold: Tensor) -> Tensor:
    return y.sign() * torch.relu(y.abs() - threshold)


def identity(x: Tensor) -> Tensor:
    return x


MAPS = {
    "lasso": (lambda y, theta: soft(y, 0.35 * theta[LAMBDA]), identity, 0.35),
    "elastic net": (
        lambda y, theta: soft(y, 0.35 * theta[LAMBDA]) / (1 + 0.35 * theta[LAMBDA + 1]),
        identity,
        0.35,
    ),
    "nnls": (lambda y, theta: torch.relu(y), identity, 0.35),
    "nnls entropic": (lambda y, theta: torch.exp(y), torch.log, 0.4),
    "simplex least squares": (lambda y, theta: torch.softmax(y, 0), torch.log, 0.8),
}


@pytest.mark.parametrize("name", MAPS)
def test_forward_backward_sweep(name: str) -> None:
    maps = ForwardBackwardMaps(name, *MAPS[name])
    partials, x = maps.partials()
    found = reverse_forward_backward(partials, maps.alpha, cotangent(x))
    assert relative_error(found, by_unroll(maps.problem)) < 1e-12


@pytest.mark.parametrize("name", ["nnls entropic", "simplex least squares"])
def test_the_printed_algorithm_2_holds_in_the_euclidean_geometry_only(name: str) -> None:
    """Errata 1: with the identity in place of ∇²ψ the gradient is far off."""

    def printed(name: str) -> float:
        maps = ForwardBackwardMaps(name, *MAPS[name])
        partials, x = maps.partials()
        eye = torch.eye(len(x), dtype=x.dtype)
        as_printed = [p._replace(metric=eye) for p in partials]
        found = reverse_forward_backward(as_printed, maps.alpha, cotangent(x))
        return relative_error(found, by_unroll(maps.problem))

    assert printed(name) > 0.1
    assert printed("nnls") < 1e-12


# --- Algorithm 3: primal–dual ---------------------------------------------------------------------


class PrimalDualMaps:
    """PD_u(u, p, θ) and PD_p(ū, p, θ) as the paper has them, on points, written by hand."""

    def __init__(
        self,
        name: str,
        update_u: Callable[..., Tensor],
        update_p: Callable[..., Tensor],
    ) -> None:
        self.problem = by_name(name)
        composed, self.algorithm, x0 = self.problem.build(*self.problem.parameters)
        first = self.algorithm.init(composed, x0)
        self.u, self.p = first.x, first.y
        self.update_u, self.update_p = update_u, update_p

    def PD_u(self, u: Tensor, p: Tensor, theta: Tensor) -> Tensor:
        theta = split(theta, self.problem.parameters)
        u, p = u.reshape(self.u.shape), p.reshape(self.p.shape)
        return self.update_u(u, p, self.algorithm.tau, *theta).reshape(-1)

    def PD_p(self, ahead: Tensor, p: Tensor, theta: Tensor) -> Tensor:
        theta = split(theta, self.problem.parameters)
        ahead, p = ahead.reshape(self.u.shape), p.reshape(self.p.shape)
        return self.update_p(ahead, p, self.algorithm.sigma, *theta).reshape(-1)

    def partials(self) -> list[PrimalDualPartials]:
        theta = flatten(self.problem.parameters)
        u, p = self.u.reshape(-1), self.p.reshape(-1)
        partials = []
        for _ in range(N):
            new = self.PD_u(u, p, theta)
            ahead = 2 * new - u
            partials.append(
                PrimalDualPartials(
                    *jacobian(self.PD_u, (u, p, theta)), *jacobian(self.PD_p, (ahead, p, theta))
                )
            )
            u, p = new, self.PD_p(ahead, p, theta)
        return partials


def differences(u: Tensor, w: Tensor) -> Tensor:
    """(Ku)_{l, k, i, j} of a (label, row, column) image, zero at the last row and column."""
    out = torch.zeros(len(u), 2, *u.shape[1:], dtype=u.dtype)
    out[:, 0, :-1] = u[:, 1:] - u[:, :-1]
    out[:, 1, :, :-1] = u[:, :, 1:] - u[:, :, :-1]
    return w * out


def divergence(p: Tensor, w: Tensor, like: Tensor) -> Tensor:
    """K*p, as the derivative of u ↦ ⟨Ku, p⟩."""
    u = torch.zeros_like(like).requires_grad_()
    with torch.enable_grad():
        (out,) = torch.autograd.grad((differences(u, w) * p).sum(), u, create_graph=True)
    return out


def potts_u(u: Tensor, p: Tensor, tau: float, c: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.log(u) - tau * (divergence(p, w, u) + c), dim=0)


def potts_p(ahead: Tensor, p: Tensor, sigma: float, c: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(torch.atanh(p) + sigma * differences(ahead, w))


def smooth_potts_u(
    u: Tensor, p: Tensor, tau: float, c: Tensor, w: Tensor, eps: Tensor, eps_dual: Tensor
) -> Tensor:
    """ε-entropy: a division in the exponent (see the errata, last section)."""
    slope = divergence(p, w, u) + c
    return torch.softmax((torch.log(u) - tau * slope) / (1 + tau * eps), dim=0)


def smooth_potts_p(
    ahead: Tensor, p: Tensor, sigma: float, c: Tensor, w: Tensor, eps: Tensor, eps_dual: Tensor
) -> Tensor:
    rise = torch.atanh(p) + sigma * differences(ahead, w)
    return torch.tanh(rise / (1 + sigma * eps_dual))


def step_matrix(n: int) -> Tensor:
    """Forward differences with a last row of zeros."""
    D = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1) - torch.eye(n, dtype=torch.float64)
    D[-1] = 0
    return D


def tv_u(u: Tensor, p: Tensor, tau: float, b: Tensor, weight: Tensor) -> Tensor:
    return (u - tau * (p[0] @ step_matrix(8) - b)) / (1 + tau)


def tv_p(ahead: Tensor, p: Tensor, sigma: float, b: Tensor, weight: Tensor) -> Tensor:
    rise = p + sigma * (step_matrix(8) @ ahead)
    return torch.minimum(torch.maximum(rise, -weight), weight)


def game_u(u: Tensor, p: Tensor, tau: float, M: Tensor) -> Tensor:
    return torch.softmax(torch.log(u) - tau * M.T @ p, dim=0)


def game_p(ahead: Tensor, p: Tensor, sigma: float, M: Tensor) -> Tensor:
    return torch.softmax(torch.log(p) + sigma * M @ ahead, dim=0)


UPDATES = {
    "potts": (potts_u, potts_p),
    "smooth potts": (smooth_potts_u, smooth_potts_p),
    "tv 1d": (tv_u, tv_p),
    "game": (game_u, game_p),
}
each_saddle = pytest.mark.parametrize("name", UPDATES)


@each_saddle
def test_primal_dual_sweep(name: str) -> None:
    maps = PrimalDualMaps(name, *UPDATES[name])
    found = reverse_primal_dual(maps.partials(), cotangent(maps.u).reshape(-1))
    assert relative_error(found, by_unroll(maps.problem)) < 1e-12


@each_saddle
def test_primal_dual_sweep_with_a_loss_of_the_dual(name: str) -> None:
    """Errata 3."""
    maps = PrimalDualMaps(name, *UPDATES[name])
    xi, xi_dual = cotangent(maps.u).reshape(-1), cotangent(maps.p).reshape(-1)
    found = reverse_primal_dual(maps.partials(), xi, xi_dual)
    assert relative_error(found, by_unroll(maps.problem, dual=True)) < 1e-12


def by_unrolled_average(problem: SmallProblem, dual: bool) -> Tensor:
    theta = problem.leaves()
    composed, algorithm, x0 = problem.build(*theta)
    averaged = lg.PrimalDual(
        algorithm.tau,
        algorithm.sigma,
        algorithm.geometry,
        algorithm.dual_geometry,
        average=lg.Average(first=1),
        norm=algorithm.norm,
    )
    solution = lg.solve(composed, averaged, x0, stop=lg.Stop(N))
    loss = (cotangent(solution.x) * solution.x).sum()
    if dual:
        loss = loss + (cotangent(solution.y) * solution.y).sum()
    return flatten(torch.autograd.grad(loss, theta))


@pytest.mark.parametrize("dual", [False, True], ids=["primal loss", "dual loss"])
@each_saddle
def test_primal_dual_sweep_of_the_average(name: str, dual: bool) -> None:
    """Errata 2: the gradient of the mean of u¹, …, uᴺ enters at every back-step."""
    maps = PrimalDualMaps(name, *UPDATES[name])
    xi_dual = cotangent(maps.p).reshape(-1) if dual else None
    xi = cotangent(maps.u).reshape(-1)
    found = reverse_primal_dual(maps.partials(), xi, xi_dual, averaged=True)
    assert relative_error(found, by_unrolled_average(maps.problem, dual)) < 1e-12


def mean_of_sweeps(partials: list[PrimalDualPartials], xi: Tensor) -> Tensor:
    """As printed: the mean of w⁽ⁿ⁾, the running result after n back-steps."""
    running = [reverse_primal_dual(partials[-n:], xi) for n in range(1, len(partials) + 1)]
    return torch.stack(running).mean(0)


@pytest.mark.parametrize("name", ["potts", "smooth potts", "game"])
def test_averaging_the_sweeps_is_not_the_gradient_of_the_average(name: str) -> None:
    """The two agree only where all partial derivatives are those of one point.

    In "tv 1d" they are: its maps are piecewise affine and the pieces do not change on the way.
    """
    maps = PrimalDualMaps(name, *UPDATES[name])
    partials, xi = maps.partials(), cotangent(maps.u).reshape(-1)
    truth = by_unrolled_average(maps.problem, dual=False)
    assert relative_error(mean_of_sweeps(partials, xi), truth) > 0.05
    frozen = [partials[0]] * N
    right = reverse_primal_dual(frozen, xi, averaged=True)
    assert relative_error(mean_of_sweeps(frozen, xi), right) < 1e-12
