"""What layers without kernels of their own share: settings, and a solve that says it fell short."""

from __future__ import annotations

import warnings
from typing import Any

from legato._support import tree
from legato._support.checks import as_number
from legato._support.precision import full_precision
from legato.algorithms import Algorithm
from legato.errors import InputError, NotConvergedWarning
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.nn.inputs import require_iterations
from legato.running import Stop
from legato.solving import Solution, solve


def require_strategy(gradient: GradientStrategy | None) -> GradientStrategy:
    """The strategy, Unroll() for None; refuses what is none."""
    if gradient is None:
        return Unroll()
    if not isinstance(gradient, GradientStrategy):
        raise InputError(f"gradient must be a strategy such as Unroll(), not {gradient!r}.")
    return gradient


def require_stop(iterations: int, tol: float | None, layer: str) -> Stop:
    """When to stop; refuses numbers that make no sense."""
    require_iterations(iterations, layer)
    return Stop(iterations, tol)


def solve_lower_level(
    problem: Any, algorithm: Algorithm, x0: Any, gradient: GradientStrategy, stop: Stop, layer: str
) -> Solution:
    """As :func:`legato.solve`; a missed tolerance is said in words and numbers, once."""
    with full_precision():
        done = solve(problem, algorithm, x0, gradient=gradient, stop=stop)
    attached = any(t.requires_grad for t in tree.leaves(done.state))
    if done.converged is False and not (isinstance(gradient, FixedPointGradient) and attached):
        warnings.warn(
            f"{layer} stopped after {done.iterations} iterations with residual "
            f"{as_number(done.residual):.2e} > {stop.tol:.0e}: what it returns is the last "
            "iterate, not the solution. Allow more iterations or a looser tol.",
            NotConvergedWarning,
            stacklevel=4,
        )
    return done
