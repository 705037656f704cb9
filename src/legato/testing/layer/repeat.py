"""The law of repeated calls: a call depends on its arguments, not on the calls before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.elements import Elements, NoElements
from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, backward, filled, flat
from legato.testing.layer.verdict import Verdict, sound, wrong


def repeat_law(subject: Subject, elements: Elements | NoElements, tolerance: float) -> Verdict:
    """Twice the same; others in between; values changed in place; nothing stale remembered."""
    law, worst = "repeated calls", 0.0
    for check in (_twice, _others_between, _in_place, _as_if_first):
        for words, off in check(subject, elements):
            if not off <= tolerance:
                return wrong(law, f"{words}, {off:.1e} off", off)
            worst = max(worst, off)
    random = "; its random numbers follow the seed" if subject.random else ""
    return sound(law, f"at most {worst:.1e} apart{random}", worst)


Found = Iterator[tuple[str, float]]


def _cotangent(subject: Subject, values: list[Any]) -> Tensor:
    size = subject.value(values).numel()
    drawn = torch.randn(size, generator=generator(subject.seed + 21), dtype=torch.float64)
    return drawn.to(subject.values[subject.moving[0]].device)


def _twice(subject: Subject, _: Any) -> Found:
    values = subject.values
    hidden = "state that is kept between calls, or random numbers that no seed controls"
    first = subject.value(values)
    yield f"the same call twice gives two values ({hidden})", apart(first, subject.value(values))
    c = _cotangent(subject, values)
    gradient = subject.slopes(values, c)
    yield (
        f"the same call twice gives two gradients ({hidden})",
        apart(gradient, subject.slopes(values, c)),
    )


def _others(subject: Subject, elements: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls with other data, other shapes, another dtype."""
    scaled = [0.6 * v if i in subject.moving else v for i, v in enumerate(subject.values)]
    yield "with other data", lambda: subject.graph(scaled)[0]
    inputs = [
        0.6 * v if i in subject.moving and i < subject.count else v
        for i, v in enumerate(subject.values)
    ]
    yield "with other inputs", lambda: subject.graph(inputs)[0]
    if isinstance(elements, Elements):
        one = elements.one(subject.values, elements.size - 1)
        yield "with one element", lambda: subject.graph(one)[0]
    if subject.module is None and subject.dtype == torch.float64:
        single = [v.float() if i in subject.moving else v for i, v in enumerate(subject.values)]
        yield "in float32", lambda: subject.graph(single)[0]


def _others_between(subject: Subject, elements: Any) -> Found:
    values = subject.values
    c = _cotangent(subject, values)
    first, gradient = subject.value(values), subject.slopes(values, c)
    for words, other in _others(subject, elements):
        try:
            other()
        except Exception:  # other data may be refused
            continue
        yield f"after a call {words} the value is another", apart(first, subject.value(values))
        yield (
            f"after a call {words} the gradient is another",
            apart(gradient, subject.slopes(values, c)),
        )
        if "other data" in words and subject.parameters:
            continue  # in place: a graph that needs the parameters is rightly refused
        outputs, leaves = subject.graph(values)
        try:
            other()
        except Exception:
            continue
        found = flat(filled(backward(outputs, leaves, c), leaves))
        yield (
            (
                f"a call {words} between forward and backward pass changes the gradient (what the "
                "backward pass needs belongs to the graph, not to the layer)"
            ),
            apart(gradient, found),
        )


def _in_place(subject: Subject, _: Any) -> Found:
    """The same tensors, or parameters, with new numbers in them."""
    for i in subject.moving:
        changed = list(subject.values)
        changed[i] = 0.7 * subject.values[i]
        right = subject.attempt(changed)  # with a tensor that the layer has not seen before
        if right is None:
            continue
        for how in ("in place", "through .data"):
            reused = list(subject.values)
            if i < subject.count:
                reused[i] = subject.values[i].clone()
                with torch.no_grad():
                    subject.run(reused)
                    (reused[i] if how == "in place" else reused[i].data).mul_(0.7)
            else:
                parameter = subject.parameters[i - subject.count]
                subject.value(subject.values)
                with torch.no_grad():
                    (parameter if how == "in place" else parameter.data).copy_(changed[i])
                reused[i] = parameter
            yield (
                f"{subject.names[i]} changed {how} between two calls: the second value is stale",
                apart(_exactly(subject, reused), right),
            )


def _exactly(subject: Subject, values: list[Any]) -> Tensor:
    """The value for these very tensors, of which others would be copies."""
    with torch.no_grad():
        return flat(subject.run(values))


def _as_if_first(subject: Subject, _: Any) -> Found:
    """Nothing that the layer remembers from other calls may matter."""
    changed = [0.8 * v if i in subject.moving else v for i, v in enumerate(subject.values)]
    for words, values in (("", subject.values), (" with other data", changed)):
        late = subject.attempt(values)
        if late is None:
            continue
        c = _cotangent(subject, values)
        late_gradient = subject.slopes(values, c)
        with subject.memory.forgotten():
            try:
                first = subject.value(values)
            except Exception:  # it cannot be called as if for the first time
                continue
            first_gradient = subject.slopes(values, c)
        stale = "the layer remembers something of an earlier call that no longer holds"
        as_first = f"than it would as the first one: {stale}"
        yield f"a call{words} gives another value {as_first}", apart(late, first)
        yield (
            f"a call{words} gives another gradient {as_first}",
            apart(late_gradient, first_gradient),
        )
