"""torch.func and forward mode: right, or refused in words."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from metamorphic.judge import Judge
from metamorphic.outcome import (
    Case,
    Outcome,
    caught,
    cotangents,
    least_slope,
    leaves,
    outputs_of,
)
from metamorphic.subject import Inputs


def _values(case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    return tuple(outputs_of(case.subject, case.build(inputs), inputs))


def _loss(case: Case, inputs: Inputs) -> Tensor:
    values = _values(case, inputs)
    weights = cotangents(case.expected.values)
    return torch.stack([(c * v).sum() for c, v in zip(weights, values, strict=True)]).sum()


def func_grad(case: Case, judge: Judge) -> None:
    """torch.func.grad in all inputs."""
    if not case.subject.differentiable:
        return

    def work() -> Outcome:
        slopes = torch.func.grad(lambda t: _loss(case, t))(dict(case.inputs))
        return Outcome(case.expected.values, dict(slopes))

    found = caught(work)
    judge.same(case, "func.grad", found, rounding=case.subject.rounding)


def vmapped(case: Case, judge: Judge) -> None:
    """torch.func.vmap over two copies of the inputs, the second a little larger."""
    if not case.subject.differentiable:
        return
    other = {k: v * 1.01 for k, v in case.inputs.items()}
    both = {k: torch.stack([case.inputs[k], other[k]]) for k in other}

    def work() -> Outcome:
        values = torch.func.vmap(lambda t: _values(case, t))(both)
        return Outcome([v[0] for v in values])

    found = caught(work)
    judge.same(case, "vmap", found, slopes=False, rounding=case.subject.rounding)


def jvps(case: Case, judge: Judge) -> None:
    """⟨c, J t⟩ = ⟨Jᵀc, t⟩ for torch.func.jvp and for duals of forward mode."""
    subject = case.subject
    if not subject.differentiable or not subject.tangents or not case.expected.fine:
        return
    tangents = {k: torch.sin(1.0 + torch.arange(v.numel(), dtype=v.dtype)).reshape(v.shape)
                for k, v in case.inputs.items()}  # fmt: skip
    known = {k: g for k, g in case.expected.slopes.items() if k in tangents and g is not None}
    right = sum((g * tangents[k]).sum() for k, g in known.items()) if known else torch.zeros(())
    size = sum((g * tangents[k]).abs().sum() for k, g in known.items()) if known else torch.ones(())
    # Beside something that no cancellation makes zero, so that differences have a measure.
    truth = Outcome([torch.as_tensor(right) + 2 * size], warned=case.expected.warned)

    def by_func() -> Outcome:
        _, moved = torch.func.jvp(lambda t: _loss(case, t), (dict(case.inputs),), (tangents,))
        return Outcome([moved.detach() + 2 * size])

    def by_duals() -> Outcome:
        with forward_ad.dual_level():
            duals = {k: forward_ad.make_dual(v, tangents[k]) for k, v in case.inputs.items()}
            moved = forward_ad.unpack_dual(_loss(case, duals)).tangent
        found = torch.zeros(()) if moved is None else moved.detach()
        return Outcome([found + 2 * size])

    for name, work in {"func.jvp": by_func, "forward mode": by_duals}.items():
        judge.same(
            case, name, caught(work), truth, rounding=10 * subject.rounding, warned_is_fine=True,
            least=least_slope(case.expected),
        )  # fmt: skip


def jacobian_rows(case: Case, judge: Judge) -> None:
    """The row of one output, by a cotangent that is one there and zero elsewhere, adds up."""
    subject = case.subject
    if not subject.differentiable or not case.expected.fine:
        return

    def work() -> Outcome:
        at = leaves(case.inputs)
        values = _values(case, at)
        weights = cotangents(values)
        total: dict[str, Tensor] = {}
        for v, c in zip(values, weights, strict=True):
            if not v.requires_grad:
                continue
            halves = torch.arange(v.numel()).reshape(v.shape) % 2
            for part in (0, 1):
                slopes = torch.autograd.grad(
                    v, list(at.values()), c * (halves == part), retain_graph=True,
                    allow_unused=True,
                )  # fmt: skip
                for k, g in zip(at, slopes, strict=True):
                    if g is not None:
                        total[k] = total[k] + g if k in total else g
        return Outcome([v.detach() for v in values], {k: total.get(k) for k in at})

    judge.same(case, "jacobian rows", caught(work), rounding=10 * subject.rounding,
               warned_is_fine=True)  # fmt: skip


LAWS = (func_grad, vmapped, jvps, jacobian_rows)
