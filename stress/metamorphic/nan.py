"""NaN in, NaN or an error out: in data, weights, starts and cotangents."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from metamorphic.judge import Judge
from metamorphic.outcome import Case, Outcome, caught, compute, cotangents, outputs_of


def _spoilt(t: Tensor, value: float, index: int) -> Tensor:
    flat = t.detach().clone().reshape(-1)
    flat[index % flat.numel()] = value
    return flat.reshape(t.shape)


def _bad(tensors: list[Tensor | None]) -> bool:
    return any(t is not None and not bool(torch.isfinite(t).all()) for t in tensors)


def in_data(case: Case, judge: Judge) -> None:
    """A NaN in an input that the output depends on shows in the output, or is refused."""
    subject = case.subject
    if not case.expected.fine:
        return
    for name, tensor in case.inputs.items():
        if name in subject.shapes:
            continue
        slope = case.expected.slopes.get(name)
        if subject.differentiable:
            if slope is None or not bool(slope.any()):
                continue  # nothing depends on it
            index = int(slope.abs().argmax())
        else:
            index = case.seed
        spoilt = {**case.inputs, name: _spoilt(tensor, math.nan, index)}
        found = caught(lambda s=spoilt: compute(subject, s))
        if not judge.counted(case, f"nan: in {name}", found):
            continue
        shown = _bad([*found.values, *found.slopes.values()])
        if not shown:
            judge.broken(case, f"nan: in {name}", "nothing of it shows")


def in_cotangents(case: Case, judge: Judge) -> None:
    """Where an output moves an input's gradient, NaN in its cotangent shows in that gradient."""
    subject = case.subject
    if not subject.differentiable or not case.expected.fine:
        return
    values = case.expected.values
    weights = cotangents(values)
    sizes = [v.numel() for v in values]
    which = case.seed % len(values)
    index = case.seed % max(1, sizes[which])
    only = [torch.zeros_like(c) for c in weights]
    only[which].view(-1)[index] = 1.0
    alone = caught(lambda: compute(subject, case.inputs, only))
    if not alone.fine:
        judge.counted(case, "nan: cotangent alone", alone)
        return
    for bad in (math.nan, math.inf):
        spoilt = [c.clone() for c in weights]
        spoilt[which].view(-1)[index] = bad
        found = caught(lambda s=spoilt: compute(subject, case.inputs, s))
        law = f"nan: {bad} as cotangent"
        if not judge.counted(case, law, found):
            continue
        for name, slope in alone.slopes.items():
            moves = slope is not None and float(slope.abs().max()) > 1e-9
            if moves and not _bad([found.slopes.get(name)]):
                judge.broken(case, law, f"the slope in {name} is finite")
                break


def everywhere(case: Case, judge: Judge) -> None:
    """All cotangents NaN: every gradient that is not identically zero holds NaN."""
    subject = case.subject
    if not subject.differentiable or not case.expected.fine:
        return
    spoilt = [torch.full_like(v, math.nan) for v in case.expected.values]
    found = caught(lambda: compute(subject, case.inputs, spoilt))
    if not judge.counted(case, "nan: all cotangents", found):
        return
    for name, slope in case.expected.slopes.items():
        moves = slope is not None and float(slope.abs().max()) > 1e-9
        if moves and not _bad([found.slopes.get(name)]):
            judge.broken(case, "nan: all cotangents", f"the slope in {name} is finite")
            return


def in_start(case: Case, judge: Judge) -> None:
    """A start that holds NaN is refused, or gives NaN."""
    subject = case.subject
    if subject.kind != "solve" or not case.expected.fine:
        return

    def work() -> Outcome:
        setting = subject.build(case.inputs)
        start = torch.full_like(case.expected.values[0], math.nan)
        spoilt = dataclasses.replace(setting, start=start)
        return Outcome([v.detach() for v in outputs_of(subject, spoilt, case.inputs)])

    found = caught(work)
    if judge.counted(case, "nan: in the start", found) and not _bad(list(found.values)):
        judge.broken(case, "nan: in the start", "nothing of it shows")


def half_precision(case: Case, judge: Judge) -> None:
    """float16 and bfloat16 are computed with or refused in words, not stumbled over."""
    subject = case.subject
    if subject.kind not in ("layer", "solve"):
        return
    for dtype in (torch.bfloat16, torch.float16):
        inputs = {k: v.to(dtype) for k, v in case.inputs.items()}
        found = caught(lambda i=inputs: compute(subject, i))
        judge.counted(case, f"half precision: {dtype}", found)


def empty(case: Case, judge: Judge) -> None:
    """A batch without elements gives an empty result, or is refused in words."""
    subject = case.subject
    if not subject.batched:
        return
    nothing: dict[str, Tensor] = {
        k: (v[:0] if subject.has_batch else v.new_zeros((0, *v.shape))) if k in subject.batched
        else v
        for k, v in case.inputs.items()
    }  # fmt: skip

    def work() -> Outcome:
        found = compute(subject, nothing)
        sizes = [v.numel() for v in found.values]
        return Outcome([torch.tensor(sizes)])

    found = caught(work)
    if judge.counted(case, "empty batch", found) and bool(found.values[0].any()):
        judge.broken(case, "empty batch", f"outputs of sizes {found.values[0].tolist()}")


LAWS = (in_data, in_start, in_cotangents, everywhere, half_precision, empty)
