"""Reverse-mode differentiation of the iteration itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpointed

from legato._support import tree
from legato.algorithms import Algorithm
from legato.errors import InputError
from legato.gradients.base import Backward, GradientStrategy
from legato.running import Run, Stop, Trace, run


@dataclass(frozen=True)
class Unroll(GradientStrategy):
    r"""Back-propagation through the iterations: exact for any number of them.

    .. math:: w \mathrel{+}= A_θ(x^n)^⊤ z, \quad z ← A_x(x^n)^⊤ z, \quad n = N, …, 0

    ``last=K`` keeps the last K iterations only. ``tol`` ends the sweep by itself once the cotangent
    has shrunk below ``tol`` of its first size, and ``solution.backward.iterations`` says after how
    many back-iterations. ``checkpoint`` trades time for memory: "sqrt" or an interval.
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
        if isinstance(interval, str) and interval != "sqrt":
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
        """Iterations from one checkpoint to the next; None without checkpoints."""
        if isinstance(self.checkpoint, str):
            return math.ceil(math.sqrt(iterations))
        return self.checkpoint

    def differentiate(
        self,
        problem: Any,
        algorithm: Algorithm,
        state: Any,
        stop: Stop,
        trace: Trace | None,
        report: Backward,
    ) -> Run:
        plain = self.last is None and self.checkpoint is None and self.tol is None
        if plain or not torch.is_grad_enabled():
            return run(problem, algorithm, state, stop, trace=trace)
        start, attached, done = self._run_detached(problem, algorithm, state, stop, trace)
        if self.checkpoint is not None:
            before, final = self._checkpointed(problem, algorithm, start, attached)
        else:
            watch = None if self.tol is None else _Watch(self.tol, attached, report)
            before, final = _attach(problem, algorithm, start, attached, watch)
        if done is None:
            return Run(final, stop.iterations, algorithm.residual(before, final), None, None)
        done.state = final
        return done

    def _run_detached(
        self, problem: Any, algorithm: Algorithm, state: Any, stop: Stop, trace: Trace | None
    ) -> tuple[Any, int, Run | None]:
        """Where the attached iterations start, how many they are, and the run if one was needed."""
        if stop.tol is None and trace is None:
            attached = self.attached(stop.iterations)
            skipped = stop.iterations - attached
            if skipped == 0:
                return state, attached, None
            with torch.no_grad():
                start = tree.detach(state)
                for _ in range(skipped):
                    start = algorithm.step(problem, start)
            return start, attached, None
        # The number of iterations is known only afterwards: run once detached, then attach.
        with torch.no_grad():
            keep = None if self.last is None else self.last
            done = run(problem, algorithm, tree.detach(state), stop, trace=trace, keep=keep)
        if self.last is None or done.window is None or done.iterations <= self.last:
            return state, done.iterations, done
        return done.window[0], self.last, done

    def _checkpointed(
        self, problem: Any, algorithm: Algorithm, state: Any, iterations: int
    ) -> tuple[Any, Any]:
        interval = self.interval(iterations)
        assert interval is not None

        def segment(length: int, start: Any) -> Any:
            previous = start
            for _ in range(length):
                previous, start = start, algorithm.step(problem, start)
            return tree.detach(previous), start

        before, done = state, 0
        while done < iterations:
            length = min(interval, iterations - done)
            before, state = checkpointed(
                segment, length, state, use_reentrant=False, preserve_rng_state=False
            )
            done += length
        return before, state


def _attach(
    problem: Any, algorithm: Algorithm, state: Any, iterations: int, watch: _Watch | None
) -> tuple[Any, Any]:
    before = state
    for _ in range(iterations):
        before, state = state, algorithm.step(problem, state)
        if watch is not None:
            state = watch(state)
    return before, state


class _Watch:
    """Sees the cotangent arrive at each iteration and ends the sweep once it is negligible."""

    def __init__(self, tol: float, iterations: int, report: Backward) -> None:
        self.tol = tol
        self.report = report
        self.iterations = iterations
        self.first: float | None = None
        self.seen = 0

    def __call__(self, state: Any) -> Any:
        leaves = tree.leaves(state)
        live = [i for i, t in enumerate(leaves) if t.requires_grad]
        if not live:
            return state
        tensors = [leaves[i] for i in live]
        passed = _Observe.apply(self.observe, *tensors)  # type: ignore[no-untyped-call]
        for i, tensor in zip(live, passed, strict=True):
            leaves[i] = tensor
        return tree.rebuild(state, leaves)

    def observe(self, grads: tuple[Tensor | None, ...]) -> bool:
        """Whether the sweep goes on below this iteration."""
        known = [g for g in grads if g is not None]
        if not known:
            return False
        # In double precision: squares of a small loss's cotangents are zero in float32.
        parts = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in known]
        size = float(torch.linalg.vector_norm(torch.stack(parts)))
        if self.first is None:
            self.first, self.seen = size, 0
        goes_on = size > self.tol * self.first
        if goes_on:
            self.seen += 1
        self.report.iterations = self.seen
        self.report.residual = size / self.first if self.first > 0 else 0.0
        self.report.converged = not goes_on or self.seen == self.iterations
        return goes_on


class _Observe(torch.autograd.Function):
    """The identity; its backward may end the sweep by returning no gradient at all."""

    @staticmethod
    def forward(
        ctx: Any, observe: Callable[[tuple[Tensor | None, ...]], bool], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.observe = observe
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if not ctx.observe(grads):
            return (None,) * (len(grads) + 1)
        return (None, *grads)
