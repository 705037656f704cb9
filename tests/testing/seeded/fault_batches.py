"""Layers whose batch elements influence one another, or where one of them is forgotten."""

import torch
from torch.autograd import Function

from makers import randn
from testing.seeded.case import Fault, apply, outer, positive_definite, register

BATCHES: list[Fault] = []


@register(
    BATCHES,
    "batch leak, scale",
    "The scores are divided by the largest of the whole batch.",
    lambda: (randn(3, 5, seed=1),),
)
def scaled_softmax(x):
    """softmax(4x/max|x|)."""
    return (4 * x / x.abs().max()).softmax(-1)


@register(
    BATCHES,
    "batch leak, step",
    "The step length follows the worst conditioned problem of the batch.",
    lambda: (
        positive_definite(3, 4, 4, seed=1) * torch.tensor([1.0, 3.0, 9.0]).double().view(3, 1, 1),
        randn(3, 4, seed=2),
    ),
    batch=(0, 1),
)
def gradient_descent(Q, c):
    """12 gradient steps for argmin ½xᵀQx − cᵀx."""
    step = 1 / Q.abs().sum(-1).max()
    x = torch.zeros_like(c)
    for _ in range(12):
        x = x - step * (apply(Q, x) - c)
    return x


@register(
    BATCHES,
    "batch leak, backward",
    "The backward pass takes inner products over the whole batch in its conjugate gradients.",
    lambda: (positive_definite(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class ConjugateGradientBackward(Function):
    """x = argmin ½xᵀQx − cᵀx, the backward system by n steps of conjugate gradients."""

    @staticmethod
    def forward(ctx, Q, c):
        x = torch.linalg.solve(Q, c)
        ctx.save_for_backward(Q, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Q, x = ctx.saved_tensors
        v, r, p = torch.zeros_like(g), g, g
        for _ in range(g.shape[-1]):
            Qp = apply(Q.mT, p)
            length = (r * r).sum() / (p * Qp).sum()
            v, rest = v + length * p, r - length * Qp
            p, r = rest + (rest * rest).sum() / (r * r).sum() * p, rest
        return -outer(v, x), v


@register(
    BATCHES,
    "tolerance of the batch",
    "The iteration stops by the largest entry of the batch, so small elements stop too early.",
    lambda: (
        positive_definite(3, 4, 4, seed=1),
        randn(3, 4, seed=2) * torch.tensor([[1.0], [1e-3], [1e3]]).double(),
    ),
    batch=(0, 1),
)
def nonnegative_quadratic(Q, c):
    """argmin over x ≥ 0 of ½xᵀQx − cᵀx by projected gradient steps, unrolled."""
    step = 1 / Q.abs().sum(-1).amax(-1, keepdim=True)
    x = torch.zeros_like(c)
    for _ in range(2000):
        previous, x = x, (x - step * (apply(Q, x) - c)).clamp(min=0)
        if (x - previous).abs().max() <= 1e-8 * x.abs().max():
            break
    return x


@register(
    BATCHES,
    "one element forgotten",
    "The backward pass works in chunks of two and drops the rest of an odd batch.",
    lambda: (randn(3, 5, seed=1),),
)
class ChunkedSoftmax(Function):
    """softmax whose backward pass goes through the batch two elements at a time."""

    @staticmethod
    def forward(ctx, x):
        p = x.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        result = torch.zeros_like(g)
        for chunk in range(max(len(g) // 2, 1)):
            part = slice(2 * chunk, 2 * chunk + 2)
            inner = (g[part] * p[part]).sum(-1, keepdim=True)
            result[part] = p[part] * (g[part] - inner)
        return result
