"""The six gradients under the paper's names, each a choice of problem, algorithm and gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

import legato as lg
from legato.errors import LegatoWarning
from legato.studies.toy.example import Toy

__all__ = ["BACK_ITERATED", "FORWARD", "METHODS", "Estimate", "Method", "estimate"]

FORWARD = 200
"""Forward iterations of the paper's figures."""


@dataclass(frozen=True)
class Method:
    """A name and what it stands for; ``gradient`` turns a number of back-iterations into one."""

    name: str
    words: str
    problem: Callable[[Toy, torch.Tensor], lg.Composite]
    algorithm: Callable[[Toy, float], lg.ForwardBackward]
    gradient: Callable[[int], lg.GradientStrategy]


def _smoothed(toy: Toy, theta: torch.Tensor) -> lg.Composite:
    return lg.smoothed(toy.problem(theta), toy.mu)


def _projected(toy: Toy, theta: float) -> lg.ForwardBackward:
    return lg.ForwardBackward(step_size=toy.projected_steps[theta])


def _bregman(toy: Toy, theta: float) -> lg.ForwardBackward:
    return lg.ForwardBackward(step_size=toy.bregman_step, geometry=lg.Entropy())


def _line_search(toy: Toy, theta: float) -> lg.ForwardBackward:
    # The barrier's gradient is not Lipschitz: no constant step is safe.
    return lg.ForwardBackward(step_size=lg.Backtracking())


def _series(back: int) -> lg.GradientStrategy:
    # Exactly that many terms, without comment on how good they are: that is what is studied.
    return lg.FixedPoint(back, tol=None)


def _cg(back: int) -> lg.GradientStrategy:
    return lg.Implicit(lg.CG(tol=1e-14))


def _gmres(back: int) -> lg.GradientStrategy:
    return lg.Implicit(lg.GMRES(tol=1e-14))


METHODS = {
    method.name: method
    for method in (
        Method("Smoothed-impl", "log barrier, Implicit(CG())", _smoothed, _line_search, _cg),
        Method("Proj.GD", "projected steps, Unroll(last=K)", Toy.problem, _projected, lg.Unroll),
        Method("Proj.GD2", "projected steps, FixedPoint(K)", Toy.problem, _projected, _series),
        Method("Bregman-FB", "entropic steps, Unroll(last=K)", Toy.problem, _bregman, lg.Unroll),
        Method("Bregman-FB2", "entropic steps, FixedPoint(K)", Toy.problem, _bregman, _series),
        Method(
            "Bregman-FB-impl", "entropic steps, Implicit(GMRES())", Toy.problem, _bregman, _gmres
        ),
    )
}

BACK_ITERATED = tuple(name for name in METHODS if not name.endswith("-impl"))
"""The methods that go back through iterations; those in "-impl" solve a linear system instead."""


@dataclass(frozen=True)
class Estimate:
    """dL/dθ as a method sees it, the point where it was taken, and what legato warned about."""

    gradient: float
    x: float
    warnings: tuple[str, ...]


def estimate(
    toy: Toy, method: str, theta: float, *, back: int | None = None, forward: int = FORWARD
) -> Estimate:
    """dL/dθ by one method after ``forward`` iterations and ``back`` of them differentiated.

    ``back=None`` differentiates as many as were made. Reference: Section 7.1 of Ochs et al. (2016).
    """
    chosen = METHODS[method]
    parameter = torch.tensor([theta], dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LegatoWarning)
        solution = lg.solve(
            chosen.problem(toy, parameter),
            chosen.algorithm(toy, theta),
            torch.tensor([toy.x0], dtype=torch.float64),
            gradient=chosen.gradient(forward if back is None else back),
            stop=lg.Stop(forward),
        )
        (gradient,) = torch.autograd.grad(toy.loss(solution.x).sum(), parameter)
    said = tuple(dict.fromkeys(str(w.message) for w in caught))
    return Estimate(float(gradient), float(solution.x.detach()), said)


@torch.no_grad()
def energies(toy: Toy, method: str, theta: float, iterations: int = FORWARD) -> list[float]:
    """E(xⁿ, θ) − min E for n = 1, …, N, in the energy that is not smoothed."""
    parameter = torch.tensor([theta], dtype=torch.float64)
    problem = METHODS[method].problem(toy, parameter)
    algorithm = METHODS[method].algorithm(toy, theta)
    energy = toy.problem(parameter).objective
    least = energy(torch.tensor([toy.solution(theta)], dtype=torch.float64))
    state = algorithm.init(problem, torch.tensor([toy.x0], dtype=torch.float64))
    gaps = []
    for _ in range(iterations):
        state = algorithm.step(problem, state)
        gaps.append(float(energy(algorithm.solution(state)) - least))
    return gaps
