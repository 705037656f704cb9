"""Copies do what their originals do: pickled, deep-copied, saved and loaded."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught, compute, leaves, outputs_of, slopes_of


def _pickled(obj: Any) -> Any:
    return pickle.loads(pickle.dumps(obj))


def _saved(obj: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deep-copied": copy.deepcopy,
    "copied": copy.copy,
    "pickled": _pickled,
    "saved and loaded": _saved,
}
# A function that a user wrote as a lambda cannot be pickled by anybody.
LAMBDAS = ("smooth", "Smooth")


def copied(case: Case, judge: Judge) -> None:
    """A copy of the object computes the same bits; for layers gradients as well."""
    subject = case.subject
    for name, make in COPIES.items():
        if subject.name.split(",")[0] in LAMBDAS and name in ("pickled", "saved and loaded"):
            continue
        if subject.name == "noise_level":
            continue

        def work(make: Any = make) -> Outcome:
            at = leaves(case.inputs) if subject.differentiable else dict(case.inputs)
            plain = {k: v.detach() for k, v in at.items()}
            built = subject.build(plain)
            outputs_of(subject, built, plain)  # a copy of something used
            again = make(built)
            if not isinstance(again, nn.Module):
                # What it holds was copied along: there is nothing to differentiate in.
                return Outcome([v.detach() for v in outputs_of(subject, again, plain)])
            values = outputs_of(subject, again, at)
            if not subject.differentiable:
                return Outcome([v.detach() for v in values])
            slopes = slopes_of(subject, values, at, list(again.parameters()))
            return Outcome([v.detach() for v in values], slopes)

        judge.same(case, f"copies: {name}", caught(work))


def state_loaded(case: Case, judge: Judge) -> None:
    """A layer of other parameters, after load_state_dict, is the same layer."""
    subject = case.subject
    if not isinstance(subject.build(case.inputs), nn.Module):
        return

    def work() -> Outcome:
        at = leaves(case.inputs)
        layer, other = subject.build(at), subject.build(at)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1.3).add_(0.1)
        outputs_of(subject, layer, at)
        outputs_of(subject, other, at)  # what it remembers of its old parameters is stale now
        other.load_state_dict(_saved(layer.state_dict()))
        values = outputs_of(subject, other, at)
        return Outcome(
            [v.detach() for v in values], slopes_of(subject, values, at, list(other.parameters()))
        )

    if subject.differentiable:
        judge.same(case, "copies: state loaded", caught(work))


def data_swapped(case: Case, judge: Judge) -> None:
    """Parameters exchanged behind autograd's back (.data, as averages of weights do) are used."""
    subject = case.subject
    built = subject.build(case.inputs)
    if not isinstance(built, nn.Module) or not list(built.parameters()):
        return

    def work() -> Outcome:
        at = leaves(case.inputs)
        layer = subject.build(at)
        kept = [p.detach().clone() for p in layer.parameters()]
        for p in layer.parameters():
            p.data.mul_(1.5).add_(0.05)
        outputs_of(subject, layer, at)
        for p, old in zip(layer.parameters(), kept, strict=True):
            p.data.copy_(old)
        values = outputs_of(subject, layer, at)
        return Outcome(
            [v.detach() for v in values], slopes_of(subject, values, at, list(layer.parameters()))
        )

    judge.same(case, "copies: data swapped", caught(work))


def reused(case: Case, judge: Judge) -> None:
    """An object that was used for other data, and whose tensors were then overwritten."""
    subject = case.subject
    if isinstance(subject.build(case.inputs), nn.Module):
        return

    def work() -> Outcome:
        at = {k: v.clone() for k, v in subject.inputs(case.seed + 7).items()}
        built = subject.build(at)
        outputs_of(subject, built, at)
        with torch.no_grad():
            for k, v in case.inputs.items():
                at[k].data.copy_(v)
        fresh = subject.build(at)
        return Outcome([v.detach() for v in outputs_of(subject, fresh, at)])

    judge.same(case, "copies: overwritten data", caught(work), slopes=False)


def fresh_addresses(case: Case, judge: Judge) -> None:
    """Freed memory given to other data: nothing is remembered by address."""
    subject = case.subject
    for turn in range(2):
        other = subject.inputs(case.seed + 31 + turn)
        caught(lambda o=other: compute(subject, o))
        del other
    judge.same(case, "copies: after freed data", caught(lambda: compute(subject, case.inputs)))


LAWS = (copied, state_loaded, data_swapped, reused, fresh_addresses)
