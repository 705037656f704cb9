"""Projections and proximal maps in closed form, right at every face."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from makers import randn


def simplex(x):
    """The nearest point of the simplex, by sorting."""
    ordered = x.sort(-1, descending=True).values
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    sums = ordered.cumsum(-1) - 1
    size = (ordered * counts > sums).sum(-1, keepdim=True).clamp(min=1)
    return (x - sums.gather(-1, size - 1) / size).clamp(min=0)


def l1_ball(x):
    """The nearest point with ‖x‖₁ ≤ 1."""
    inside = x.abs().sum(-1, keepdim=True) <= 1
    return torch.where(inside, x, x.sign() * simplex(x.abs()))


def affine_set(x):
    """The nearest point with Ax = b, for fixed A and b."""
    A, b = randn(2, x.shape[-1], seed=5).to(x), randn(2, seed=6).to(x)
    return x - (x @ A.T - b) @ torch.linalg.inv(A @ A.T) @ A


def second_order_cone(x):
    """The nearest point with ‖v‖ ≤ t, for x = (v, t)."""
    v, t = x[..., :-1], x[..., -1:]
    norm = v.norm(dim=-1, keepdim=True)
    onto = torch.cat([v / norm, torch.ones_like(t)], -1) * (norm + t) / 2
    return torch.where(norm <= t, x, torch.where(norm <= -t, 0 * x, onto))


class SparsemaxImplicit(Function):
    """The nearest point of the simplex, with the derivative on its face."""

    @staticmethod
    def forward(ctx, x):
        p = simplex(x)
        ctx.save_for_backward(p > 0)
        return p

    @staticmethod
    def backward(ctx, g):
        (support,) = ctx.saved_tensors
        mean = (g * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return (g - mean) * support


def isotonic(x):
    """The nearest ascending sequence, by the minimax formula: the averages of pools."""
    n = x.shape[-1]
    sums = F.pad(x.cumsum(-1), (1, 0))
    i = torch.arange(n).unsqueeze(-1)
    j = torch.arange(n)
    means = (sums[..., 1:].unsqueeze(-2) - sums[..., :-1].unsqueeze(-1)) / (j - i + 1).clamp(min=1)
    out = []
    for k in range(n):
        inner = means[..., : k + 1, k:].amin(-1)
        out.append(inner.amax(-1))
    return torch.stack(out, -1)


PROJECTIONS = {
    "simplex projection": simplex,
    "sparsemax, implicit": SparsemaxImplicit.apply,
    "euclidean ball": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=0.8),
    "l1 ball": l1_ball,
    "box projection": lambda x: torch.minimum(torch.maximum(x, x.new_tensor(-0.5)), 0 * x + 0.7),
    "orthant projection": lambda x: x.clamp(min=0),
    "affine projection": affine_set,
    "halfspace": lambda x: x - F.relu(x.sum(-1, keepdim=True) - 0.1) / x.shape[-1],
    "hyperplane": lambda x: x - x.mean(-1, keepdim=True),
    "second-order cone": second_order_cone,
    "group shrinkage": lambda x: x * F.relu(1 - 0.3 / x.norm(dim=-1, keepdim=True)),
    "isotonic regression": isotonic,
    "infinity-norm shrinkage": lambda x: x - l1_ball(x),
}
