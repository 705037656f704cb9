r"""The law of solutions, where more is known of the layer than the layer itself.

With a residual :math:`R(x, θ)` that vanishes at the solution (the optimality conditions, duals
among x where they occur) the gradient of :math:`⟨c, x⟩` is known from the adjoint equation,

.. math:: (∂R/∂x)^T λ = c, \qquad d⟨c, x⟩/dθ = -(∂R/∂θ)^T λ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from legato.errors import InputError
from legato.testing.layer.points import generator
from legato.testing.layer.subject import Subject, apart, filled, flat
from legato.testing.layer.verdict import Verdict, not_decided, not_measured, sound, wrong

Solution = Callable[..., Any] | Tensor | tuple[Tensor, ...] | None
Residual = Callable[..., Any] | None
_LARGEST = 2000


def solution_law(
    subject: Subject, solution: Solution, residual: Residual, tolerance: float
) -> Verdict:
    """The output is the right one, or solves its equations, and the gradient their adjoint."""
    law = "solution"
    if solution is None and residual is None:
        return not_measured(law, "none is known (solution=, residual=)")
    words, worst = [], 0.0
    if solution is not None:
        right = solution(*subject.values[: subject.count]) if callable(solution) else solution
        leaves = [t for t in pytree.tree_leaves(right) if isinstance(t, Tensor)]
        found = subject.value(subject.values)
        off = apart(found, flat(leaves).to(found.device))
        if not off <= tolerance:
            return wrong(law, f"the output is {off:.1e} off the right one", off)
        words.append(f"value {off:.1e} off")
        worst = off
    if residual is not None:
        verdict = _adjoint(law, subject, residual, tolerance)
        if verdict.state != "sound":
            return verdict
        words.append(verdict.words)
        worst = max(worst, verdict.value or 0.0)
    return sound(law, ", ".join(words), worst)


def _adjoint(law: str, subject: Subject, residual: Callable[..., Any], tolerance: float) -> Verdict:
    outputs, _ = subject.graph(subject.values)
    connected = torch.cat([torch.full((o.numel(),), float(o.requires_grad)) for o in outputs])
    points = [o.detach().double() for o in outputs]
    data = [v.double() if i in subject.moving else v for i, v in enumerate(subject.values)]
    if subject.parameters:
        raise InputError("A residual needs a layer without parameters: pass them as inputs.")
    if sum(p.numel() for p in points) > _LARGEST:
        return not_measured(law, f"the adjoint is solved densely, up to {_LARGEST} outputs")

    def at(*arguments: Tensor) -> Tensor:
        x, moved = arguments[: len(points)], arguments[len(points) :]
        inputs = list(data)
        for i, value in zip(subject.moving, moved, strict=True):
            inputs[i] = value
        found = residual(*x, *inputs)
        leaves = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
        return torch.cat([t.reshape(-1) for t in leaves])

    everything = (*points, *(data[i] for i in subject.moving))
    rest = at(*everything).detach()
    jacobians: Any = torch.autograd.functional.jacobian(at, everything)
    J = torch.cat([j.reshape(len(rest), -1) for j in jacobians[: len(points)]], 1)
    step = torch.linalg.lstsq(J, rest[:, None], driver="gelsd").solution[:, 0]
    size = float(flat(points).norm()) or 1.0
    distance = float(step.norm()) / size
    if not distance <= tolerance:
        return wrong(
            law,
            f"the residual is {float(rest.norm()):.1e}, and a Newton step would move the output by "
            f"{distance:.1e} of its size: it is not solved",
            distance,
        )
    c = torch.randn(J.shape[1], generator=generator(subject.seed + 97), dtype=torch.float64)
    c = c * connected.double()
    multiplier = torch.linalg.lstsq(J.mT, c[:, None], driver="gelsd").solution[:, 0]
    left = float((J.mT @ multiplier - c).norm() / c.norm())
    if left > 1e-6:
        return not_decided(
            law,
            f"the residual's Jacobian is singular: the adjoint equation is left with {left:.1e}",
        )
    moving = [subject.values[i] for i in subject.moving]
    found = filled(subject.gradients(subject.values, c), moving)
    worst = 0.0
    for i, gradient, jacobian in zip(subject.moving, found, jacobians[len(points) :], strict=True):
        right = -(jacobian.reshape(len(rest), -1).mT @ multiplier)
        off = apart(flat([gradient]), right)
        if not off <= max(10 * tolerance, 1e-6):
            return wrong(
                law, f"the gradient in {subject.describe(i)} is {off:.1e} off the adjoint's", off
            )
        worst = max(worst, off)
    return sound(law, f"solved to {distance:.1e}, gradient {worst:.1e} off the adjoint's", worst)
