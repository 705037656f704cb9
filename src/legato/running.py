"""Running an algorithm: stopping rules, traces, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support.tree import detach, rebuilt
from legato.algorithms import Algorithm
from legato.engine import Engine
from legato.engine.switch import loop, looped, recorded_step
from legato.errors import InputError


@dataclass(frozen=True)
class Stop:
    """Stop after ``iterations``, or earlier once every residual is at most ``tol``.

    The residual is ‖xⁿ⁺¹ − xⁿ‖ / max_k ‖xᵏ‖ over primal and dual variables together, one for each
    element of a batch. Reading it makes a GPU wait: ``every`` says how often; without ``tol`` it is
    never read in the loop. The maximum is over the norms seen: the first, the last and those read.
    Defaults: ``iterations=100``, ``every=1``.
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
    """What a loop leaves behind; the first four are those of :class:`Solution`.

    ``settled`` is that of :meth:`Algorithm.settled`.
    """

    state: Any
    iterations: int | Tensor
    residual: Tensor
    converged: Tensor | bool | None
    trace: Trace | None
    settled: Tensor | None = None


def run(
    problem: Any,
    algorithm: Algorithm[Any, Any],
    state: Any,
    stop: Stop,
    *,
    trace: Trace | None = None,
    engine: Engine | None = None,
) -> Run:
    """Iterate ``algorithm`` from ``state`` until ``stop``: xⁿ⁺¹ = 𝒜(xⁿ, θ).

    Each element of a batch stops by itself, once it has reached the tolerance.
    Reference: Section 4.2 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> algorithm = lg.ForwardBackward()
    >>> done = legato.running.run(problem, algorithm, algorithm.init(problem, None), lg.Stop(5))
    >>> algorithm.solution(done.state)
    tensor([2., 0.])
    """
    batch = batch_of(problem, algorithm, state)
    if engine is not None and trace is None and not torch.is_grad_enabled():
        done = _run_by(engine, problem, algorithm, state, stop, batch)
        if done is not None:
            return done
    watch = Watch(algorithm, batch, stop, goes_on=batch > 0 and algorithm.moves_apart(problem))
    progress = watch.start(state)
    before, last = state, 0
    for number in range(1, stop.iterations + 1):
        before, state = state, algorithm.step(problem, state)
        looks = stop.tol is not None and (number % stop.every == 0 or number == stop.iterations)
        if looks:
            progress = watch.look(progress, before, state, number - last)
            state, last = progress.state, number
        if trace is not None:
            seen = progress if looks else watch.look(progress, before, state, 0)
            with torch.no_grad():
                trace.record(problem.objective(algorithm.solution(detach(state))), seen.residual)
            progress = progress._replace(largest=seen.largest)
        if looks and bool(progress.reached.all()):
            break
    if stop.tol is None:
        progress = watch.look(progress, before, state, stop.iterations)
    return watch.end(progress, before, state, trace)


MOVES = 0.01
"""The share of its present size by which what has come to its solution does not move any more."""
RETURNS = 1e-3
"""The same where entries grow: what shrinks steadily may have 0 as its solution."""


