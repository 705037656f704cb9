"""Solvers whose gradient is that of something else, or of a part of the data."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from makers import rand, randn
from testing.seeded.case import Fault, apply, outer, positive_definite, register
from testing.seeded.case import well_conditioned as well

SOLVERS: list[Fault] = []


@register(
    SOLVERS,
    "missing multiplier",
    "The gradient of A lacks the term of the multipliers.",
    lambda: (randn(3, 2, 5, seed=1), randn(3, 2, seed=2), randn(3, 5, seed=3)),
    batch=(0, 1, 2),
)
class AffineProjection(Function):
    """x = argmin ½‖x − y‖² subject to Ax = b, by its KKT conditions."""

    @staticmethod
    def forward(ctx, A, b, y):
        x = y - apply(A.mT, torch.linalg.solve(A @ A.mT, apply(A, y) - b))
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx, g):
        A, x = ctx.saved_tensors
        v = torch.linalg.solve(A @ A.mT, apply(A, g))
        return -outer(v, x), v, g - apply(A.mT, v)


@register(
    SOLVERS,
    "detached parameter",
    "The weight of the norm is read as a number, so that it gets no gradient.",
    lambda: (randn(3, 5, seed=1), torch.tensor(0.2, dtype=torch.float64)),
)
def sparse_codes(y, weight):
    """30 steps of ISTA for argmin ½‖Dz − y‖² + λ‖z‖₁."""
    D = (randn(5, 8, seed=7) / 5**0.5).to(y)
    step = 1 / torch.linalg.matrix_norm(D, 2) ** 2
    threshold = step * weight.detach()
    z = y.new_zeros(*y.shape[:-1], 8)
    for _ in range(30):
        moved = z - step * (z @ D.T - y) @ D
        z = moved.sign() * F.relu(moved.abs() - threshold)
    return z


@register(
    SOLVERS,
    "requires_grad subset",
    "Where A needs no gradient, that of b is solved for with A instead of its transpose.",
    lambda: (well(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class FactoredSystem(Function):
    """x = A⁻¹b by one LU factorisation for both passes."""

    @staticmethod
    def forward(ctx, A, b):
        factors, pivots = torch.linalg.lu_factor(A)
        x = torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(factors, pivots, x)
        return x

    @staticmethod
    def backward(ctx, g):
        factors, pivots, x = ctx.saved_tensors
        wants_A = ctx.needs_input_grad[0]
        v = torch.linalg.lu_solve(factors, pivots, g.unsqueeze(-1), adjoint=wants_A).squeeze(-1)
        return -outer(v, x) if wants_A else None, v


@register(
    SOLVERS,
    "one step for the limit",
    "Only the last step is differentiated: the factor (I − A)⁻¹ is missing.",
    lambda: (randn(3, 4, seed=1), 0.3 * randn(4, 4, seed=2)),
)
def equilibrium(x, W):
    """z = tanh(Wz + x)."""
    z = torch.zeros_like(x)
    with torch.no_grad():
        for _ in range(200):
            z = torch.tanh(z @ W.T + x)
    return torch.tanh(z @ W.T + x)


@register(
    SOLVERS,
    "truncated unrolling",
    "The first 198 of 200 iterations are not differentiated.",
    lambda: (rand(2, 4, 4, seed=1),),
)
def transport_plan(cost):
    """Sinkhorn's plan between uniform marginals, regularised by 0.1."""
    scores = -cost / 0.1
    f = g = torch.zeros_like(cost[..., 0])
    for k in range(200):
        with torch.set_grad_enabled(torch.is_grad_enabled() and k >= 198):
            f = -(scores + g.unsqueeze(-2)).logsumexp(-1)
            g = -(scores + f.unsqueeze(-1)).logsumexp(-2)
    return (scores + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()


@register(
    SOLVERS,
    "not converged",
    "The gradient is that of the solution, the output an iterate far from it.",
    lambda: (positive_definite(3, 4, 4, seed=1), randn(3, 4, seed=2)),
    batch=(0, 1),
)
class FewGradientSteps(Function):
    """x ≈ argmin ½xᵀQx − cᵀx by 5 gradient steps, differentiated implicitly."""

    @staticmethod
    def forward(ctx, Q, c):
        step = 1 / Q.abs().sum(-1).amax(-1, keepdim=True)
        x = torch.zeros_like(c)
        for _ in range(5):
            x = x - step * (apply(Q, x) - c)
        ctx.save_for_backward(Q, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Q, x = ctx.saved_tensors
        v = torch.linalg.solve(Q.mT, g)
        return -outer(v, x), v
