"""What is wrong, all the same, with layers that were written as clean: shown without the referee.

The referee found these. Each function here needs nothing but the layer and torch, and returns
whether the flaw is there; a verdict "wrong" on any other clean layer is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from testing.seeded.case import Clean

Shown = Callable[[Clean], bool]


def _leaves(case: Clean, factor: float = 1.0) -> list[Tensor]:
    return [(factor * x).detach().requires_grad_() for x in case.inputs()]


def second_derivative(case: Clean) -> bool:
    """Its gradient is an ordinary one, and the derivative of the gradient is wrong without a word.

    What a Function saves beside its inputs and outputs is a constant for the second pass.
    """
    layer = case.layer
    right = torch.autograd.gradcheck(layer, _leaves(case), raise_exception=False)
    twice = torch.autograd.gradgradcheck(layer, _leaves(case), raise_exception=False)
    return right and not twice


def lost_nan(case: Clean) -> bool:
    """Entries of the gradient that depend on an entry of the cotangent stay finite if it is NaN."""
    grads = []
    for entry in (1.0, 2.0, torch.nan):
        inputs = _leaves(case)
        out = case.layer(*inputs)
        cotangent = torch.ones(out.shape, dtype=out.dtype)
        cotangent.view(-1)[-1 if out.ndim > 1 else 0] = entry
        grads.append(torch.autograd.grad(out, inputs, cotangent))
    return any(
        bool((((b - a).abs() > 1e-6 * b.abs().max()) & torch.isfinite(c)).any())
        for a, b, c in zip(*grads, strict=True)
    )


def expanded(case: Clean) -> bool:
    """An expanded tensor has another value than the same numbers in memory."""
    x = case.inputs()[0]
    x = x[:1].expand_as(x)
    layer = case.layer
    return not torch.equal(layer(x), layer(x.clone()))


def overwritten(case: Clean) -> bool:
    """An input changed in place between the passes changes a gradient, and nothing is raised."""
    layer, grads = case.layer, []
    for change in (1.0, 3.0):
        inputs = _leaves(case)
        out = layer(*inputs).sum()
        with torch.no_grad():
            inputs[0].mul_(change)
        grads.append(torch.autograd.grad(out, inputs[1])[0])
    return not torch.allclose(*grads)


def far_away(case: Clean) -> bool:
    """With inputs ten times as large its iteration has no limit, and the gradient is of none."""
    right = torch.autograd.gradcheck(case.layer, _leaves(case), raise_exception=False)
    there = torch.autograd.gradcheck(case.layer, _leaves(case, 10.0), raise_exception=False)
    return right and not there


def constant_step(case: Clean) -> bool:
    """Few iterations, whose step depends on what is learned and counts as a constant."""
    module = case.layer
    parameter = next(p for p in module.parameters() if p.ndim > 1)
    inputs = [x.detach() for x in case.inputs()]
    direction = torch.cos(torch.arange(parameter.numel()).double()).view_as(parameter)
    (gradient,) = torch.autograd.grad(module(*inputs).square().sum(), parameter)
    values = []
    with torch.no_grad():
        for h in (1e-6, -1e-6):
            parameter.add_(h * direction)
            values.append(float(module(*inputs).square().sum()))
            parameter.sub_(h * direction)
    slope, found = (values[0] - values[1]) / 2e-6, float((gradient * direction).sum())
    return abs(found - slope) > 1e-3 * abs(slope)


FLAWS: dict[str, Shown] = {
    "affine projection, implicit": second_derivative,
    "attached newton step": second_derivative,
    "cumulative log-sum-exp": lost_nan,
    "cumulative log-sum-exp, one vector": lost_nan,
    "relative tolerance": lost_nan,
    "median, one vector": expanded,
    "kronecker product": overwritten,
    "equilibrium": far_away,
    "legato: sparse coding": constant_step,
    "legato: sparse coding, z ≥ 0": constant_step,
    "legato: analysis denoiser": constant_step,
}
