"""The law of NaN and infinity: what is not a number may not come out as one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.elements import Elements, NoElements
from legato.testing.layer.points import generator, is_symmetric, shown, size_of
from legato.testing.layer.subject import Subject, apart, filled, flat, split
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong


def nonfinite_law(subject: Subject, elements: Elements | NoElements) -> Verdict:
    """NaN in an entry that matters: NaN in its element of the output, or an error."""
    law, tried, spread, doubt = "NaN and infinity", 0, False, ""
    outputs, leaves = subject.graph(subject.values)
    drawn = torch.randn(
        sum(o.numel() for o in outputs), generator=generator(subject.seed + 71), dtype=torch.float64
    ).to(outputs[0].device)
    gradients = filled(subject.gradients(subject.values, drawn), leaves)
    for i, gradient in zip(subject.moving, gradients, strict=True):
        if not bool((gradient != 0).any()):
            continue
        flat_gradient = torch.nan_to_num(gradient).abs().reshape(-1)
        index = tuple(int(k) for k in torch.unravel_index(flat_gradient.argmax(), gradient.shape))
        tried += 1
        for bad in (math.nan, math.inf, -math.inf):
            values = list(subject.values)
            values[i] = values[i].clone()
            values[i][index] = bad
            if is_symmetric(subject.values[i]):  # of which a layer may read one triangle only
                values[i][(*index[:-2], index[-1], index[-2])] = bad
            try:
                found = subject.outputs(values)
            except Exception:  # refused, as it may be
                continue
            where = (
                f"{bad} in {subject.names[i]} at {shown(index)}"
                if index
                else f"{bad} in {subject.names[i]}"
            )
            hidden = _hidden(subject, elements, i, index, found, bad)
            if hidden and math.isnan(bad):
                return wrong(law, f"{where} comes out as {hidden}")
            doubt = doubt or (f"{where} comes out as {hidden}: is that meant?" if hidden else "")
            spread |= _others(elements, i, index, found, outputs)
    words = _cotangents(subject, outputs)
    if words:
        return wrong(law, words)
    if doubt:  # LAPACK, for one, has conventions of its own for infinite matrices
        return not_decided(law, doubt)
    if not tried:
        return not_measured(law, "no entry of the inputs matters here")
    return sound(law, "passed on or refused" + ("; other elements suffer too" if spread else ""))


def _hidden(
    subject: Subject,
    elements: Elements | NoElements,
    i: int,
    index: tuple[int, ...],
    found: tuple[Tensor, ...],
    bad: float,
) -> str:
    """Finite numbers in the element concerned, if they hide what went in."""
    if isinstance(elements, Elements) and i in elements.cut:
        found = tuple(o[index[0]] for o in found)
    if not all(bool(o.isfinite().all()) for o in found):
        return ""
    shown_ = f"finite numbers such as {float(found[0].reshape(-1)[0]):.4g}"
    if math.isnan(bad):
        return shown_
    # An infinite input may have a finite limit, as in a sigmoid: then large inputs are near it.
    limits = []
    for size in (1e5, 1e8):
        values = list(subject.values)
        values[i] = values[i].clone()
        values[i][index] = math.copysign(size, bad) * float(size_of(subject.values[i])[index])
        try:
            there = subject.outputs(values)
        except Exception:
            return ""
        if isinstance(elements, Elements) and i in elements.cut:
            there = tuple(o[index[0]] for o in there)
        limits.append(flat(there))
    if not bool(torch.stack(limits).isfinite().all()):
        return ""
    floor = float(subject.value(subject.values).norm())
    settled = apart(limits[0], limits[1], floor) < 0.01
    if not settled or apart(flat(found), limits[1], floor) > 0.1:
        return f"{shown_}, which is no limit of large inputs"
    return ""


def _others(
    elements: Elements | NoElements,
    i: int,
    index: tuple[int, ...],
    found: tuple[Tensor, ...],
    before: tuple[Tensor, ...],
) -> bool:
    """Whether other elements of the batch have changed."""
    if isinstance(elements, NoElements) or i not in elements.cut:
        return False
    rest = [k for k in range(elements.size) if k != index[0]]
    return any(apart(f[rest], b[rest]) > 1e-6 for f, b in zip(found, before, strict=True))


def _cotangents(subject: Subject, outputs: tuple[Tensor, ...]) -> str:
    """NaN or infinity in the entry of the cotangent that has the largest gradient."""
    size = sum(o.numel() for o in outputs)
    best, entry, right = 0.0, 0, torch.zeros(1)
    order = torch.randperm(size, generator=generator(subject.seed + 3)).tolist()[:8]
    for k in order:
        one = torch.zeros(size, dtype=torch.float64, device=outputs[0].device)
        one[k] = 1.0
        gradient = subject.slopes(subject.values, one)
        if bool(gradient.isfinite().all()) and float(gradient.norm()) > best:
            best, entry, right = float(gradient.norm()), k, gradient
    if best == 0:
        return ""
    for bad in (math.nan, math.inf):
        # Among ordinary numbers: NaN alone could be seen by accident, or not at all.
        c = torch.randn(size, generator=generator(subject.seed + 4), dtype=torch.float64)
        c = c.to(outputs[0].device)
        c[entry] = bad
        try:
            found = subject.slopes(subject.values, c)
        except Exception:  # refused
            continue
        touched = right.abs() > 0.1 * float(right.abs().amax())
        if bool(found[touched].isfinite().any()):
            which = _place(subject, entry, outputs)
            return (
                f"{bad} in the cotangent{which} gives a finite gradient where that output matters"
            )
    return ""


def _place(subject: Subject, entry: int, outputs: Any) -> str:
    mark = torch.zeros(sum(o.numel() for o in outputs), dtype=torch.float64)
    mark[entry] = 1.0
    pieces = split(mark, [o.detach().cpu() for o in outputs])
    for n, piece in enumerate(pieces):
        if bool(piece.any()):
            index = shown(tuple(int(k) for k in piece.nonzero()[0]))
            return f" at {index}" if len(pieces) == 1 else f" of output {n + 1} at {index}"
    return ""
