"""What layers that call :func:`legato.solve` share: their settings, the solve, the record of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from legato._support import tree
from legato._support.checks import as_number, require_iterations
from legato._support.precision import full_precision
from legato._support.telling import tell
from legato.algorithms import Algorithm
from legato.errors import InputError, NotConvergedWarning
from legato.gradients import GradientStrategy, Unroll
from legato.gradients.fixed_point import FixedPointGradient
from legato.running import Stop, most
from legato.solving import Solution, solve_silently


@dataclass
class LayerOutput:
    """The record of a layer's solve: the problem that was solved, and what solve reported.

    ``x``, and ``y`` where there is a dual variable, are attached to the graph;
    ``solution.backward`` is filled by ``.backward()``.
    """

    problem: Any
    solution: Solution

    @property
    def x(self) -> Tensor:
        """The last iterate (or mean of iterates), which the layer returns."""
        return self.solution.x

    @property
    def y(self) -> Tensor | None:
        """The dual variable, or None."""
        return self.solution.y


class SolverLayer(nn.Module):
    """A layer with a number of iterations, a tolerance and a gradient strategy."""

    def __init__(
        self, iterations: int, tol: float | None, gradient: GradientStrategy | None
    ) -> None:
        super().__init__()
        require_iterations(iterations, type(self).__name__)
        if gradient is not None and not isinstance(gradient, GradientStrategy):
            raise InputError(f"gradient must be a strategy such as Unroll(), not {gradient!r}.")
        self.stop = Stop(iterations, tol)
        self.gradient = Unroll() if gradient is None else gradient

    def _settings(self) -> str:
        return f"iterations={self.stop.iterations}, tol={self.stop.tol}, gradient={self.gradient!r}"

    def _solve(self, problem: Any, algorithm: Algorithm[Any, Any], x0: Any) -> Solution:
        """As :func:`legato.solve`; a missed tolerance is said in words and numbers, once."""
        with full_precision():
            done = solve_silently(problem, algorithm, x0, gradient=self.gradient, stop=self.stop)
        # The fixed-point family warns itself where a derivative will be asked for.
        warned = isinstance(self.gradient, FixedPointGradient) and any(
            t.requires_grad for t in tree.leaves(done.state)
        )
        missed = done.converged is not None and not bool(torch.as_tensor(done.converged).all())
        if missed and not warned:
            residual = as_number(done.residual.amax())
            tell(
                f"{type(self).__name__} stopped after {most(done.iterations)} iterations with "
                f"residual {residual:.2e} > {self.stop.tol:.0e}: what it returns is the "
                "last iterate, not the solution. Allow more iterations or a looser tol.",
                NotConvergedWarning,
            )
        return done
