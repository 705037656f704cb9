r"""The law of units, where one is stated: :math:`F(s^{a_1} x_1, s^{a_2} x_2, …) = s^b F(x)`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from legato.errors import InputError
from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, filled
from legato.testing.layer.verdict import Verdict, not_measured, sound, wrong

Scale = float | tuple[Sequence[float], float] | None


def scale_law(subject: Subject, scale: Scale, tolerance: float) -> Verdict:
    """Values and gradients at inputs in other units."""
    law = "scale"
    if scale is None:
        return not_measured(law, "none is stated (scale=)")
    if isinstance(scale, tuple):
        powers, result = list(scale[0]), float(scale[1])
    else:
        powers, result = [1.0] * subject.count, float(scale)
    if len(powers) != subject.count:
        raise InputError(
            f"scale states {len(powers)} powers for {subject.count} inputs: one for each, and then "
            "that of the output, e.g. scale=((1, 0), 1)."
        )
    powers += [0.0] * len(subject.parameters)
    here = subject.value(subject.values)
    c = torch.randn(here.numel(), generator=generator(subject.seed + 81), dtype=torch.float64)
    c = c.to(here.device)
    moving = [subject.values[i] for i in subject.moving]
    gradients = filled(subject.gradients(subject.values, c), moving)
    worst, tried = 0.0, []
    for s in (1e-6, 1e-3, 1e3, 1e6):
        values = [
            v * s ** powers[i] if i in subject.moving else v for i, v in enumerate(subject.values)
        ]
        there = subject.attempt(values)
        if there is None:
            continue
        tried.append(f"{s:g}")
        off = apart(there / s**result, here)
        if off > tolerance:
            return wrong(law, f"scaled by {s:g}, the value is {off:.1e} off", off)
        found = filled(subject.gradients(values, c), moving)
        for i, g, before in zip(subject.moving, found, gradients, strict=True):
            size = apart(g.double() * s ** (powers[i] - result), before.double())
            if size > tolerance:
                return wrong(
                    law,
                    f"scaled by {s:g}, the gradient in {subject.names[i]} is {size:.1e} off",
                    size,
                )
            off = max(off, size)
        worst = max(worst, off)
    if not tried:
        return not_measured(law, "the layer refuses inputs in other units")
    return sound(law, f"factors {', '.join(tried)}: at most {worst:.1e} off", worst)
