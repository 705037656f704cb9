"""Clean layers that solve: unrolled, for few steps or to the end, and implicit."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from makers import rand, randn
from testing.seeded.case import Clean, apply, dot, outer, positive_definite
from testing.seeded.clean_projections import simplex


def _case(kind, function, inputs, batch=(0,), name=None, **known):
    return Clean(name or kind, kind, lambda: function, inputs, batch, **known)


def _dictionary(y, atoms=8):
    return (randn(y.shape[-1], atoms, seed=7) / y.shape[-1] ** 0.5).to(y)


def _shrink(z, threshold):
    return z.sign() * F.relu(z.abs() - threshold)


# --- unrolled -------------------------------------------------------------------------------------


def fista(steps):
    def layer(y, weight):
        D = _dictionary(y)
        step = 1 / torch.linalg.matrix_norm(D, 2) ** 2
        z = before = y.new_zeros(*y.shape[:-1], D.shape[-1])
        for k in range(steps):
            point = z + k / (k + 3) * (z - before)
            before, z = z, _shrink(point - step * (point @ D.T - y) @ D, step * weight)
        return z

    return layer


def pdhg(steps):
    """Total variation of a signal by the primal–dual method."""

    def layer(y, weight):
        x, extrapolated, p = y, y, torch.zeros_like(y[..., 1:])
        for _ in range(steps):
            p = p + 0.5 * extrapolated.diff(dim=-1)
            p = torch.minimum(torch.maximum(p, -weight), weight)
            before, x = x, (x + 0.5 * (F.pad(p, (0, 1)) - F.pad(p, (1, 0))) + 0.5 * y) / 1.5
            extrapolated = 2 * x - before
        return x

    return layer


def logistic_newton(A, b):
    """argmin Σ log(1 + exp(−b·Ax)) + ½‖x‖² by Newton's method."""
    x = A.new_zeros(*A.shape[:-2], A.shape[-1])
    identity = torch.eye(A.shape[-1]).to(A)
    for _ in range(12):
        s = torch.sigmoid(-b * apply(A, x))
        gradient = x - apply(A.mT, s * b)
        hessian = identity + A.mT @ ((s * (1 - s)).unsqueeze(-1) * A)
        x = x - torch.linalg.solve(hessian, gradient)
    return x


def cube_root(x):
    """Newton's method for y³ + y = x."""
    y = torch.zeros_like(x)
    for _ in range(30):
        y = y - (y**3 + y - x) / (3 * y * y + 1)
    return y


