"""Backward passes that take the wrong entries: axes, sums, supports, borders, ties."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from makers import randn
from testing.seeded.case import Fault, apply, dot, outer, register, spread
from testing.seeded.case import well_conditioned as well

INDICES: list[Fault] = []


@register(
    INDICES,
    "symmetric only",
    "The backward pass solves with A where it needs its transpose.",
    lambda: (well(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class LinearSystem(Function):
    """x = A⁻¹b."""

    @staticmethod
    def forward(ctx, A, b):
        x = torch.linalg.solve(A, b)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx, g):
        A, x = ctx.saved_tensors
        v = torch.linalg.solve(A, g)
        return -outer(v, x), v


@register(
    INDICES,
    "transposed axis",
    "The backward pass sums along columns where the forward pass sums along rows.",
    lambda: (randn(2, 4, 4, seed=1),),
)
class RowIntegral(Function):
    """Running sums along the rows of an image."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-2).cumsum(-2).flip(-2)


@register(
    INDICES,
    "wrong broadcast axis",
    "The gradient of the weights is summed over features, not over the batch.",
    lambda: (randn(5, 5, seed=1), randn(5, seed=2)),
)
class FeatureWeights(Function):
    """y = w ⊙ x with one weight for each feature."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(-1)


@register(
    INDICES,
    "square only",
    "The backward pass divides by the number of columns; the forward pass by that of rows.",
    lambda: (randn(3, 6, 4, seed=1), randn(3, 6, seed=2)),
    batch=(0, 1),
)
class MeanRidge(Function):
    """x = argmin ‖Ax − b‖²/2m + ½λ‖x‖² for m rows."""

    weight = 0.3

    @staticmethod
    def forward(ctx, A, b):
        m, n = A.shape[-2:]
        H = A.mT @ A / m + MeanRidge.weight * torch.eye(n, dtype=A.dtype)
        x = torch.linalg.solve(H, apply(A.mT, b) / m)
        ctx.save_for_backward(A, b, H, x)
        return x

    @staticmethod
    def backward(ctx, g):
        A, b, H, x = ctx.saved_tensors
        v = torch.linalg.solve(H, g) / A.shape[-1]
        return outer(b - apply(A, x), v) - outer(apply(A, v), x), apply(A, v)


@register(
    INDICES,
    "inverse permutation",
    "The backward pass applies the permutation again where it needs its inverse.",
    lambda: (torch.stack([spread(6, seed=s) for s in (1, 2, 3)]),),
)
class SortedValues(Function):
    """The entries in ascending order."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(-1)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return g.gather(-1, order)


def _kernel(x):
    k = torch.tensor([1.0, 2.0, 1.0], dtype=x.dtype) / 4
    return (k.unsqueeze(-1) * k).view(1, 1, 3, 3)


@register(
    INDICES,
    "wrong boundary",
    "The blur wraps around; its backward pass pads with zeros.",
    lambda: (randn(2, 1, 6, 6, seed=1),),
)
class ResidualDenoiser(Function):
    """y = x − ½(x − k∗x) with periodic boundaries and a symmetric kernel k."""

    @staticmethod
    def forward(ctx, x):
        return 0.5 * (x + F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), _kernel(x)))

    @staticmethod
    def backward(ctx, g):
        return 0.5 * (g + F.conv2d(g, _kernel(g), padding=1))


@register(
    INDICES,
    "mean for a sum",
    "The gradient of the temperature is averaged over the batch instead of summed.",
    lambda: (randn(3, 5, seed=1), torch.tensor(0.7, dtype=torch.float64)),
)
class TemperatureSoftmax(Function):
    """p = softmax(x/t)."""

    @staticmethod
    def forward(ctx, x, t):
        p = (x / t).softmax(-1)
        ctx.save_for_backward(x, t, p)
        return p

    @staticmethod
    def backward(ctx, g):
        x, t, p = ctx.saved_tensors
        slope = p * (g - dot(g, p))
        return slope / t, -(slope * x).sum(-1).mean() / t**2


@register(
    INDICES,
    "expanded input",
    "The gradient of the broadcast bias is that of the batch's first element, not the sum.",
    lambda: (randn(3, 5, seed=1), randn(1, 5, seed=2)),
)
class SquaredShift(Function):
    """y = (x + b)², b of shape (1, n)."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x + b)
        return (x + b).square()

    @staticmethod
    def backward(ctx, g):
        (moved,) = ctx.saved_tensors
        slope = 2 * g * moved
        return slope, slope[:1]


@register(
    INDICES,
    "active set off by one",
    "The backward pass leaves the smallest positive entry out of the support.",
    lambda: (0.5 * randn(3, 5, seed=1),),
)
class Sparsemax(Function):
    """The nearest point of the simplex."""

    @staticmethod
    def forward(ctx, x):
        ordered = x.sort(-1, descending=True).values
        counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        size = (1 + counts * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        level = (ordered.cumsum(-1).gather(-1, size - 1) - 1) / size
        ctx.save_for_backward(x > ordered.gather(-1, size - 1))
        return (x - level).clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (support,) = ctx.saved_tensors
        mean = (g * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
        return (g - mean) * support


@register(
    INDICES,
    "wrong tie",
    "At 0 the gradient is 0, though the slopes are 1 on the right and 0.1 on the left.",
    lambda: (torch.tensor([[1.0, 0.0, -2.0], [0.0, 3.0, 0.5]], dtype=torch.float64),),
)
class LeakyRelu(Function):
    """y = max(x, x/10)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.maximum(x, 0.1 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x > 0).to(g.dtype) + 0.1 * (x < 0).to(g.dtype))
