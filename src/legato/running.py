"""Running an algorithm: stopping rules, traces, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support.checks import is_concrete
from legato._support.tree import detach, rebuilt, tree_map
from legato.algorithms import Algorithm
from legato.algorithms.base import norm_of
from legato.engine import Engine
from legato.engine.switch import loop, looped, recorded_step
from legato.errors import InputError


@dataclass(frozen=True)
class Stop:
    """Stop after ``iterations``, or earlier once every residual is at most ``tol``.

    The residual is ‖xⁿ⁺¹ − xⁿ‖ / max_k ‖xᵏ‖ over primal and dual variables together, one for each
    element of a batch. Reading it makes a GPU wait: ``every`` says how often; without ``tol`` it is
    never read in the loop. The maximum is over the norms seen: the first, the last and those read.
    In a curved geometry, points go on that drift by a share of their present size. What is far
    smaller than earlier iterates, or than its dual, is known to the tolerance of these.
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
    done = _loop(problem, algorithm, state, stop, batch, trace, engine)
    if not algorithm.coordinates(done.state) or not is_concrete():
        return done
    if stop.tol is None:
        return resized(problem, algorithm, done, batch)
    largest = algorithm.size(detach(state), batch)
    far = torch.as_tensor(done.converged) & (
        _drift(problem, algorithm, done, batch, largest) > stop.tol
    )
    if not bool(far.any()):
        return done
    arrived, left = torch.as_tensor(done.converged), stop.iterations - most(done.iterations)
    while left > 0 and bool(far.any()):  # as many again, unless they rest by their present size
        again = replace(stop, iterations=min(left, most(done.iterations)))
        size = algorithm.size(detach(done.state), batch)
        more = _loop(problem, algorithm, done.state, again, batch, trace, engine, held=~far)
        left -= most(more.iterations)
        residual = more.residual * size / torch.maximum(size, largest)
        residual = torch.where(far, torch.minimum(residual, done.residual), done.residual)
        done = replace(more, iterations=done.iterations + more.iterations, residual=residual)
        drift = _drift(problem, algorithm, done, batch, largest)
        far = far & ~torch.as_tensor(more.converged) & (drift > stop.tol)
    arrived = arrived & ~far
    return replace(done, converged=arrived if arrived.ndim else bool(arrived))


def _loop(
    problem: Any, algorithm: Algorithm[Any, Any], state: Any, stop: Stop, batch: int,
    trace: Trace | None, engine: Engine | None, held: Tensor | None = None,
) -> Run:  # fmt: skip
    """Iterations until ``stop``, but not of elements that are ``held``."""
    if engine is not None and trace is None and not torch.is_grad_enabled():
        done = _run_by(engine, problem, algorithm, state, stop, batch, held)
        if done is not None:
            return done
    watch = Watch(algorithm, batch, stop, goes_on=batch > 0 and algorithm.moves_apart(problem))
    progress = watch.start(state, held)
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


@torch.no_grad()
def _drift(
    problem: Any, algorithm: Algorithm[Any, Any], done: Run, batch: int, largest: Tensor
) -> Tensor:
    """By which share of their present size points go on moving in one step, where it adds up.

    Near a boundary they shrink by so little from one step to the next, like 1/k, that many small
    changes lead far; steps to and fro, whose means stand still, do not. 0 where as many steps again
    change little, and where points have vanished.
    """
    state, means = detach(done.state), []
    size = algorithm.size(state, batch)
    for _ in range(2):
        total = None
        for _ in range(_AHEAD):
            state = algorithm.step(problem, state)
            points = algorithm.points(state)
            total = points if total is None else tree_map(torch.add, total, points)
        means.append(total)
    moved = norm_of(tree_map(torch.sub, *means), batch) / _AHEAD**2
    share = moved / torch.where(size > 0, size, 1.0)
    gone = size <= torch.finfo(size.dtype).eps * largest
    return torch.where((done.iterations * share > _AS_MANY_AGAIN) & ~gone, share, 0.0)


def resized(problem: Any, algorithm: Algorithm[Any, Any], done: Run, batch: int) -> Run:
    """A run without tolerance whose small residual means that its points stand still."""
    if not algorithm.coordinates(done.state) or not is_concrete():
        return done
    drift = _drift(problem, algorithm, done, batch, algorithm.size(done.state, batch))
    return replace(done, residual=torch.maximum(done.residual, drift))


MOVES = 0.01
"""The share of its present size by which what has come to its solution does not move any more."""
RETURNS = 1e-3
"""The same where entries grow: what shrinks steadily may have 0 as its solution."""
_AS_MANY_AGAIN = 3e-3
"""The share of its size by which as many steps again may move what has come to its solution."""
_AHEAD = 8
"""Steps of which a mean is taken, to read from two of them whether points drift."""


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

    def start(self, state: Any, held: Tensor | None = None) -> Progress:
        largest = self.algorithm.size(state, self.batch)
        count = torch.zeros_like(largest, dtype=torch.int64)
        reached = count > 0 if held is None else held
        return Progress(state, largest, torch.full_like(largest, torch.inf), reached, count)

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

    def __init__(self, watch: Watch, steps: int, held: Tensor | None = None) -> None:
        self.watch, self.steps_a_look, self.held = watch, steps, held

    def init(self, problem: Any, state: Any) -> Any:
        return (state, self.watch.start(state, self.held))

    def step(self, problem: Any, state: Any) -> Any:
        before, progress = state
        after = progress.state
        for _ in range(self.steps_a_look):
            before, after = after, self.watch.algorithm.step(problem, after)
        return (before, self.watch.look(progress, before, after, self.steps_a_look))

    def solution(self, state: Any) -> Any:
        return self.watch.algorithm.solution(state[1].state)


def _run_by(
    engine: Engine, problem: Any, algorithm: Algorithm[Any, Any], state: Any, stop: Stop,
    batch: int, held: Tensor | None,
) -> Run | None:  # fmt: skip
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
    now = _Watched(watch, every, held).init(problem, state)
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