def sinkhorn(regularisation, steps):
    def layer(cost):
        scores = -cost / regularisation
        f = g = torch.zeros_like(cost[..., 0])
        for _ in range(steps):
            f = -(scores + g.unsqueeze(-2)).logsumexp(-1)
            g = -(scores + f.unsqueeze(-1)).logsumexp(-2)
        return (scores + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()

    return layer


def descent(Q, c):
    step = 1 / Q.abs().sum(-1).amax(-1, keepdim=True)
    x = torch.zeros_like(c)
    for _ in range(12):
        x = x - step * (apply(Q, x) - c)
    return x


def projected_simplex(Q, c):
    """argmin over the simplex of ½xᵀQx − cᵀx by 60 projected steps."""
    step = 1 / Q.abs().sum(-1).amax(-1, keepdim=True)
    x = simplex(torch.zeros_like(c))
    for _ in range(60):
        x = simplex(x - step * (apply(Q, x) - c))
    return x


def mirror_descent(c):
    """Entropic steps on the simplex for ½‖x − c‖²."""
    logits = torch.zeros_like(c)
    for _ in range(40):
        logits = logits - 0.5 * (logits.softmax(-1) - c)
    return logits.softmax(-1)


def power_iteration(x):
    """The leading eigenvector of xxᵀ + diag, after 15 steps."""
    M = x @ x.mT + torch.diag(torch.arange(x.shape[-2]).to(x))
    v = torch.ones_like(x[..., 0])
    for _ in range(15):
        v = F.normalize(apply(M, v), dim=-1)
    return v


def conjugate_gradients(Q, c):
    x, r, p = torch.zeros_like(c), c, c
    for _ in range(c.shape[-1] - 1):
        Qp = apply(Q, p)
        length = dot(r, r) / dot(p, Qp)
        x, rest = x + length * p, r - length * Qp
        p, r = rest + dot(rest, rest) / dot(r, r) * p, rest
    return x


# --- implicit -------------------------------------------------------------------------------------


class Equilibrium(Function):
    """z = tanh(Wz + x), differentiated at the fixed point."""

    @staticmethod
    def forward(ctx, x, W):
        z = torch.zeros_like(x)
        for _ in range(300):
            z = torch.tanh(z @ W.T + x)
        ctx.save_for_backward(z, W)
        return z

    @staticmethod
    def backward(ctx, g):
        z, W = ctx.saved_tensors
        slope = 1 - z * z
        system = torch.eye(len(W)).to(W) - slope.unsqueeze(-1) * W
        v = slope * torch.linalg.solve(system.mT, g)
        return v, v.T @ z


class AffineProjection(Function):
    """argmin ½‖x − y‖² subject to Ax = b, with all terms of its KKT conditions."""

    @staticmethod
    def forward(ctx, A, b, y):
        multiplier = torch.linalg.solve(A @ A.mT, apply(A, y) - b)
        x = y - apply(A.mT, multiplier)
        ctx.save_for_backward(A, x, multiplier)
        return x

    @staticmethod
    def backward(ctx, g):
        A, x, multiplier = ctx.saved_tensors
        v = torch.linalg.solve(A @ A.mT, apply(A, g))
        kept = g - apply(A.mT, v)
        return -outer(multiplier, kept) - outer(v, x), v, kept


class RelativeTolerance(Function):
    """argmin ½xᵀQx − cᵀx, backward by conjugate gradients to a relative residual."""

    @staticmethod
    def forward(ctx, Q, c):
        x = torch.linalg.solve(Q, c)
        ctx.save_for_backward(Q, x)
        return x

    @staticmethod
    def backward(ctx, g):
        Q, x = ctx.saved_tensors
        v, r, p = torch.zeros_like(g), g, g
        size = g.norm(dim=-1, keepdim=True)
        for _ in range(3 * g.shape[-1]):
            open_ = r.norm(dim=-1, keepdim=True) > 1e-14 * size
            Qp = apply(Q.mT, p)
            length = torch.where(open_, dot(r, r) / dot(p, Qp), 0.0)
            v, rest = v + length * p, r - length * Qp
            p = torch.where(open_, rest + dot(rest, rest) / dot(r, r) * p, p)
            r = rest
        return -outer(v, x), v


class Bisection(Function):
    """y with y + sinh y = x, found by bisection, differentiated implicitly."""

    @staticmethod
    def forward(ctx, x):
        low, high = -x.abs() - 1, x.abs() + 1
        for _ in range(80):
            middle = (low + high) / 2
            above = middle + middle.sinh() > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        y = (low + high) / 2 + 0 * x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (1 + y.cosh())


def kkt_system(Q, c, A, b):
    """argmin ½xᵀQx − cᵀx subject to Ax = b, by one linear system."""
    m, n = A.shape[-2:]
    zero = A.new_zeros(*A.shape[:-2], m, m)
    system = torch.cat([torch.cat([Q, A.mT], -1), torch.cat([A, zero], -1)], -2)
    return torch.linalg.solve(system, torch.cat([c, b], -1))[..., :n]


def attached_newton(x):
    """The root of y³ + y = x: found detached, one Newton step attached."""
    with torch.no_grad():
        y = cube_root(x)
    return y - (y**3 + y - x) / (3 * y * y + 1)


def _lasso():
    return randn(3, 5, seed=2), torch.tensor(0.25, dtype=torch.float64)


def _quadratic(s):
    return lambda: (positive_definite(3, 4, 4, seed=s), randn(3, 4, seed=s + 1))


UNROLLED = [
    *(_case("fista", fista(n), _lasso, name=f"fista, {n} steps") for n in (1, 5, 30, 300)),
    *(
        _case(
            "primal–dual",
            pdhg(n),
            lambda: (randn(3, 8, seed=3), torch.tensor(0.3).double()),
            name=f"primal–dual, {n} steps",
        )
        for n in (3, 20, 400)
    ),
    _case(
        "newton, logistic",
        logistic_newton,
        lambda: (randn(3, 6, 3, seed=5), randn(3, 6, seed=6).sign() + 0.1),
        (0, 1),
    ),
    _case("newton, root", cube_root, lambda: (2 * randn(3, 5, seed=7),)),
    *(
        _case(
            "sinkhorn",
            sinkhorn(eps, n),
            lambda: (rand(2, 4, 4, seed=8),),
            name=f"sinkhorn {eps}, {n} steps",
        )
        for eps, n in ((1.0, 30), (0.2, 200), (0.5, 2))
    ),
    _case("gradient descent", descent, _quadratic(10), (0, 1)),
    _case("projected gradient", projected_simplex, _quadratic(12), (0, 1)),
    _case("mirror descent", mirror_descent, lambda: (randn(3, 5, seed=14),)),
    _case("power iteration", power_iteration, lambda: (randn(3, 4, 2, seed=15),)),
    _case("conjugate gradients", conjugate_gradients, _quadratic(16), (0, 1)),
]

IMPLICIT = [
    _case(
        "equilibrium", Equilibrium.apply, lambda: (randn(3, 4, seed=20), 0.3 * randn(4, 4, seed=21))
    ),
    _case(
        "affine projection, implicit",
        AffineProjection.apply,
        lambda: (randn(3, 2, 5, seed=22), randn(3, 2, seed=23), randn(3, 5, seed=24)),
        (0, 1, 2),
    ),
    _case("relative tolerance", RelativeTolerance.apply, _quadratic(25), (0, 1)),
    _case("bisection", Bisection.apply, lambda: (2 * randn(3, 5, seed=27),)),
    _case(
        "quadratic program, equality",
        kkt_system,
        lambda: (
            positive_definite(3, 4, 4, seed=28),
            randn(3, 4, seed=29),
            randn(3, 2, 4, seed=30),
            randn(3, 2, seed=31),
        ),
        (0, 1, 2, 3),
    ),
    _case("attached newton step", attached_newton, lambda: (2 * randn(3, 5, seed=32),)),
]

SOLVERS = [*UNROLLED, *IMPLICIT]
