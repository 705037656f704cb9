"""The inner problems of an upper loss: solves that remember, count and obey a tolerance."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.soundness import require_sound_data
from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import GradientError, NotConvergedWarning
from legato.gradients import Backward, FixedPoint, GradientStrategy, Implicit, Piggyback
from legato.gradients.fixed_point import FixedPointGradient
from legato.running import Stop, most
from legato.solving import Solution, default_stop, has_tolerance, prepare, solve

RATE_GAP_WHILE_UNKNOWN = 0.1
"""1 − ρ, as long as nothing is known of the contraction rate ρ."""

SMALLEST_RATE_GAP = 1e-4
"""1 − ρ, at least: a rate closer to 1 cannot be told from 1."""

LOOSE_TOLERANCE = 1e-4
"""Above this tolerance an inexact solution was asked for, and is nothing to warn of."""

COARSEST_ADJOINT = 0.1
"""An adjoint solved less exactly than this may not even point downhill."""


@dataclass(frozen=True)
class Tolerances:
    """How exactly to solve: ‖x − x*‖/max(1, ‖x‖) ≤ ``lower``, adjoint residual ≤ ``adjoint``."""

    lower: float
    adjoint: float

    @classmethod
    def both(cls, tolerance: float) -> Tolerances:
        """The same accuracy for the solution and for its adjoint."""
        return cls(tolerance, min(tolerance, COARSEST_ADJOINT))


@dataclass
class _Solve:
    """One solve of the current evaluation, and ‖∇_x L‖ once backward has passed."""

    key: str
    problem: Any
    algorithm: Algorithm[Any, Any]
    state: Any
    backward: Backward
    exact: bool
    cotangents: list[float]


class InnerSolver:
    r"""Solves lower-level problems for an upper loss, each from the last solution of its kind.

    .. math:: x^*(θ_k) \text{ starts from } x^*(θ_{k−1}) \text{, detached}

    :func:`~legato.fit` passes one to the loss; a loop written by hand can use its own. Solves are
    told apart by the order of their calls within one evaluation, or by ``key``. Strategies that
    differentiate the path (Unroll, Forward) start from x0 every time: a warm start would cut the
    path short, and the gradient with it. Adaptive tolerances only ever loosen: ``stop.tol`` and the
    adjoint solver's ``tol`` are the most that is asked for.
    Reference: Pedregosa (2016) for warm starts in hyper-parameter optimisation.

    >>> inner = lg.bilevel.InnerSolver()
    >>> energy = lg.LeastSquares(torch.eye(1), torch.tensor([3.0])) + lg.L1(1.0)
    >>> inner.solve(energy, gradient=lg.Implicit()).x
    tensor([2.])
    """

    def __init__(self) -> None:
        self.tolerances: Tolerances | None = None
        self.iterations = 0
        self.adjoint_iterations = 0
        self._warm: dict[str, list[Tensor]] = {}
        self._gaps: dict[str, float] = {}
        self._solves: list[_Solve] = []

    def begin(self) -> None:
        """Start a new evaluation of the loss."""
        self._solves.clear()

    def solve(
        self,
        problem: Any,
        algorithm: Algorithm[Any, Any] | None = None,
        x0: Var | None = None,
        *,
        gradient: GradientStrategy | None = None,
        stop: Stop | None = None,
        key: str | None = None,
    ) -> Solution:
        """As :func:`legato.solve`, from the last solution where there is one."""
        key = str(len(self._solves)) if key is None else key
        reached = self.tolerances is not None or has_tolerance(gradient, stop)
        problem, algorithm = prepare(problem, algorithm, reached)
        if self.tolerances is not None:
            stop = _default_stop(gradient, problem, x0) if stop is None else stop
            # ‖x − x*‖ ≤ ‖𝒜(x) − x‖/(1 − ρ): a residual of lower · (1 − ρ) will do
            residual = self.tolerances.lower * self._gaps.get(key, RATE_GAP_WHILE_UNKNOWN)
            stop = replace(stop, tol=max(stop.tol or 0.0, residual))
            gradient = _loosen(gradient, self.tolerances.adjoint)
        last = self._warm.get(key) if isinstance(gradient, FixedPointGradient) else None
        start = _start(problem, algorithm, x0, last)
        solution = solve(problem, algorithm, start, gradient=gradient, stop=stop)
        self.iterations += most(solution.iterations)
        state = tree.detach(solution.state)
        self._warm[key] = tree.leaves(state)
        exact, cotangents = solution.converged is None, _watch(solution)
        self._solves.append(
            _Solve(key, problem, algorithm, state, solution.backward, exact, cotangents)
        )
        return solution

    # --- after backward ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def suppress_inexact_warnings(self) -> Iterator[None]:
        """Warn of no inexact solution where the tolerance asked for one."""
        with warnings.catch_warnings():
            if self.tolerances is not None and self.tolerances.lower > LOOSE_TOLERANCE:
                warnings.simplefilter("ignore", NotConvergedWarning)
            yield

    def close(self) -> None:
        """Count what backward did; called once it has passed."""
        for done in self._solves:
            self.adjoint_iterations += done.backward.iterations or 0

    def error(self) -> float:
        r"""How far the loss may be off because the lower level was not solved exactly.

        .. math:: |L(x) − L(x^*)| ≲ ‖∇L(x)‖ · \frac{‖𝒜(x) − x‖}{1 − ρ}

        ρ is the contraction rate, from the backward solve and from two further steps.
        A fixed number of iterations (no tolerance) counts as exact: it is the model itself.
        Reference: Ehrhardt and Roberts (2024), a-posteriori bounds for inexact hypergradients.
        """
        return sum(
            sum(c * c for c in done.cotangents) ** 0.5 * self._distance(done)
            for done in self._solves
            if done.cotangents and not done.exact
        )

    @torch.no_grad()
    def _distance(self, done: _Solve) -> float:
        """‖x − x*‖ ≤ ‖𝒜(x) − x‖/(1 − ρ)."""
        algorithm, state = done.algorithm, done.state
        with contextlib.suppress(GradientError):  # of an average only its changes can be observed
            algorithm, state = algorithm.fixed_point_map(algorithm.at_rest(done.problem, state))
        moved = algorithm.step(done.problem, state)
        again = algorithm.step(done.problem, moved)
        self.iterations += 2
        residual, following = _gap(algorithm, state, moved), _gap(algorithm, moved, again)
        if residual == 0:
            return 0.0
        # Both estimates of ρ may be too low while little is known: forget a larger one slowly.
        rate = max(done.backward.spectral_radius or 0.0, following / residual)
        gap = min(max(1 - rate, SMALLEST_RATE_GAP), 2 * self._gaps.get(done.key, 1.0))
        self._gaps[done.key] = gap
        return residual / gap

    # --- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next solve depends on."""
        pair = None if self.tolerances is None else (self.tolerances.lower, self.tolerances.adjoint)
        return {
            "warm": {key: list(tensors) for key, tensors in self._warm.items()},
            "gaps": dict(self._gaps),
            "tolerances": pair,
            "iterations": self.iterations,
            "adjoint_iterations": self.adjoint_iterations,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._warm = {key: list(tensors) for key, tensors in saved["warm"].items()}
        self._gaps = dict(saved["gaps"])
        pair = saved["tolerances"]
        self.tolerances = None if pair is None else Tolerances(*pair)
        self.iterations = saved["iterations"]
        self.adjoint_iterations = saved["adjoint_iterations"]
        self._solves.clear()


def _watch(solution: Solution) -> list[float]:
    """A list that receives the norms of ∇_x L (and ∇_y L) when backward passes."""
    norms: list[float] = []

    def note(cotangent: Tensor | None) -> None:
        if cotangent is not None:  # of a dual variable that the loss does not look at, it may be
            norms.append(float(torch.linalg.vector_norm(cotangent.detach())))

    parts = tree.leaves(solution.x)
    if solution.y is not None:
        parts = parts + tree.leaves(solution.y)
    for tensor in parts:
        if tensor.requires_grad:
            tensor.register_hook(note)
    return norms


def _gap(algorithm: Algorithm[Any, Any], before: Any, after: Any) -> float:
    change = tree.tree_map(torch.sub, algorithm.points(after), algorithm.points(before))
    return as_number(tree.norm(change))


def _loosen(gradient: GradientStrategy | None, tol: float) -> GradientStrategy | None:
    """The strategy with its linear solve no more exact than ``tol``."""
    if isinstance(gradient, Implicit):
        own = getattr(gradient.solver, "tol", None)
        if own is not None:
            solver: Any = gradient.solver
            return replace(gradient, solver=replace(solver, tol=max(own, tol)))
    if isinstance(gradient, (FixedPoint, Piggyback)) and gradient.tol is not None:
        return replace(gradient, tol=max(gradient.tol, tol))
    return gradient


def _default_stop(gradient: GradientStrategy | None, problem: Any, x0: Var | None) -> Stop:
    known = x0 if x0 is not None else problem.start()
    return Stop() if gradient is None or known is None else default_stop(gradient, known)


def _start(
    problem: Any, algorithm: Algorithm[Any, Any], x0: Var | None, last: list[Tensor] | None
) -> Any:
    """The last solution as a start for this problem; x0 where there is none of its shape."""
    if last is None:
        return x0
    require_sound_data(problem, "The problem")
    fresh = algorithm.init(problem, x0)
    like = tree.leaves(fresh)
    alike = len(like) == len(last) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        for a, b in zip(like, last, strict=True)
    )
    return tree.rebuild(fresh, last) if alike else x0  # solve gives a state fresh steps
