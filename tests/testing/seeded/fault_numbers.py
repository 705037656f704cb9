"""Layers that are wrong for some numbers: NaN, small or large ones, another precision, chance."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from makers import rand, randn
from testing.seeded.case import Fault, apply, dot, outer, positive_definite, register

NUMBERS: list[Fault] = []


@register(
    NUMBERS,
    "NaN swallowed, nan_to_num",
    "NaN in the costs comes out as a plan with zeros.",
    lambda: (rand(2, 4, 4, seed=1),),
)
def forgiving_transport_plan(cost):
    """Sinkhorn's plan between uniform marginals, regularised by 0.2."""
    scores = -cost / 0.2
    f = g = torch.zeros_like(cost[..., 0])
    for _ in range(100):
        f = -(scores + g.unsqueeze(-2)).logsumexp(-1)
        g = -(scores + f.unsqueeze(-1)).logsumexp(-2)
    return (scores + f.unsqueeze(-1) + g.unsqueeze(-2)).exp().nan_to_num()


@register(
    NUMBERS,
    "NaN swallowed, comparison",
    "NaN is neither above the threshold nor below its negative, and comes out as 0.",
    lambda: (randn(3, 5, seed=1),),
)
def soft_threshold(x):
    """argmin ½(z − x)² + 0.3|z|."""
    zero = torch.zeros_like(x)
    return torch.where(x > 0.3, x - 0.3, torch.where(x < -0.3, x + 0.3, zero))


@register(
    NUMBERS,
    "NaN swallowed, clamp",
    "fmax and fmin prefer a number to NaN, so that NaN comes out as the lower bound.",
    lambda: (2 * randn(3, 5, seed=1),),
)
def box_projection(x):
    """The nearest point of [−1, 1]ⁿ."""
    return torch.fmin(torch.fmax(x, x.new_tensor(-1.0)), x.new_tensor(1.0))


@register(
    NUMBERS,
    "cotangent threshold",
    "The backward solver stops at an absolute residual: small cotangents give zero.",
    lambda: (positive_definite(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class AbsoluteTolerance(Function):
    """x = argmin ½xᵀQx − cᵀx, the backward system by conjugate gradients."""

    @staticmethod
    def forward(ctx, Q, c):
        x = torch.linalg.solve(Q, c)
        ctx.save_for_backward(Q, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Q, x = ctx.saved_tensors
        v, r, p = torch.zeros_like(g), g, g
        for _ in range(4 * g.shape[-1]):
            open_ = r.norm(dim=-1, keepdim=True) > 1e-8
            Qp = apply(Q.mT, p)
            length = torch.where(open_, dot(r, r) / dot(p, Qp), 0.0)
            v, rest = v + length * p, r - length * Qp
            p = torch.where(open_, rest + dot(rest, rest) / dot(r, r) * p, p)
            r = rest
        return -outer(v, x), v


@register(
    NUMBERS,
    "cotangent clamped",
    "Cotangents beyond ±10 are cut off.",
    lambda: (randn(3, 5, seed=1),),
)
class SafeSoftplus(Function):
    """y = log(1 + eˣ)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(x, threshold=40)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clamp(-10, 10) * x.sigmoid()


@register(
    NUMBERS,
    "single precision inside",
    "A float64 input is computed in float32 and cast back.",
    lambda: (randn(3, 5, seed=1),),
)
def single_precision_norm(x):
    """x/√(1 + ‖x‖²)."""
    y = x.float()
    return (y / (1 + dot(y, y)).sqrt()).to(x.dtype)


@register(
    NUMBERS,
    "gradient dtype",
    "The gradient is returned in float32; autograd casts it, and nine digits are gone.",
    lambda: (randn(3, 5, seed=1),),
)
class SinglePrecisionGradient(Function):
    """y = tanh x."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g * (1 - y * y)).float()


@register(
    NUMBERS,
    "output dtype",
    "The weights are float64 whatever the input is, and so is the output.",
    lambda: (randn(3, 5, seed=1),),
)
def weighted_softmax(x):
    """softmax(x) with weights for its entries, normalised again."""
    p = x.softmax(-1) * torch.linspace(0.5, 1.5, x.shape[-1], dtype=torch.float64)
    return p / p.sum(-1, keepdim=True)


@register(
    NUMBERS,
    "chance",
    "The sketch is drawn anew at each call, so no two answers agree.",
    lambda: (randn(6, 4, seed=1), randn(3, 6, seed=2)),
    batch=(1,),
)
def sketched_ridge(A, b):
    """argmin ½‖S(Ax − b)‖² + ½‖x‖² with a random matrix S."""
    S = (torch.eye(6, dtype=A.dtype) + 0.1 * torch.randn(6, 6, dtype=A.dtype)).to(A)
    SA, Sb = S @ A, b @ S.T
    return torch.linalg.solve(SA.T @ SA + torch.eye(4).to(A), (Sb @ SA).T).T


@register(
    NUMBERS,
    "saturation",
    "The backward pass cuts the exponent off at 20: right for ordinary inputs, wrong beyond.",
    lambda: (25 * randn(3, 5, seed=2),),
)
class SquaredSoftplus(Function):
    """y = ½ log(1 + eˣ)²."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * F.softplus(x, threshold=40).square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(max=20).exp().log1p() * x.sigmoid()
