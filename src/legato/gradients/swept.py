"""Back-propagation through the iterations of an engine: one node of the graph for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.precision import full_precision
from legato.engine.expecting import Call
from legato.engine.stepping import Stepping
from legato.engine.switch import loop, recorded_run, sweep
from legato.errors import GradientError
from legato.gradients.base import Task, changed_since


def swept(task: Task, start: Any, iterations: int) -> tuple[Any, Any] | None:
    """The last two states, the last one attached; None where the steps have to run as usual."""
    engine = task.engine
    if engine is None:
        return None
    leaves = [t.detach() for t in tree.leaves(start)]
    call = Call(task.problem, task.algorithm, start, differentiate=True)

    def run(step: Stepping) -> Any:
        if step.program.adjoint is None:  # nothing to differentiate
            return loop(engine, step, start, iterations)
        return sweep(engine, step, leaves, iterations)

    ran = recorded_run(engine, call, iterations, run)
    if ran is None:
        return None
    step, result = ran
    if step.program.adjoint is None:
        before, after = result
        return before, after
    sweeping = _Sweeping(step, leaves, *result)
    attached = [t for t, a in zip(tree.leaves(start), step.attached, strict=True) if a]
    final = _Swept.apply(sweeping, *attached, *step.learned)  # type: ignore[no-untyped-call]
    return tree.rebuild(start, sweeping.before), tree.rebuild(start, final)


class _Sweeping:
    """What the two passes share besides the tensors that autograd sees."""

    def __init__(
        self, step: Stepping, leaves: Sequence[Tensor], before: Sequence[Tensor],
        after: Sequence[Tensor], tape: Any,
    ) -> None:  # fmt: skip
        self.step, self.leaves, self.tape = step, leaves, tape
        self.after: Sequence[Tensor] = after
        # As tensors of their own: an entry may be one of the results, which lead back here.
        self.before = [t.detach() for t in before]
        self.versions = self.versions_now()

    def versions_now(self) -> list[int]:
        """Data changed in place since the solve would be differentiated where nobody was."""
        tensors = (*self.leaves, *self.step.outside)
        return [0 if t.is_inference() else t._version for t in tensors]

    def taken(self) -> Sequence[Tensor]:
        """The last state, which leads back here once autograd has it."""
        after, self.after = self.after, ()
        return after


class _Swept(torch.autograd.Function):
    """The last state; its backward runs the adjoint of all iterations."""

    @staticmethod
    def forward(ctx: Any, sweeping: _Sweeping, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.sweeping = sweeping
        after = sweeping.taken()
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
