"""The laws of dtype and device: what comes back is of the kind that went in, and agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.calling import said
from legato.testing.layer.elements import untied
from legato.testing.layer.points import generator, jittered
from legato.testing.layer.subject import Subject, apart, backward, flat, is_float
from legato.testing.layer.verdict import Verdict, not_measured, sound, wrong

EPS = float(torch.finfo(torch.float32).eps)


def dtype_law(subject: Subject, tolerance: float) -> Verdict:
    """float32 in, float32 out, and as far from float64 as float32 has to be."""
    law = "dtype"
    if subject.dtype != torch.float64:
        return not_measured(law, f"the layer works in {_name(subject.dtype)} only")
    try:
        single = subject.twin(torch.float32)
        single.random = subject.random
        outputs, leaves = single.graph(single.values)
        c = _cotangent(subject, outputs)
        gradients = backward(outputs, leaves, c)
    except Exception as error:
        return not_measured(law, f"float32 is refused: {said(error)}")
    double = subject.outputs(subject.values)
    for who, kind, found in (
        ("float64", torch.float64, double),
        ("float32", torch.float32, outputs),
    ):
        other = next((o.dtype for o in found if o.dtype != kind), None)
        if other is not None:
            if _holds(subject, other):
                return not_measured(law, f"the layer holds tensors in {_name(other)} of its own")
            return wrong(law, f"for {who} inputs the output is {_name(other)}")
    kinds = {g.dtype for g in gradients if g is not None} - {torch.float32}
    if kinds:
        return wrong(law, f"for float32 inputs the gradient is {_name(kinds.pop())}")
    few = _few_digits(subject)
    if few:
        return wrong(law, f"for float64 inputs {few} has the digits of float32 only")
    if subject.random:
        return sound(law, "float32 in, float32 out; its random numbers differ, so not its values")
    off, bound = _apart(subject, single, subject.values, tolerance)
    if off > bound:  # at a tie, rounding may choose another side: what about a point nearby?
        near = [
            jittered(v, 1e-2, subject.seed + 70 + i).float().double() if i in subject.moving else v
            for i, v in enumerate(subject.values)
        ]
        if subject.attempt(near) is not None:
            off, bound = _apart(subject, single, near, tolerance)
    words = f"float32 is {off:.1e} from float64; rounding explains {bound:.1e}"
    return wrong(law, words, off) if not off <= bound else sound(law, words, off)


def device_law(subject: Subject, tolerance: float) -> Verdict:
    """On a GPU the same as on the CPU."""
    law = "device"
    if not torch.cuda.is_available():
        return not_measured(law, "there is no GPU here")
    if subject.random:
        return not_measured(law, "the layer draws random numbers, others on each device")
    devices = [torch.device("cpu"), torch.device("cuda")]
    values, found = untied(subject), []  # at ties each device may take another gradient
    for device in devices:
        try:
            there = subject.twin(subject.dtype, device)
            here = [
                v.to(t) if is_float(t) else t for v, t in zip(values, there.values, strict=True)
            ]
            outputs, leaves = there.graph(here)
            c = _cotangent(subject, outputs).to(device)
            gradients = backward(outputs, leaves, c)
        except Exception as error:
            return not_measured(law, f"{device} is refused: {said(error)}")
        for what in (*outputs, *(g for g in gradients if g is not None)):
            if what.device.type != device.type:
                return wrong(law, f"for inputs on {device} something on {what.device} comes back")
        found.append((flat(outputs).cpu(), _slopes(gradients, leaves).cpu()))
    (value, gradient), (other_value, other_gradient) = found
    off = max(apart(value, other_value), apart(gradient, other_gradient))
    bound = max(tolerance, 1e-6)
    words = f"CPU and GPU are {off:.1e} apart"
    return wrong(law, words, off) if not off <= bound else sound(law, words, off)


def computes_in_float32(subject: Subject) -> bool:
    """Whether what comes out for float64 inputs has no more digits than float32 has."""
    near = [
        jittered(v, 1e-2, subject.seed + 75 + i) if i in subject.moving else v
        for i, v in enumerate(subject.values)
    ]
    found = subject.attempt(near)
    return found is not None and _is_single(found)


def _few_digits(subject: Subject) -> str:
    if computes_in_float32(subject):
        return "the value"
    near = [
        jittered(v, 1e-2, subject.seed + 75 + i) if i in subject.moving else v
        for i, v in enumerate(subject.values)
    ]
    if subject.attempt(near) is None:
        return ""
    found = subject.slopes(near, _cotangent(subject, subject.outputs(near)))
    return "the gradient" if _is_single(found) else ""


def _is_single(x: Tensor) -> bool:
    """Whether no entry needs more than float32, and not because they are as simple as 0.5."""
    x = x[x != 0]
    simple = x == x.bfloat16().double()
    return len(x) > 3 and bool((x == x.float().double()).all()) and not bool(simple.any())


def _apart(
    subject: Subject, single: Subject, values: list[Any], tolerance: float
) -> tuple[float, float]:
    """How far float32 is from float64 in value and gradient, and how far it may be.

    What rounding the inputs to float32 does in float64 says how sensitive the layer is.
    """
    rounded = [v.float() if i in subject.moving else v for i, v in enumerate(values)]
    there = [v.float().double() if i in subject.moving else v for i, v in enumerate(values)]
    worst, allowed = 0.0, float("inf")
    c = _cotangent(subject, [subject.value(there)])
    functions: list[tuple[Callable[[Any], Tensor], Callable[[Any], Tensor]]] = [
        (subject.value, single.value),
        (lambda v: subject.slopes(v, c), lambda v: single.slopes(v, c)),
    ]
    for in_double, in_single in functions:
        right = in_double(there)
        moved = 0.0
        for k in range(3):
            shaken = [
                v * (1 + EPS * (jittered(torch.ones_like(v), 1.0, 90 + k) - 1))
                if i in subject.moving
                else v
                for i, v in enumerate(there)
            ]
            moved = max(moved, apart(in_double(shaken), right))
        bound = max(300 * moved, 2e-4, tolerance)
        off = apart(in_single(rounded), right)
        if off / bound > worst / allowed or allowed == float("inf"):
            worst, allowed = off, bound
    return worst, allowed


def _slopes(gradients: list[Tensor | None], leaves: list[Tensor]) -> Tensor:
    pairs = zip(gradients, leaves, strict=True)
    return flat([torch.zeros_like(x) if g is None else g for g, x in pairs])


def _cotangent(subject: Subject, outputs: Any) -> Tensor:
    size = sum(o.numel() for o in outputs)
    drawn = torch.randn(size, generator=generator(subject.seed + 41), dtype=torch.float64)
    return drawn.to(outputs[0].device)


def _holds(subject: Subject, dtype: torch.dtype) -> bool:
    """Whether the layer has tensors of this dtype that do not follow its inputs."""
    return any(t.dtype == dtype for t in subject.memory.tensors())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
