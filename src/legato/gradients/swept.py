"""Back-propagation through the iterations of an engine: one node of the graph for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.precision import full_precision
from legato.engine.stepping import Stepping
from legato.engine.switch import loop, recorded_step, sweep
from legato.errors import GradientError
from legato.gradients.base import Task, changed_since


def swept(task: Task, start: Any, iterations: int) -> tuple[Any, Any] | None:
    """The last two states, the last one attached; None where the steps have to run as usual."""
    step = recorded_step(task.engine, task.problem, task.algorithm, start, differentiate=True)
    if step is None or task.engine is None:
        return None
    if step.program.adjoint is None:  # nothing to differentiate
        return loop(task.engine, step, start, iterations)
    leaves = tree.leaves(start)
    sweeping = _Sweeping(task.engine, step, leaves, iterations)
    attached = [t for t, a in zip(leaves, step.attached, strict=True) if a]
    final = _Swept.apply(sweeping, *attached, *step.learned)  # type: ignore[no-untyped-call]
    return tree.rebuild(start, sweeping.before), tree.rebuild(start, final)


class _Sweeping:
    """What the two passes share besides the tensors that autograd sees."""

    def __init__(
        self, engine: Any, step: Stepping, leaves: Sequence[Tensor], iterations: int
    ) -> None:
        self.engine, self.step, self.iterations = engine, step, iterations
        self.leaves = [t.detach() for t in leaves]
        self.before: list[Tensor] = []
        self.tape: Any = None
        self.versions: list[int] = []

    def versions_now(self) -> list[int]:
        """Data changed in place since the solve would be differentiated where nobody was."""
        tensors = (*self.leaves, *self.step.outside)
        return [0 if t.is_inference() else t._version for t in tensors]

    def forward(self) -> tuple[Tensor, ...]:
        before, after, self.tape = sweep(self.engine, self.step, self.leaves, self.iterations)
        # As tensors of their own: an entry may be one of the results, which lead back here.
        self.before, self.versions = [t.detach() for t in before], self.versions_now()
        return tuple(after)


class _Swept(torch.autograd.Function):
    """The last state; its backward runs the adjoint of all iterations."""

    @staticmethod
    def forward(ctx: Any, sweeping: _Sweeping, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.sweeping = sweeping
        after = sweeping.forward()
        # A tensor that stands in two places of the state is two results.
        seen: set[int] = set()
        results = []
        for t in after:
            results.append(t.clone() if id(t) in seen else t)
            seen.add(id(t))
        idle = [t for t, a in zip(results, sweeping.step.attached, strict=True) if not a]
        ctx.mark_non_differentiable(*idle)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise GradientError(
                "Second derivatives (create_graph=True) go through the iterations step by step "
                "only. Use engine=Eager() for this solve."
            )
        sweeping: _Sweeping = ctx.sweeping
        if sweeping.versions_now() != sweeping.versions:
            raise changed_since("A tensor of the problem or of its start is not what it was")
        attached = sweeping.step.attached
        cotangents = [g for g, a in zip(grads, attached, strict=True) if a]
        learned = sweeping.step.learned
        zeros = [torch.zeros_like(t) for t in learned]
        with full_precision(), torch.no_grad():
            results = sweeping.tape.reverse(*cotangents, *zeros)
        first = len(cotangents)
        found = [g.to(t.device) for g, t in zip(results[first:], learned, strict=True)]
        return (None, *results[:first], *found)
