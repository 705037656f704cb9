"""torch.compile with the backends that need no compiler: the same values, or a refusal."""

from __future__ import annotations

import torch
from torch import Tensor

from metamorphic.judge import Judge
from metamorphic.outcome import (
    Case,
    Outcome,
    caught,
    leaves,
    outputs_of,
    slopes_of,
)


def _compiler_refuses(error: Exception) -> bool:
    """Whether torch's compiler gives up, which it says at the call: no result, and no wrong one."""
    ours = isinstance(error, torch._dynamo.exc.TorchDynamoException)
    return ours or "aot_autograd does not currently support" in str(error)


def compiled(case: Case, judge: Judge, backend: str) -> None:
    subject = case.subject
    names = list(case.inputs)

    def work() -> Outcome:
        torch._dynamo.reset()
        at = leaves(case.inputs) if subject.differentiable else dict(case.inputs)
        made = subject.build(at)
        parameters = subject.parameters(made)

        def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
            again = dict(zip(names, tensors, strict=True))
            built = made if parameters else subject.build(again)
            return tuple(outputs_of(subject, built, again))

        fast = torch.compile(forward, backend=backend, dynamic=False)
        fast(*at.values())
        values = list(fast(*at.values()))
        if not subject.differentiable:
            return Outcome([v.detach() for v in values])
        return Outcome([v.detach() for v in values], slopes_of(subject, values, at, parameters))

    judge.same(
        case, f"compiled: {backend}", caught(work, _compiler_refuses), rounding=subject.rounding
    )
    torch._dynamo.reset()