class Progress(NamedTuple):
    """How far each element of a batch has come; one that has reached the tolerance stays there."""

    state: Any
    largest: Tensor
    residual: Tensor
    reached: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class Watch:
    """Looks at a state now and then, and holds the elements that have arrived."""

    algorithm: Algorithm[Any, Any]
    batch: int
    stop: Stop
    goes_on: bool
    """Whether steps are made beyond the tolerance: for other elements, or until somebody reads."""

    def start(self, state: Any) -> Progress:
        largest = self.algorithm.size(state, self.batch)
        count = torch.zeros_like(largest, dtype=torch.int64)
        return Progress(state, largest, torch.full_like(largest, torch.inf), count > 0, count)

    def look(self, last: Progress, before: Any, after: Any, steps: int) -> Progress:
        """Progress ``steps`` iterations after the last look, ``before`` → ``after`` being one."""
        largest = torch.maximum(self.algorithm.size(after, self.batch), last.largest)
        residual = self.algorithm.residual(before, after, self.batch, largest)
        tol = self.stop.tol
        if tol is None:
            return last._replace(state=after, largest=largest, residual=residual)
        settled = self.algorithm.settled(before, after, self.batch)
        reached = residual <= tol
        if settled is not None:
            reached = reached & settled
        if self.algorithm.coordinates(after):
            reached = reached & ~self._vanishes(before, after, residual, largest)
        held = last.reached
        if not self.goes_on:
            return Progress(after, largest, residual, reached, last.iterations + steps)
        return Progress(
            self._where(held, last.state, after),
            torch.where(held, last.largest, largest),
            torch.where(held, last.residual, residual),
            held | reached,
            torch.where(held, last.iterations, last.iterations + steps),
        )

    def _vanishes(self, before: Any, after: Any, residual: Tensor, largest: Tensor) -> Tensor:
        """Whether points that are far smaller than they were still move, by their present size.

        In a curved geometry the start that is taken where none is given, such as 1, may be any
        number of times larger than the solution, and a change that is small against it be large
        against x. What vanishes for ever ends at rounding, unless entries come back from there.
        """
        size = self.algorithm.size(after, self.batch)
        change = residual * torch.maximum(largest, size)
        gone = size <= torch.finfo(size.dtype).eps * largest
        returns = self.algorithm.returning(before, after, self.batch)
        return ((change > MOVES * size) & ~gone) | ((change > RETURNS * size) & returns)

    def _where(self, held: Tensor, old: Any, new: Any) -> Any:
        """``old`` for elements that are held; what a state keeps for all of them goes on."""
        if isinstance(old, tuple) or isinstance(new, tuple):
            alike = isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new)
            if not alike:  # iterations may add to a state, such as a factor
                return new
            return rebuilt(new, [self._where(held, o, n) for o, n in zip(old, new, strict=True)])
        if old is new or new.shape[: self.batch] != held.shape:
            return new
        return torch.where(held.reshape(held.shape + (1,) * (new.ndim - self.batch)), old, new)

    def end(self, progress: Progress, before: Any, state: Any, trace: Trace | None = None) -> Run:
        """The run that ends here."""
        settled = self.algorithm.settled(before, state, self.batch)
        if self.stop.tol is None:
            return Run(state, self.stop.iterations, progress.residual, None, trace, settled)
        single = not progress.reached.ndim
        reached: Tensor | bool = bool(progress.reached) if single else progress.reached
        count: Tensor | int = int(progress.iterations) if single else progress.iterations
        return Run(state, count, progress.residual, reached, trace, settled)


# --- by an engine --------------------------------------------------------------------------------

LOOKS = 20
"""How often an engine looks at the residual on the device before the host reads what it saw."""


class _Watched(Algorithm[Any, Any]):
    """An algorithm with a look after every few steps: a map on (before, progress)."""

    def __init__(self, watch: Watch, steps: int) -> None:
        self.watch, self.steps_a_look = watch, steps

    def init(self, problem: Any, state: Any) -> Any:
        return (state, self.watch.start(state))

    def step(self, problem: Any, state: Any) -> Any:
        before, progress = state
        after = progress.state
        for _ in range(self.steps_a_look):
            before, after = after, self.watch.algorithm.step(problem, after)
        return (before, self.watch.look(progress, before, after, self.steps_a_look))

    def solution(self, state: Any) -> Any:
        return self.watch.algorithm.solution(state[1].state)


def _run_by(
    engine: Engine, problem: Any, algorithm: Algorithm[Any, Any], state: Any, stop: Stop, batch: int
) -> Run | None:
    """As :func:`run`, by an engine; None where steps have to run as usual."""
    watch = Watch(algorithm, batch, stop, goes_on=True)
    if stop.tol is None:
        pair = looped(engine, problem, algorithm, state, stop.iterations)
        if pair is None:
            return None
        progress = watch.start(state)
        before, state = pair
        progress = watch.look(progress, before, state, stop.iterations)
        return watch.end(progress, before, state)
    every = min(stop.every, stop.iterations)
    now = _Watched(watch, every).init(problem, state)
    looks, rest = divmod(stop.iterations, every)
    for steps, count in ((every, looks), (rest, 1 if rest else 0)):
        watched, done = _Watched(watch, steps), 0
        step = recorded_step(engine, problem, watched, now) if count else None
        if count and step is None:
            return None
        while done < count and step is not None:
            length = min(LOOKS, count - done)
            _, now = loop(engine, step, now, length)
            done += length
            if bool(now[1].reached.all()):
                return watch.end(now[1], now[0], now[1].state)
    return watch.end(now[1], now[0], now[1].state)


def most(iterations: int | Tensor) -> int:
    """How many were run for the element of a batch that took longest."""
    return iterations if isinstance(iterations, int) else int(iterations.amax())


def batch_of(problem: Any, algorithm: Algorithm[Any, Any], state: Any) -> int:
    """How many leading axes are a batch; a problem of your own says so by a method ``batch``."""
    count = getattr(problem, "batch", None)
    return 0 if count is None else count(algorithm.solution(state))
