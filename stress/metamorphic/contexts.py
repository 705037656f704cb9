"""The modes of torch around a call: values and gradients stay the same, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from metamorphic.judge import Judge
from metamorphic.outcome import (
    Case,
    Outcome,
    caught,
    compute,
    cotangents,
    leaves,
    loss_of,
    outputs_of,
    slopes_of,
)

Context = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    with torch.device("cpu"):
        yield


def _anomaly() -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.detect_anomaly(check_nan=False)


AROUND: dict[str, Context] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly mode": _anomaly,
    "deterministic": _deterministic,
    "save_on_cpu": save_on_cpu,
    "saved-tensor hooks": lambda: saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
    "default dtype": lambda: _default_dtype(torch.float64),
    "default device": _default_device,
    "enable_grad": torch.enable_grad,
}
"""Contexts in which values and gradients are those of outside."""
# Convolutions of a network run in half precision under autocast, as they should.
NOT_UNDER = {"autocast": ("FineFeatures", "LearnedEdges", "GlobalLayer", "Scale", "ContrastWeights",
                          "SoftmaxLoss", "noise_level", "UniformWeights")}  # fmt: skip


def around(case: Case, judge: Judge) -> None:
    for name, context in AROUND.items():
        if case.subject.name.split(",")[0] in NOT_UNDER.get(name, ()):
            continue
        if name == "autocast" and case.subject.kind not in ("layer", "solve"):
            continue  # a product outside of a solver is the user's to cast

        def work(context: Context = context) -> Outcome:
            with context():
                return compute(case.subject, case.inputs, layer=case.layer)

        judge.same(case, f"contexts: {name}", caught(work))


def forward_inside(case: Case, judge: Judge) -> None:
    """The forward pass alone in a context; the backward pass outside of it."""
    subject = case.subject
    if not subject.differentiable:
        return
    for name in ("deterministic", "save_on_cpu", "default dtype"):

        def work(context: Context = AROUND[name]) -> Outcome:
            at = leaves(case.inputs)
            with context():
                built = case.build(at)
                values = outputs_of(subject, built, at)
            slopes = slopes_of(subject, values, at, subject.parameters(built))
            return Outcome([v.detach() for v in values], slopes)

        judge.same(case, f"contexts: forward in {name}", caught(work))


def without_gradients(case: Case, judge: Judge) -> None:
    """no_grad, inference_mode and inputs that need no gradient: the same values."""
    subject = case.subject

    def plain() -> Outcome:
        return Outcome([v.detach() for v in outputs_of(
            subject, subject.build(case.inputs), case.inputs)])  # fmt: skip

    judge.same(case, "contexts: nothing needs a gradient", caught(plain), slopes=False)
    learns = subject.kind in ("optimiser", "fit")  # which nobody can in inference mode
    modes: dict[str, Any] = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    for name, context in modes.items():
        if learns and name == "inference_mode":
            continue

        def work(context: Any = context) -> Outcome:
            with context():
                at = leaves(case.inputs)
                return Outcome([v.clone() for v in outputs_of(subject, subject.build(at), at)])

        found = caught(work)
        judge.same(case, f"contexts: {name}", found, slopes=False)
    # What was computed inside must not be remembered for a training that follows.
    judge.same(
        case, "contexts: after inference_mode", caught(lambda: compute(subject, case.inputs))
    )


def checkpointed(case: Case, judge: Judge) -> None:
    """torch.utils.checkpoint, both kinds: the forward pass is run again for the backward one."""
    subject = case.subject
    if not subject.differentiable:
        return
    for reentrant in (False, True):

        def work(reentrant: bool = reentrant) -> Outcome:
            at = leaves(case.inputs)
            names = list(at)
            made = subject.build(at)
            parameters = subject.parameters(made)

            def forward(*tensors: torch.Tensor) -> Any:
                again = dict(zip(names, tensors, strict=True))
                built = made if parameters else subject.build(again)
                return tuple(outputs_of(subject, built, again))

            values = list(checkpoint(forward, *at.values(), use_reentrant=reentrant))
            # The older kind allows .backward() only.
            loss_of(values, cotangents(values)).backward()
            slopes = {**{k: v.grad for k, v in at.items()},
                      **{f"parameter {i}": p.grad for i, p in enumerate(parameters)}}  # fmt: skip
            return Outcome([v.detach() for v in values], slopes)

        if any(g is not None for g in case.expected.slopes.values()):
            kind = "reentrant" if reentrant else "non-reentrant"
            judge.same(case, f"checkpointed: {kind}", caught(work))


def made_elsewhere(case: Case, judge: Judge) -> None:
    """A layer made under another default dtype, or in inference mode, works as others do."""
    if case.layer is None or not case.subject.parameters(case.layer):
        return
    subject = case.subject
    for name, context in {
        "default dtype": lambda: _default_dtype(torch.float64), "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
    }.items():  # fmt: skip

        def work(name: str = name, context: Any = context) -> Outcome:
            with context():
                layer = subject.build(case.inputs)
                outputs_of(subject, layer, case.inputs)
            if name == "inference_mode":  # its parameters cannot be trained, its classmates' can
                layer = subject.build(case.inputs)
            layer.load_state_dict(case.layer.state_dict())  # other random numbers, other rounding
            return compute(subject, case.inputs, layer=layer)

        judge.same(case, f"made elsewhere: {name}", caught(work), rounding=subject.rounding)
    # As torch's own layers: parameters of the default dtype, ready for such inputs.
    with _default_dtype(torch.float64):
        kinds = {p.dtype for p in subject.make().parameters()} if subject.make else set()
    judge.require(
        case, "made elsewhere: parameters", kinds <= {torch.float64}, f"parameters of {kinds}"
    )


LAWS = (around, made_elsewhere, forward_inside, without_gradients, checkpointed)
