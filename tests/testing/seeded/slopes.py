"""Gradients against differences in float64: how far they are apart, in units of the slope."""

import torch
from torch import Tensor

from testing.seeded.case import Case


def leaves(case: Case) -> list[Tensor]:
    """The inputs of a case, as leaves that want a gradient."""
    return [x.requires_grad_() for x in case.inputs()]


def cotangent(y: Tensor, seed: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)


def gradients(layer, inputs: list[Tensor], scale: float = 1.0) -> list[Tensor]:
    """The gradients of one weighted sum of the outputs; zero where autograd knows of none."""
    y = layer(*inputs)
    found = torch.autograd.grad(y, inputs, scale * cotangent(y), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def slope_error(case: Case, index: int) -> float:
    """The worst of three directions: |gradient − central difference|, less rounding, relative.

    Each value comes from a layer of its own, so that nothing a layer remembers plays a part.
    """
    inputs = leaves(case)
    gradient = gradients(case.layer, inputs)[index]
    inputs = [x.detach() for x in inputs]
    x = inputs[index]
    h = 1e-6
    along = tuple(range(1, x.dim())) if x.dim() > 1 else tuple(range(x.dim()))
    scale = x.abs().amax(along, keepdim=True)  # rows may differ in scale by much
    generator = torch.Generator().manual_seed(5)
    worst = 0.0
    for _ in range(3):
        d = scale * torch.randn(x.shape, generator=generator, dtype=x.dtype)
        there, back = (
            case.layer(*inputs[:index], x + s * d, *inputs[index + 1 :]).detach() for s in (h, -h)
        )
        weights = cotangent(there)
        difference = ((there - back) * weights).sum() / (2 * h)
        rounding = 4 * torch.finfo(x.dtype).eps * (there * weights).abs().sum() / h
        size = torch.maximum((gradient * d).abs().sum(), difference.abs()).clamp(min=1e-12)
        error = (difference - (gradient * d).sum()).abs() - rounding
        worst = max(worst, float(error / size))
    return worst


def outside_one_sided_slopes(case: Case, index: int) -> float:
    """By how much ∂y_j/∂x_i leaves the interval between its one-sided differences, at most."""
    inputs = leaves(case)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: case.layer(*inputs[:index], x, *inputs[index + 1 :]), inputs[index].detach()
    )
    inputs = [x.detach() for x in inputs]
    x, y, h = inputs[index], case.layer(*inputs), 1e-6
    jacobian = jacobian.reshape(y.numel(), x.numel())
    worst = 0.0
    for i in range(x.numel()):
        unit = torch.zeros_like(x)
        unit.view(-1)[i] = h
        there, back = (
            case.layer(*inputs[:index], x + s * unit, *inputs[index + 1 :]) for s in (1, -1)
        )
        right, left = ((there - y) / h).flatten(), ((y - back) / h).flatten()
        low, high = torch.minimum(left, right), torch.maximum(left, right)
        column = jacobian[:, i]
        worst = max(worst, float(torch.maximum(low - column, column - high).max()))
    return worst
