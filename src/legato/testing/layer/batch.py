"""The law of batches: an element of a batch gets what it gets alone, whatever is beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.calling import said
from legato.testing.layer.elements import Elements, NoElements, untied
from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, backward, filled, split
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong

_FLOOR = 1e-13
"""Of the largest element: rounding of a batch may leave this much in a small one."""


def batch_law(
    subject: Subject, elements: Elements | NoElements, batch: bool | None, tolerance: float
) -> Verdict:
    """Batch = singles in value and gradient, for elements of all sizes; no leak, any order."""
    law = "batch = elements"
    if isinstance(elements, NoElements):
        if not elements.doubtful:
            return not_measured(law, elements.why)
        if batch:
            return wrong(
                law, f"{elements.why}: elements see each other, or an axis is the wrong one"
            )
        return not_decided(
            law,
            f"{elements.why}: if the first axis is a batch, its elements see each other; "
            "say batch=True or batch=False (--batch or --no-batch)",
        )
    lost = _lost_axes(subject, elements)
    if lost:
        return wrong(law, lost)
    worst, tried = 0.0, 0
    for words, values in _batches(subject, elements):
        if subject.attempt(values) is None:
            continue
        tried += 1
        for part, off, k in _against_singles(subject, elements, values):
            if off > tolerance:
                return wrong(
                    law, f"{part} of element {k} is {off:.1e} off what it is alone{words}", off
                )
            worst = max(worst, off)
    for check in (_order, _leak, _sizes):
        found = check(subject, elements, tolerance)
        if isinstance(found, str):
            return wrong(law, found)
        worst = max(worst, found)
    return sound(law, f"{tried} batches of {elements.size}, at most {worst:.1e} apart", worst)


def _lost_axes(subject: Subject, elements: Elements) -> str:
    """What a batch of one loses, as where its axis is squeezed away; nothing if it keeps all."""
    alone, here = (
        subject.outputs(elements.one(subject.values, 0)),
        subject.outputs(subject.values),
    )
    for a, o in zip(alone, here, strict=True):
        if a.shape != o[:1].shape:
            shapes = f"{tuple(a.shape)}, not {tuple(o[:1].shape)}"
            return f"a batch of one comes out with the shape {shapes}: its axis is lost"
    return ""


def _batches(subject: Subject, elements: Elements) -> Any:
    values = untied(subject)
    yield "", values
    size = elements.size
    if size < 2:
        return
    floats = [i for i in elements.cut if i in subject.moving]
    for least in (1e-2, 1e-6):
        factors = [least ** (k / (size - 1)) for k in range(size)]
        for which in dict.fromkeys([(floats[0],), tuple(floats)]):
            words = f", in a batch with elements scaled from 1 to {least:.0e}"
            yield words, elements.scaled(values, factors, which)


def _against_singles(
    subject: Subject, elements: Elements, values: list[Any]
) -> list[tuple[str, float, int]]:
    """What is off by how much in which element: values, gradients for cotangents of all sizes."""
    outputs, leaves = subject.graph(values)
    found = []
    sizes = [1.0] * elements.size, [10.0 ** (-3 * (k % 3)) for k in range(elements.size)]
    drawn = torch.randn(
        sum(o.numel() for o in outputs), generator=generator(subject.seed + 61), dtype=torch.float64
    ).to(outputs[0].device)
    for factors in sizes:
        pieces = split(drawn, outputs)
        for o in pieces:
            o.mul_(torch.tensor(factors).to(o).reshape(-1, *[1] * (o.ndim - 1)))
        whole = filled(backward(outputs, leaves, _flat(pieces), retain=True), leaves)
        shared = [torch.zeros_like(g, dtype=torch.float64) for g in whole]
        bounds = [0.0 for _ in whole]
        for k in range(elements.size):
            alone, single = subject.graph(elements.one(values, k))
            for a, o in zip(alone, outputs, strict=True):
                floor = _FLOOR * float(o.detach().norm())
                found.append(("the value", apart(a, o[k : k + 1], floor), k))
            cotangent = _flat([o[k : k + 1] for o in pieces])
            gradients = filled(backward(alone, single, cotangent), single)
            for n, (i, g) in enumerate(zip(subject.moving, gradients, strict=True)):
                if i in elements.cut:
                    floor = _FLOOR * float(whole[n].norm())
                    off = apart(g, whole[n][k : k + 1], floor)
                    found.append((f"the gradient in {subject.names[i]}", off, k))
                else:
                    shared[n] += g.double()
                    bounds[n] += float(g.norm())
        # A parameter without effect has a gradient of rounding, by the size of the others.
        largest = max(float(g.norm()) for g in whole)
        floor = float(torch.finfo(subject.dtype).eps) ** 0.5 * largest
        for n, i in enumerate(subject.moving):
            if i not in elements.cut and bounds[n] > 0:
                off = apart(whole[n], shared[n], max(bounds[n], floor))
                if off == off:
                    found.append(
                        (f"the gradient in {subject.names[i]}, summed over elements,", off, 0)
                    )
    return found


def _order(subject: Subject, elements: Elements, tolerance: float) -> float | str:
    """The elements in another order."""
    order = torch.randperm(elements.size, generator=generator(subject.seed + 8)).tolist()
    here = subject.outputs(subject.values)
    there = subject.outputs(elements.chosen(subject.values, order))
    off = max(apart(t, h[order]) for t, h in zip(there, here, strict=True))
    if off > tolerance:
        return f"the elements in the order {order} give other values, {off:.1e} off"
    return off


def _leak(subject: Subject, elements: Elements, tolerance: float) -> float | str:
    """The gradient of one element's output in another element's input is zero."""
    worst = 0.0
    for k in range(min(elements.size, 3)):
        outputs, leaves = subject.graph(subject.values)
        generator_ = generator(subject.seed + k)
        pieces = []
        for o in outputs:
            piece = torch.zeros_like(o)
            piece[k] = torch.randn(o.shape[1:], generator=generator_, dtype=torch.float64).to(o)
            pieces.append(piece)
        gradients = filled(backward(outputs, leaves, _flat(pieces)), leaves)
        for i, g in zip(subject.moving, gradients, strict=True):
            if i not in elements.cut:
                continue
            own = float(g[k].norm())
            others = [(float(g[j].norm()), j) for j in range(elements.size) if j != k]
            for size, j in others:
                off = size / own if own > 0 else (0.0 if size == 0 else float("inf"))
                if not off <= tolerance:
                    return (
                        f"element {k} of the output has a gradient of {size:.2g} in element {j} of "
                        f"{subject.names[i]}, {own:.2g} in its own: elements leak into each other"
                    )
                worst = max(worst, off)
    return worst


def _sizes(subject: Subject, elements: Elements, tolerance: float) -> float | str:
    """Batches of other sizes: one element, and as many as another axis of the inputs is long."""
    worst = 0.0
    here = subject.outputs(subject.values)
    axes = [n for i in elements.cut for n in subject.values[i].shape[1:]]
    axes += [n for v in subject.values if isinstance(v, Tensor) for n in v.shape]
    for size in sorted({2, 3, *axes} - {0, 1, elements.size})[:5]:
        if size > 64:
            continue
        order = [k % elements.size for k in range(size)]
        try:
            there = subject.outputs(elements.chosen(subject.values, order))
        except Exception as error:
            return f"a batch of {size} raises {said(error)}"
        for t, h in zip(there, here, strict=True):
            off = apart(t, h[order])
            if not off <= tolerance:
                return f"a batch of {size} with the same elements gives other values, {off:.1e} off"
            worst = max(worst, off)
    return worst


def _flat(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.reshape(-1).double() for p in pieces])
