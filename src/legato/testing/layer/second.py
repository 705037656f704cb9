"""The law of second derivatives: right, or refused; never lost in silence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.testing.layer.calling import said
from legato.testing.layer.compare import Bounds
from legato.testing.layer.points import generator, jittered, normal, size_of, symmetrised
from legato.testing.layer.slopes import noise, none_refused, slopes
from legato.testing.layer.subject import Subject, backward, filled
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong


def second_law(subject: Subject, bounds: Bounds, tolerance: float, first: Verdict) -> Verdict:
    """The derivative of the gradient against differences of the gradient, away from ties."""
    law = "double backward"
    if first.state == "wrong":
        return not_measured(law, "the first derivative is wrong")
    verdict = not_measured(law, "the layer refuses points nearby")
    for k in range(2):
        values = [
            jittered(v, 1e-2, subject.seed + 500 + 50 * k + i) if i in subject.moving else v
            for i, v in enumerate(subject.values)
        ]
        values = subject.values if subject.attempt(values) is None else values
        verdict = _at(law, subject, values, bounds, tolerance)
        if verdict.state != "not decided":
            break
    return verdict


def _at(law: str, subject: Subject, values: list[Any], bounds: Bounds, tolerance: float) -> Verdict:
    at = subject.value(values)
    c = torch.randn(at.numel(), generator=generator(subject.seed + 91), dtype=torch.float64)
    c = c.to(at.device)
    try:
        outputs, leaves = subject.graph(values)
        first = backward(outputs, leaves, c, create=True)
        pairs = [(g, x) for g, x in zip(first, leaves, strict=True) if g is not None]
        weights = [normal(g, subject.seed + 95 + k) for k, (g, _) in enumerate(pairs)]
        inner = sum((g.double() * w).sum() for (g, _), w in zip(pairs, weights, strict=True))
        found: list[Tensor | None] = [None] * len(leaves)
        if isinstance(inner, Tensor) and inner.requires_grad:
            found = list(torch.autograd.grad(inner, leaves, allow_unused=True))
    except Exception as error:
        return sound(law, f"refused: {said(error, 80)}")
    second = filled(found, leaves)
    if not pairs:
        return not_measured(law, "there is no first derivative")

    def slope_of_gradient(v: list[Tensor]) -> Tensor | None:
        try:
            gradients = subject.gradients(v, c)
        except Exception:
            return None
        kept = [g for g, f in zip(gradients, first, strict=True) if f is not None]
        if any(g is None for g in kept):
            return None
        result = torch.stack(
            [(g.double() * w).sum() for g, w in zip(kept, weights, strict=True) if g is not None]
        ).sum()
        return result.reshape(1) if bool(result.isfinite()) else None

    centre = slope_of_gradient(values)
    if centre is None:
        return not_measured(law, "the first derivative is not finite")
    resolved, worst, eps = 0, 0.0, float(torch.finfo(subject.dtype).eps)
    size = sum(float(g.detach().norm()) for g, _ in pairs)
    for n, i in enumerate(subject.moving):
        x = values[i]
        for k in range(3):
            step = symmetrised(x, normal(x, subject.seed + 600 + 7 * i + k) * size_of(x))

            def move(t: float, i: int = i, x: Tensor = x, step: Tensor = step) -> Tensor | None:
                there = list(values)
                there[i] = (x.double() + t * step).to(x.dtype)
                return slope_of_gradient(there)

            level = torch.maximum(noise(move, centre, eps), torch.full_like(centre, 8 * eps * size))
            line = slopes(move, centre, level, none_refused(bounds[i], x, step))
            if line is None or line.jumps or bool(line.kink.any()):
                continue
            middle, radius = float(line.middle), float(line.radius)
            says = float((second[n].double() * step).sum())
            scale = max(abs(middle), abs(says), 1e-6 * size)
            off = (abs(says - middle) - radius) / scale
            if off > max(100 * tolerance, 1e-3):
                lost = "no second derivative arrives in" if found[n] is None else "it is wrong in"
                return wrong(
                    law,
                    f"{lost} {subject.describe(i)}: {says:.4g} where differences of the gradient "
                    f"give {middle:.4g} ± {radius:.0e}, and nothing is raised",
                    off,
                )
            if (
                radius <= 0.05 * scale
                or abs(middle) + radius <= max(1e-3, 300 * eps ** (2 / 3)) * size
            ):
                resolved, worst = resolved + 1, max(worst, abs(says - middle) / scale)
    if not resolved:
        return not_decided(law, "kinks or noise hide the slope of the gradient")
    return sound(law, f"{resolved} slopes of the gradient agree")
