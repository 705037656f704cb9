"""The law of the backward pass: linear in the cotangent, repeatable, safe from later changes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, backward, filled, flat
from legato.testing.layer.verdict import Verdict, not_measured, sound, wrong

Found = Iterator[tuple[str, float]]


def backward_law(subject: Subject, tolerance: float) -> Verdict:
    """g(ac) = a·g(c), g(b + c) = g(b) + g(c), twice the same, added up, after changes in place."""
    law, worst = "backward pass", 0.0
    if not any(o.requires_grad for o in subject.graph(subject.values)[0]):
        return not_measured(law, "no output has a graph")
    for check in (_linear, _again, _accumulated, _changed_meanwhile):
        for words, off in check(subject):
            if not off <= tolerance:
                return wrong(law, f"{words}, {off:.1e} off", off)
            worst = max(worst, off)
    return sound(law, f"linear and repeatable, at most {worst:.1e} apart", worst)


def _drawn(subject: Subject, seed: int) -> torch.Tensor:
    size = subject.value(subject.values).numel()
    drawn = torch.randn(size, generator=generator(subject.seed + seed), dtype=torch.float64)
    return drawn.to(subject.values[subject.moving[0]].device)


def _linear(subject: Subject) -> Found:
    values = subject.values
    b, c = _drawn(subject, 31), _drawn(subject, 32)
    at_b, at_c = subject.slopes(values, b), subject.slopes(values, c)
    for factor in (-1.0, 1e-6, 1e-3, 1e3, 1e6):
        found = subject.slopes(values, factor * c) / factor
        yield (
            f"the gradient for {factor:g} times the cotangent is not {factor:g} times as large",
            apart(found, at_c),
        )
    yield (
        "the gradient of a sum of cotangents is not the sum of the gradients",
        apart(subject.slopes(values, b + c), at_b + at_c, float(at_b.norm())),
    )
    nothing = subject.slopes(values, torch.zeros_like(c))
    size = float(at_c.norm())
    yield "the gradient for the cotangent 0 is not 0", float(nothing.norm()) / (size or 1.0)


def _again(subject: Subject) -> Found:
    b, c = _drawn(subject, 31), _drawn(subject, 32)
    outputs, leaves = subject.graph(subject.values)
    try:
        first = flat(filled(backward(outputs, leaves, c, retain=True), leaves))
        kept = first.clone()
        flat(filled(backward(outputs, leaves, 1e3 * b, retain=True), leaves))
        again = flat(filled(backward(outputs, leaves, c, retain=True), leaves))
    except RuntimeError:  # a graph that can be used only once says so
        return
    yield (
        "a second backward pass through the same graph gives another gradient",
        apart(first, again),
    )
    yield "a later backward pass overwrites the gradient of an earlier one", apart(first, kept)
    lone = flat(filled(backward(outputs, leaves, 1e-4 * c, retain=True), leaves)) / 1e-4
    yield "a small cotangent after a large one gives another gradient", apart(lone, first)


def _accumulated(subject: Subject) -> Found:
    """``backward()`` twice adds two gradients into ``.grad``."""
    c = _drawn(subject, 32)
    outputs, leaves = subject.graph(subject.values)
    once = flat(filled(backward(outputs, leaves, c, retain=True), leaves))
    for leaf in leaves:
        leaf.grad = None
    loss = sum((o.double() * p).sum() for o, p in zip(outputs, _pieces(c, outputs), strict=True))
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return
    try:
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    except RuntimeError:
        return
    twice = flat(filled([leaf.grad for leaf in leaves], leaves))
    for leaf in leaves:
        leaf.grad = None
    yield "two backward passes do not add up to twice the gradient", apart(twice, 2 * once)


def _pieces(vector: torch.Tensor, like: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    parts = vector.split([o.numel() for o in like])
    return [p.reshape(o.shape) for p, o in zip(parts, like, strict=True)]


def _changed_meanwhile(subject: Subject) -> Found:
    """An input overwritten after the forward pass: an error, or the gradient as it was."""
    c = _drawn(subject, 32)
    right = subject.slopes(subject.values, c)
    for n, i in enumerate(subject.moving):
        outputs, leaves = subject.graph(subject.values)
        with torch.no_grad():
            leaves[n].mul_(0.5)
        try:
            found = flat(filled(backward(outputs, leaves, c), leaves))
        except Exception:  # refused, as torch does
            continue
        finally:
            with torch.no_grad():
                leaves[n].copy_(subject.values[i])
        yield (
            f"{subject.names[i]} overwritten between the passes changes the gradient silently",
            apart(found, right),
        )
