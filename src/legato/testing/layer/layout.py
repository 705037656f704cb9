"""The law of layouts: numbers count, not how they lie in memory or which of them need gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, backward, filled, flat
from legato.testing.layer.verdict import Verdict, sound, wrong

Found = Iterator[tuple[str, float]]


def layout_law(subject: Subject, tolerance: float) -> Verdict:
    """Views, strides, expanded tensors; subsets of what needs a gradient; modes of torch."""
    law, worst, tried = "layout and modes", 0.0, 0
    # Random numbers may be drawn in the order of memory.
    checks: tuple[Callable[[Subject], Found], ...] = (_subsets, _modes, _cotangents)
    checks = checks if subject.random else (_layouts, _expanded, *checks)
    for check in checks:
        for words, off in check(subject):
            if not off <= tolerance:
                return wrong(law, f"{words}, {off:.1e} off", off)
            worst, tried = max(worst, off), tried + 1
    return sound(law, f"{tried} variants, at most {worst:.1e} apart", worst)


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def strided(x: Tensor) -> Tensor:
    """Every second entry of a longer tensor."""
    return torch.stack([x, torch.full_like(x, 7.0)], -1).flatten(-2)[..., ::2]


def offset(x: Tensor) -> Tensor:
    """Part of a larger tensor, with its first entry somewhere inside."""
    return torch.cat([torch.full_like(x[:1], 7.0), x])[1:]


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _ways(x: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    if x.ndim >= 1:
        yield "a strided view", strided
        yield "a view with an offset", offset
    if x.ndim >= 2:
        yield "transposed memory", transposed
    if x.ndim == 4:
        yield "channels_last", channels_last


def _with(subject: Subject, i: int, tensor: Tensor, c: Tensor) -> tuple[Tensor, Tensor] | None:
    """Value and gradient in i for exactly this tensor; None where the layer refuses it."""
    values = [v.detach().clone() if isinstance(v, Tensor) else v for v in subject.values]
    values[i] = tensor
    try:
        with torch.enable_grad():
            outputs = subject.run(values)
        (found,) = filled(backward(outputs, [tensor], c), [tensor])
    except Exception:
        return None
    return flat(outputs), flat([found])


def _cotangent(subject: Subject) -> Tensor:
    size = subject.value(subject.values).numel()
    drawn = torch.randn(size, generator=generator(subject.seed + 51), dtype=torch.float64)
    return drawn.to(subject.values[subject.moving[0]].device)


def _layouts(subject: Subject) -> Found:
    c = _cotangent(subject)
    for i in (i for i in subject.moving if i < subject.count):
        x = subject.values[i]
        plain = _with(subject, i, x.detach().clone().requires_grad_(), c)
        for words, way in _ways(x):
            laid = way(x).detach()
            other = _with(subject, i, laid.requires_grad_(), c)
            if plain is None or other is None:
                continue
            yield f"{subject.names[i]} as {words} gives another value", apart(other[0], plain[0])
            yield f"{subject.names[i]} as {words} gives another gradient", apart(other[1], plain[1])


def _expanded(subject: Subject) -> Found:
    c = _cotangent(subject)
    for i in (i for i in subject.moving if i < subject.count):
        x = subject.values[i]
        if x.ndim == 0 or x.shape[0] < 2:
            continue
        given = _with(subject, i, x.detach().clone().requires_grad_(), c)
        spread = x[:1].detach().clone().expand_as(x)
        plain = _with(subject, i, spread.contiguous().clone().requires_grad_(), c)
        other = _with(subject, i, spread.detach().requires_grad_(), c)
        if given is None or plain is None or other is None:
            continue
        for what, o, p, g in zip(("value", "gradient"), other, plain, given, strict=True):
            # Where all rows are equal little may be left but rounding, as in a normalised batch.
            off = apart(o, p, 1e-8 * float(g.norm()))
            yield f"{subject.names[i]} as an expanded tensor gives another {what}", off


def _subsets(subject: Subject) -> Found:
    """Each alone needs a gradient, or all but it."""
    if len(subject.moving) < 2:
        return
    c = _cotangent(subject)
    full = subject.gradients(subject.values, c)
    for n, i in enumerate(subject.moving[:6]):
        for moving in ([i], [j for j in subject.moving if j != i]):
            switched = [
                p for k, p in enumerate(subject.parameters) if subject.count + k not in moving
            ]
            for p in switched:
                p.requires_grad_(False)
            try:
                found = subject.gradients(subject.values, c, moving)
            except RuntimeError:
                continue
            finally:
                for p in switched:
                    p.requires_grad_(True)
            wanted = [full[subject.moving.index(j)] for j in moving]
            like = [subject.values[j] for j in moving]
            off = apart(flat(filled(found, like)), flat(filled(wanted, like)))
            only = (
                f"only {subject.names[i]} needs"
                if len(moving) == 1 and n >= 0
                else f"all but {subject.names[i]} need"
            )
            yield f"the gradient is another where {only} one", off


def _cotangents(subject: Subject) -> Found:
    """Expanded, as ``sum().backward()`` sends them, or strided."""
    # The sum of normalised numbers is constant: its gradient is nothing but rounding.
    usual = subject.slopes(subject.values, _cotangent(subject))
    floor = float(torch.finfo(subject.dtype).eps) ** 0.5 * float(usual.norm())
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "an expanded": lambda o: torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape),
        "a strided": lambda o: strided(o.detach().cos()) if o.ndim else o.detach().cos(),
        "a transposed": lambda o: transposed(o.detach().cos()) if o.ndim >= 2 else o.detach().cos(),
    }
    for words, way in ways.items():
        found = []
        for laid in (way, lambda o, way=way: way(o).clone(memory_format=torch.contiguous_format)):
            outputs, leaves = subject.graph(subject.values)
            used = [o for o in outputs if o.requires_grad]
            if not used:
                return
            try:
                gradients = torch.autograd.grad(
                    used, leaves, [laid(o) for o in used], allow_unused=True
                )
            except Exception:  # refused
                break
            found.append(flat(filled(gradients, leaves)))
        if len(found) == 2:
            yield f"{words} cotangent gives another gradient", apart(found[0], found[1], floor)


def _modes(subject: Subject) -> Found:
    outputs, _ = subject.graph(subject.values)
    right = flat(outputs)
    yield "the value under no_grad is another", apart(subject.value(subject.values), right)
    plain = [v.detach().clone() if isinstance(v, Tensor) else v for v in subject.values]
    with torch.enable_grad():
        yield (
            "the value is another where nothing needs a gradient",
            apart(flat(subject.run(plain)), right),
        )
    inferred = _under_inference(subject, plain)
    if inferred is not None:
        yield "the value under inference_mode is another", apart(inferred, right)
    again, _ = subject.graph(subject.values)
    yield "the value after a call under inference_mode is another", apart(flat(again), right)


def _under_inference(subject: Subject, values: list[Any]) -> Tensor | None:
    try:
        with torch.inference_mode():
            found = subject.run(values)
    except Exception:
        return None
    return flat([o.clone() for o in found])
