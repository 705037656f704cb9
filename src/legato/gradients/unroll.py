"""Reverse-mode differentiation of the iteration itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpointed
from torch.utils.checkpoint import set_checkpoint_early_stop

from legato._support import tree
from legato._support.checks import (
    inside_functional_transform,
    inside_reverse_transform,
    is_concrete,
    wide_norm,
)
from legato.algorithms import Algorithm
from legato.errors import InputError
from legato.gradients.base import (
    Backward,
    GradientStrategy,
    Task,
    changed_since,
    inside_transforms,
)
from legato.gradients.sides import warn_if_sides_change
from legato.gradients.swept import swept
from legato.gradients.warm import warn_if_too_few
from legato.running import Run, batch_of, most, resized


@dataclass(frozen=True)
class Unroll(GradientStrategy):
    r"""Back-propagation through the iterations: exact for any number of them.

    .. math:: w \mathrel{+}= A_θ(x^n)^⊤ z, \quad z ← A_x(x^n)^⊤ z, \quad n = N, …, 0

    ``last=K`` keeps the last K iterations only. ``tol`` ends the sweep by itself once the cotangent
    of every batch element has shrunk below ``tol`` of its first size, and
    ``solution.backward.iterations`` says after how many back-iterations. ``checkpoint`` trades time
    for memory: "sqrt" or an interval.
    Reference: Algorithms 1–3 of Ochs et al. (2016), with errata 1–4.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Unroll(checkpoint="sqrt"))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3)
    tensor(-3.0410)
    """

    last: int | None = None
    checkpoint: str | int | None = None
    tol: float | None = None

    def __post_init__(self) -> None:
        if self.last is not None and (isinstance(self.last, bool) or self.last < 1):
            raise InputError(f"Unroll: last must be a positive integer, not {self.last!r}.")
        interval = self.checkpoint
        wrong = interval != "sqrt" if isinstance(interval, str) else isinstance(interval, bool)
        if wrong:
            raise InputError(f'Unroll: checkpoint is "sqrt" or an interval, not {interval!r}.')
        if isinstance(interval, int) and interval < 1:
            raise InputError(f"Unroll: the checkpoint interval must be positive, not {interval}.")
        if self.tol is not None and not 0 < self.tol < 1:
            raise InputError(f"Unroll: tol must lie in (0, 1), not {self.tol!r}.")
        if self.tol is not None and self.checkpoint is not None:
            raise InputError("Unroll: tol and checkpoint cannot be combined.")

    def attached(self, iterations: int) -> int:
        """How many of the iterations, the last ones, are differentiated."""
        return iterations if self.last is None else min(self.last, iterations)

    def interval(self, iterations: int) -> int | None:
        """Iterations between two checkpoints: as given, or ⌈√iterations⌉; None without them."""
        if isinstance(self.checkpoint, str):
            return math.ceil(math.sqrt(iterations))
        return self.checkpoint

    def differentiate(self, task: Task) -> Run:
        task = task.steadied()
        plain = self.last is None and self.checkpoint is None and self.tol is None
        by_engine = task.engine is not None and task.trace is None
        if not torch.is_grad_enabled() or (plain and not by_engine):
            done = task.run()
            warn_if_too_few(task, done)
            warn_if_sides_change(task, done)
            return done
        by_hooks = self.checkpoint is not None or self.tol is not None
        if by_hooks and inside_functional_transform():
            if inside_reverse_transform():
                how = "checkpoint" if self.tol is None else "tol"
                raise inside_transforms(f"Unroll({how}=…) acts on the backward pass of autograd")
            return Unroll(self.last).differentiate(task)  # vmap and jvp have none
        return self._attached(task)

    def _attached(self, task: Task) -> Run:
        start, attached, done = self._run_detached(task)
        if isinstance(attached, Tensor):
            task, start, attached = _counted(task, start, attached)
        if self.checkpoint is not None:
            before, final = self._checkpointed(task, start, attached)
        else:
            batch = batch_of(task.problem, task.algorithm, start)
            watch = None if self.tol is None else _Watch(self.tol, attached, task.report, batch)
            pair = swept(task, start, attached) if watch is None else None
            before, final = pair or _attach(task, start, attached, watch)
        if isinstance(task.algorithm, Counted):
            task, before, final = task.algorithm.taken_off(task, before, final)
        if done is None:
            batch = batch_of(task.problem, task.algorithm, final)
            largest = task.algorithm.size(task.state, batch)
            residual = task.algorithm.residual(before, final, batch, largest)
            done = Run(final, task.stop.iterations, residual, None, None)
            return resized(task.problem, task.algorithm, done, batch)
        done.state = final
        if self.last is None or self.last >= most(done.iterations):
            warn_if_too_few(task, done)
        warn_if_sides_change(task, done)
        return done

    def _run_detached(self, task: Task) -> tuple[Any, int | Tensor, Run | None]:
        """Where the attached iterations start, how many they are, and the run if one was needed.

        Elements of a batch that stopped after different numbers have their own.
        """
        stop, detached = task.stop, task.detached()
        if stop.tol is None and task.trace is None:
            given = self.attached(stop.iterations)
            if given == stop.iterations:
                return task.state, given, None
            skipped = replace(detached, stop=replace(stop, iterations=stop.iterations - given))
            with torch.no_grad():
                start = skipped.run().state
            return _cut(task, start, detached.state), given, None
        # The number of iterations is known only afterwards: run once detached, then attach.
        with torch.no_grad():
            done = detached.run()
            count = _common(done.iterations)
            if self.last is None or (isinstance(count, int) and count <= self.last):
                return task.state, count, done
            # Once more, to where the last iterations of each element begin.
            start = _advanced(detached, count - self.last)
        attached = self.last if isinstance(count, int) else count.clamp(max=self.last)
        return _cut(task, start, detached.state), attached, done

    def _checkpointed(self, task: Task, state: Any, iterations: int) -> tuple[Any, Any]:
        interval = self.interval(iterations)
        assert interval is not None

        before, done = state, 0
        while done < iterations:
            length = min(interval, iterations - done)
            segment = _Segment(task.problem, task.algorithm, length)
            # To its very end, where it is compared with what it led to the first time.
            with set_checkpoint_early_stop(False):
                before, state = checkpointed(segment, state, use_reentrant=False)
            done += length
        return before, state


class _Segment:
    """Some iterations, which must lead where they led before when they are computed again."""

    def __init__(self, problem: Any, algorithm: Algorithm[Any, Any], length: int) -> None:
        self.problem, self.algorithm, self.length = problem, algorithm, length
        self.end: Any = None

    def __call__(self, state: Any) -> tuple[Any, Any]:
        previous = state
        for _ in range(self.length):
            previous, state = state, self.algorithm.step(self.problem, state)
        if is_concrete():
            self._require_same_end(tree.detach(state))
        return tree.detach(previous), state

    @torch.no_grad()
    def _require_same_end(self, end: Any) -> None:
        if self.end is None:
            self.end = end  # which the next segment starts from: no further memory
            return
        both = zip(tree.leaves(end), tree.leaves(self.end), strict=True)
        pairs = [(a, b) for a, b in both if a.is_floating_point() or a.is_complex()]
        off, size = tree.norm(tuple(a - b for a, b in pairs)), tree.norm(tuple(b for _, b in pairs))
        if bool(off > math.sqrt(torch.finfo(off.dtype).eps) * size):
            raise changed_since(
                f"{self.length} iterations, computed again from a checkpoint, end "
                f"{float(off):.2g} away from where they did in the solve"
            )


def _cut(task: Task, start: Any, detached: Any) -> Any:
    """``start``, of which the iterates alone are cut off from θ.

    Steps that depend on a learned ``balance`` lie in the state: what skipped iterations passed on
    untouched is as it was given. What else the state keeps of the problem is computed anew.
    """
    now, then, given = (tree.leaves(t) for t in (start, detached, task.state))
    kept = start
    if len(now) == len(then):  # iterations may add to a state, such as a factor
        triples = zip(now, then, given, strict=True)
        kept = tree.rebuild(start, [own if n is t else n for n, t, own in triples])
    return task.algorithm.recomputed(task.problem, kept)


def _attach(task: Task, state: Any, iterations: int, watch: _Watch | None) -> tuple[Any, Any]:
    before = state
    for number in range(1, iterations + 1):
        before, state = state, task.algorithm.step(task.problem, state)
        if watch is not None:
            state = watch(state, number)
    return before, state


# --- elements that stop by themselves -------------------------------------------------------------


class Counted(Algorithm[Any, Any]):
    """An algorithm that makes ``limit`` steps with each element of a batch, and then none."""

    def __init__(self, algorithm: Algorithm[Any, Any], limit: Tensor) -> None:
        self.algorithm, self.limit = algorithm, limit

    def init(self, problem: Any, state: Any) -> Any:
        return (state, torch.zeros_like(self.limit))

    def step(self, problem: Any, state: Any) -> Any:
        inner, number = state
        moves = number < self.limit
        batch = self.limit.ndim

        def chosen(old: Tensor, new: Tensor) -> Tensor:
            if old is new or new.shape[:batch] != moves.shape:
                return new
            return torch.where(moves.reshape(moves.shape + (1,) * (new.ndim - batch)), new, old)

        after = self.algorithm.step(problem, inner)
        return (tree.tree_map(chosen, inner, after), number + 1)

    def solution(self, state: Any) -> Any:
        return self.algorithm.solution(state[0])

    def taken_off(self, task: Task, before: Any, after: Any) -> tuple[Task, Any, Any]:
        return replace(task, algorithm=self.algorithm), before[0], after[0]


def _common(iterations: int | Tensor) -> int | Tensor:
    """One number, where all elements of a batch have the same."""
    if isinstance(iterations, int):
        return iterations
    least, most = int(iterations.amin()), int(iterations.amax())
    return most if least == most else iterations


def _counted(task: Task, start: Any, limit: Tensor) -> tuple[Task, Any, int]:
    """The task with a number of iterations for each element, and how many that makes in all."""
    algorithm = Counted(task.algorithm, limit)
    return (
        replace(task, algorithm=algorithm),
        algorithm.init(task.problem, start),
        int(limit.amax()),
    )


def _advanced(task: Task, count: int | Tensor) -> Any:
    """The state after ``count`` iterations, for each element of a batch if it is a tensor."""
    state: Any = task.state
    if isinstance(count, Tensor):
        task, state, count = _counted(task, state, count.clamp(min=0))
    stop = replace(task.stop, iterations=count, tol=None)
    done = replace(task, state=state, stop=stop, trace=None).run().state
    return done[0] if isinstance(task.algorithm, Counted) else done


class _Watch:
    """Sees the cotangent arrive at each iteration and ends the sweep once it is negligible."""

    def __init__(self, tol: float, iterations: int, report: Backward, batch: int) -> None:
        self.tol = tol
        self.report = report
        self.iterations = iterations
        self.batch = batch
        self.first: Tensor | None = None

    def __call__(self, state: Any, number: int) -> Any:
        """``state`` of this iteration, its cotangent observed."""
        leaves = tree.leaves(state)
        live = [i for i, t in enumerate(leaves) if t.requires_grad]
        if not live:
            return state
        passed = _Observe.apply(self.goes_on, number, *(leaves[i] for i in live))  # type: ignore[no-untyped-call]
        for i, tensor in zip(live, passed, strict=True):
            leaves[i] = tensor
        return tree.rebuild(state, leaves)

    def goes_on(self, number: int, grads: list[Tensor]) -> bool:
        """Whether the sweep goes on below this iteration."""
        size = self._sizes(grads)
        # Every backward pass through this graph enters by the last iteration and is measured by
        # what it brings there; that iteration is always swept, so that even 0 becomes a gradient.
        if number == self.iterations or self.first is None:
            self.first = size
        left = float(torch.where(size == 0, size, size / self.first).amax())
        ended = number < self.iterations and left <= self.tol
        self.report.iterations = self.iterations - number + (not ended)
        self.report.residual = left
        self.report.converged = ended or number == 1
        return not ended

    def _sizes(self, grads: list[Tensor]) -> Tensor:
        """The norm of the cotangent, for each element of a batch; what has no such axes is no
        iterate.

        In double precision: squares of a small loss's cotangents are zero in float32.
        """
        whole = [g for g in grads if g.ndim > self.batch]
        if len({g.shape[: self.batch] for g in whole}) != 1:
            parts = [wide_norm(g) for g in grads]
        else:
            parts = [wide_norm(g.flatten(self.batch), (-1,)) for g in whole]
        return torch.linalg.vector_norm(torch.stack(parts), dim=0)


class _Observe(torch.autograd.Function):
    """The identity; its backward may end the sweep by returning no gradient at all."""

    @staticmethod
    def forward(
        ctx: Any, goes_on: Callable[[int, list[Tensor]], bool], number: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.goes_on = goes_on
        ctx.number = number
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        known = [g for g in grads if g is not None]
        if not known or not ctx.goes_on(ctx.number, known):
            return (None,) * (len(grads) + 2)
        return (None, None, *grads)
