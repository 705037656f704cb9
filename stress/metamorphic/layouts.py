"""How a tensor lies in memory, and what class it has, does not matter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught, compute, leaves, outputs_of, slopes_of


class Marked(torch.Tensor):
    """A subclass that adds nothing."""


def _strided(t: Tensor) -> Tensor:
    """Every other entry of something twice as large."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.ndim else t.expand(2)[1]


def _transposed(t: Tensor) -> Tensor:
    """Columns first."""
    if t.ndim < 2:
        return _strided(t)
    return t.mT.contiguous().mT


def _offset(t: Tensor) -> Tensor:
    """Not at the beginning of its storage."""
    return torch.cat([t.new_zeros(3), t.reshape(-1)])[3:].reshape(t.shape)


def _negated(t: Tensor) -> Tensor:
    """With torch's negative bit set."""
    return torch.complex(torch.zeros_like(t), -t).conj().imag


def _reversed(t: Tensor) -> Tensor:
    return t.flip(0).flip(0) if t.ndim else t


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else _transposed(t)


def _expanded(t: Tensor) -> Tensor:
    """With an axis of stride 0, where there is one of size one."""
    ones = [i for i, n in enumerate(t.shape) if n == 1]
    return (
        t.select(ones[0], 0).unsqueeze(ones[0]) if ones else t.unsqueeze(0).expand(2, *t.shape)[1]
    )


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": _strided,
    "transposed": _transposed,
    "offset": _offset,
    "negated view": _negated,
    "flipped twice": _reversed,
    "channels last": _channels_last,
    "expanded": _expanded,
    "subclass": lambda t: t.as_subclass(Marked),
    "expression": lambda t: 2 * (t / 2),
    "moved": lambda t: t.to("cpu", copy=True),
    "cast there and back": lambda t: t.to(torch.float64).clone(),
    "unflattened": lambda t: t.reshape(-1).clone().reshape(t.shape),
}


def laid_out(case: Case, judge: Judge) -> None:
    for name, view in VIEWS.items():
        if case.subject.kind == "estimator" and name in ("negated view", "subclass"):
            continue  # they take arrays, and numpy has no such thing
        found = caught(lambda view=view: compute(case.subject, case.inputs, view=view))
        judge.same(case, f"layouts: {name}", found, rounding=case.subject.rounding)


def one_at_a_time(case: Case, judge: Judge) -> None:
    """A gradient in one input does not depend on whether others need one."""
    subject = case.subject
    if not subject.differentiable:
        return
    for name in case.inputs:

        def work(name: str = name) -> Outcome:
            at = {k: v.clone() for k, v in case.inputs.items()}
            at[name].requires_grad_()
            built = subject.build(at)
            for p in subject.parameters(built):
                p.requires_grad_(False)
            values = outputs_of(subject, built, at)
            return Outcome(
                [v.detach() for v in values], slopes_of(subject, values, {name: at[name]})
            )

        judge.same(case, "one at a time", caught(work), rounding=subject.rounding)


def as_parameters(case: Case, judge: Judge) -> None:
    """nn.Parameter instead of a tensor that requires a gradient."""
    subject = case.subject
    if not subject.differentiable:
        return

    def work() -> Outcome:
        at = {k: nn.Parameter(v.clone()) for k, v in case.inputs.items()}
        built = subject.build(at)
        values = outputs_of(subject, built, at)
        slopes = slopes_of(subject, values, dict(at), subject.parameters(built))
        return Outcome([v.detach() for v in values], slopes)

    judge.same(case, "as parameters", caught(work))


def in_single(case: Case, judge: Judge) -> None:
    """float32 gives what float64 gives, rounded, and stays float32."""
    subject = case.subject
    if subject.in_single is None:
        return
    single = {k: v.float() for k, v in case.inputs.items()}
    found = caught(lambda: compute(subject, single))
    rough = "OneStep" in subject.name
    judge.same(
        case, "single precision", found, rounding=subject.in_single, warned_is_fine=True,
        slopes=not rough,
    )  # fmt: skip
    kinds = {v.dtype for v in found.values} | {
        g.dtype for g in found.slopes.values() if g is not None
    }
    if found.fine:
        judge.require(case, "single precision: dtype", kinds <= {torch.float32}, f"dtypes {kinds}")


def leaf_views(case: Case, judge: Judge) -> None:
    """A view of a leaf gives the leaf its gradient."""
    subject = case.subject
    if not subject.differentiable:
        return

    def work() -> Outcome:
        at = leaves(case.inputs)
        big = {k: torch.stack([v.detach(), v.detach()]).requires_grad_() for k, v in at.items()}
        seen = {k: v[1] for k, v in big.items()}
        built = subject.build(seen)
        values = outputs_of(subject, built, seen)
        slopes = slopes_of(subject, values, big, subject.parameters(built))
        mine = {k: None if g is None or k not in big else g[1] for k, g in slopes.items()}
        rest = {k: g for k, g in slopes.items() if k not in big}
        return Outcome([v.detach() for v in values], {**mine, **rest})

    judge.same(case, "leaf views", caught(work), rounding=subject.rounding)


LAWS = (laid_out, one_at_a_time, as_parameters, in_single, leaf_views)
