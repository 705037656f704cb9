"""Backward passes whose formula is wrong: a sign, a factor, a term, a constant."""

import torch
from torch.autograd import Function

from makers import randn
from testing.seeded.case import Fault, dot, outer, positive_definite, register

FORMULAS: list[Fault] = []


@register(
    FORMULAS,
    "wrong sign",
    "The gradient of Q has the opposite sign.",
    lambda: (positive_definite(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class QuadraticArgmin(Function):
    """x = argmin ½xᵀQx − cᵀx."""

    @staticmethod
    def forward(ctx, Q, c):
        x = torch.linalg.solve(Q, c)
        ctx.save_for_backward(Q, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Q, x = ctx.saved_tensors
        v = torch.linalg.solve(Q.mT, g)
        return outer(v, x), v


@register(
    FORMULAS,
    "missing factor",
    "The derivative of the square lacks its factor 2.",
    lambda: (randn(3, 5, seed=1), randn(4, 5, seed=2)),
)
class SquaredDistances(Function):
    """d_ik = ‖x_i − c_k‖²."""

    @staticmethod
    def forward(ctx, x, centres):
        difference = x.unsqueeze(-2) - centres
        ctx.save_for_backward(difference)
        return difference.square().sum(-1)

    @staticmethod
    def backward(ctx, g):
        (difference,) = ctx.saved_tensors
        slope = g.unsqueeze(-1) * difference
        return slope.sum(-2), -slope.flatten(0, -3).sum(0)


@register(
    FORMULAS,
    "missing normaliser",
    "The norm is held constant in the backward pass.",
    lambda: (randn(3, 5, seed=1),),
)
class UnitNorm(Function):
    """y = x/‖x‖."""

    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(norm)
        return x / norm

    @staticmethod
    def backward(ctx, g):
        (norm,) = ctx.saved_tensors
        return g / norm


@register(
    FORMULAS,
    "missing term",
    "The derivative through the variance is left out; that through the mean is there.",
    lambda: (randn(3, 5, seed=1),),
)
class Standardise(Function):
    """y = (x − mean)/deviation over the last axis."""

    @staticmethod
    def forward(ctx, x):
        deviation = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        ctx.save_for_backward(deviation)
        return (x - x.mean(-1, keepdim=True)) / deviation

    @staticmethod
    def backward(ctx, g):
        (deviation,) = ctx.saved_tensors
        return (g - g.mean(-1, keepdim=True)) / deviation


@register(
    FORMULAS,
    "epsilon in a norm",
    "The backward pass adds 0.001 to the norm; the forward pass does not.",
    lambda: (0.1 * randn(3, 5, seed=1),),
)
class Direction(Function):
    """y = x/‖x‖."""

    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, norm)
        return x / norm

    @staticmethod
    def backward(ctx, g):
        x, norm = ctx.saved_tensors
        norm = norm + 1e-3
        return g / norm - x * dot(x, g) / norm**3


@register(
    FORMULAS,
    "straight through",
    "The projection onto the box passes gradients on as if it were the identity.",
    lambda: (2 * randn(3, 5, seed=1),),
)
class BoxProjection(Function):
    """The nearest point of [−1, 1]ⁿ."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        return g
