"""Running an algorithm: stopping rules, traces, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import detach
from legato.algorithms import Algorithm
from legato.errors import InputError


@dataclass(frozen=True)
class Stop:
    """Stop after ``iterations``, or earlier once every residual is at most ``tol``.

    The residual is ‖xⁿ⁺¹ − xⁿ‖ / max_k ‖xᵏ‖ over primal and dual variables together, one for each
    element of a batch. Reading it makes a GPU wait: ``every`` says how often; without ``tol`` it is
    never read in the loop. The maximum is over the norms seen: the first, the last and those read.
    Reference: Section 4.2 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), stop=lg.Stop(1000, tol=1e-6))
    >>> solution.converged, solution.iterations
    (True, 3)
    """

    iterations: int = 100
    tol: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        for name, value in (("iterations", self.iterations), ("every", self.every)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"Stop: {name} must be a positive integer, not {value!r}.")
        if self.tol is not None and not self.tol > 0:
            raise InputError(
                f"Stop: tol must be positive, not {self.tol!r}. A tolerance of 0 is never reached; "
                "leave tol=None to run all iterations."
            )


@dataclass
class Trace:
    """Objective and residual after each iteration, as tensors on the solver's device.

    Both have the shape of the batch; the residual is that of :class:`Stop`.
    ``solve(…, trace=True)`` asks for it.

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> trace = lg.solve(problem, lg.ForwardBackward(0.5), stop=lg.Stop(3), trace=True).trace
    >>> [round(float(value), 3) for value in trace.objective]
    [3.125, 2.75, 2.656]
    """

    objective: list[Tensor] = field(default_factory=list)
    residual: list[Tensor] = field(default_factory=list)

    def record(self, objective: Tensor, residual: Tensor) -> None:
        self.objective.append(objective.detach())
        self.residual.append(residual)


@dataclass
class Run:
    """What a loop leaves behind; residual and converged are those of :class:`Solution`.

    ``settled`` is that of :meth:`Algorithm.settled`.
    """

    state: Any
    iterations: int
    residual: Tensor
    converged: Tensor | bool | None
    trace: Trace | None
    window: list[Any] | None = None
    settled: Tensor | None = None


def run(
    problem: Any,
    algorithm: Algorithm[Any, Any],
    state: Any,
    stop: Stop,
    *,
    trace: Trace | None = None,
    keep: int | None = None,
) -> Run:
    """Iterate ``algorithm`` from ``state`` until ``stop``: xⁿ⁺¹ = 𝒜(xⁿ, θ).

    ``keep`` asks for the last ``keep`` + 1 states, oldest first (for truncated differentiation).
    Reference: Section 4.2 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> algorithm = lg.ForwardBackward()
    >>> done = legato.running.run(problem, algorithm, algorithm.init(problem, None), lg.Stop(5))
    >>> algorithm.solution(done.state)
    tensor([2., 0.])
    """
    window = None if keep is None else [state]
    batch = batch_of(problem, algorithm, state)
    largest = algorithm.size(state, batch)
    before, done = state, 0
    for done in range(1, stop.iterations + 1):
        before, state = state, algorithm.step(problem, state)
        if window is not None and keep is not None:
            window.append(state)
            del window[: -keep - 1]
        tol = stop.tol if done % stop.every == 0 else None
        if tol is None and trace is None:
            continue
        largest = torch.maximum(algorithm.size(state, batch), largest)
        residual = algorithm.residual(before, state, batch, largest)
        if trace is not None:
            with torch.no_grad():
                trace.record(problem.objective(algorithm.solution(detach(state))), residual)
        if tol is not None and bool((residual <= tol).all()):
            settled = algorithm.settled(before, state, batch)
            if settled is None or bool(settled.all()):
                break
    residual = algorithm.residual(before, state, batch, largest)
    settled = algorithm.settled(before, state, batch)
    return Run(state, done, residual, judge(residual, stop, settled), trace, window, settled)


def judge(residual: Tensor, stop: Stop, settled: Tensor | None = None) -> Tensor | bool | None:
    """Which elements of a batch have reached the tolerance; None where none was asked for."""
    if stop.tol is None:
        return None
    converged = residual <= stop.tol
    if settled is not None:
        converged = converged & settled
    return converged if converged.ndim else bool(converged)


def batch_of(problem: Any, algorithm: Algorithm[Any, Any], state: Any) -> int:
    """How many leading axes are a batch; a problem of your own says so by a method ``batch``."""
    count = getattr(problem, "batch", None)
    return 0 if count is None else count(algorithm.solution(state))
