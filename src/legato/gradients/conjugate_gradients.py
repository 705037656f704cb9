"""Conjugate gradients for (I − M)w = ξ, where M is symmetric in a metric."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from legato.errors import GradientError
from legato.gradients.linear_solvers import (
    LinearResult,
    LinearSolver,
    Product,
    attainable,
    nothing,
    random_vector,
    require_sound,
    spectral_radius,
)

_RITZ = 400
"""Steps that the estimate of the spectrum looks at: its matrix is written out."""


@dataclass(frozen=True)
class CG(LinearSolver):
    r"""Conjugate gradients: one product a step and short recurrences, where M = BP.

    .. math:: ⟨(I − BP)u, v⟩_P = ⟨u, Pv⟩ − ⟨BPu, Pv⟩

    is symmetric and ≥ 0 for symmetric B ≤ I and 0 ≤ P ≤ I. So it is for every proximal gradient
    step in the Euclidean geometry, with B = I − αH for a Hessian H, and P the derivative of the
    prox, which is symmetric (P = I without a prox: the Hessian solve of Section 4.1 of Ochs et al.,
    2016). What is not symmetric is detected by a random probe and refused.
    Reference: Hestenes and Stiefel (1952); Moreau (1965) for P.

    >>> weight = torch.tensor(1.0, requires_grad=True)
    >>> data = lg.LeastSquares(torch.diag(torch.tensor([1.0, 0.7])), torch.tensor([3.0, 2.0]))
    >>> problem = lg.Composite(data, lg.L1(weight))
    >>> solution = lg.solve(problem, lg.ForwardBackward(), gradient=lg.Implicit(lg.CG()))
    >>> solution.x.sum().backward()
    >>> weight.grad.round(decimals=3), solution.backward.converged
    (tensor(-3.0410), True)
    """

    tol: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        require_sound(self.tol, self.iterations)

    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        if float(torch.linalg.vector_norm(xi)) == 0:
            return nothing(xi)
        require_symmetric(product, xi)
        return self.solve_in_metric(_identity, product, xi)

    def solve_in_metric(
        self, metric: Product, product: Product, xi: Tensor, along: Product | None = None
    ) -> LinearResult:
        """Solve (I − BP)w = ξ, given v ↦ Pv and v ↦ Bv, and v ↦ Πv onto P's range if known."""
        size = float(torch.linalg.vector_norm(xi))
        if size == 0:
            return nothing(xi)
        tol = attainable(self.tol, xi)
        w, r, residual = torch.zeros_like(xi), xi, 1.0
        count, radius = 0, 0.0
        # The recurrence may think better of itself than the true residual allows: then once more.
        while count < self.iterations and residual > tol:
            w, steps = _run(metric, product, along, w, r, tol * size, self.iterations - count)
            count += len(steps)
            radius = max(radius, _farthest_from_one(steps[:_RITZ]))
            r = xi - w + product(metric(w))
            previous, residual = residual, float(torch.linalg.vector_norm(r)) / size
            if not residual < 0.9 * previous:
                break
        if not (residual <= 2 * tol and radius < 1):  # spoiled coefficients, or none: ask the map
            radius = spectral_radius(lambda v: product(metric(v)), xi, 20)
        return LinearResult(w, residual, count, residual <= 2 * tol, radius)


def _run(
    metric: Product,
    product: Product,
    along: Product | None,
    w: Tensor,
    r: Tensor,
    target: float,
    most: int,
) -> tuple[Tensor, list[tuple[float, float]]]:
    """Conjugate gradients from w with residual r: the new w, and the coefficients of the steps.

    P does not see what lies in its null space, where r may grow until its rounding drowns Pr; then
    this run ends. Where Π is known, or P is a multiple of it, as for every constraint with flat
    faces, what P does not see of r moves to w at once, (I − BP)n being n there, and nothing can
    grow. In the end w + r has the residual BPr, which is small wherever Pr is.
    """
    eps = torch.finfo(r.dtype).eps
    s = metric(r)
    c = None if along is not None else _multiple_of_projection(metric, r)
    if c is not None:
        along = _scaled(metric, 1 / c)
    if along is not None:
        seen = along(r)
        w, r = w + (r - seen), seen
    p, t = r, s  # the direction, and P times it
    energy = float(torch.dot(r, s))
    steps: list[tuple[float, float]] = []
    while len(steps) < most and energy > 0:
        v, move = p - product(t), p
        if along is not None:
            whole, v = v, along(v)
            move = p - whole + v
        curvature = float(torch.dot(t, v))
        if not 0 < curvature < math.inf:
            break
        alpha = energy / curvature
        w = torch.add(w, move, alpha=alpha)
        r = torch.add(r, v, alpha=-alpha)
        s = metric(r) if c is None else c * r
        products = torch.stack((torch.dot(r, s), torch.dot(s, s), torch.dot(r, r)))
        new, length, size = products.tolist()  # one wait for all three
        steps.append((alpha, new / energy))
        if length <= max(target, 8 * eps * math.sqrt(size)) ** 2:
            break
        p = torch.add(r, p, alpha=new / energy)
        t = torch.add(s, t, alpha=new / energy)
        energy = new
    return w + r, steps


def _multiple_of_projection(metric: Product, like: Tensor) -> float | None:
    """c, where P = cΠ for an orthogonal projection Π, judged by a random vector.

    A cotangent would not do as a judge: it may lie where P happens to be a multiple of I.
    """
    s = metric(random_vector(like))
    square = float(torch.dot(s, s))
    if square == 0:
        return None
    twice = metric(s)
    c = float(torch.dot(s, twice)) / square
    rest = float(torch.linalg.vector_norm(twice - c * s))
    return c if rest <= 16 * torch.finfo(s.dtype).eps * math.sqrt(square) else None


def _scaled(product: Product, factor: float) -> Product:
    return lambda v: factor * product(v)


def _farthest_from_one(steps: list[tuple[float, float]]) -> float:
    """max|1 − θ| over the Ritz values θ of I − M, which the coefficients hold.

    Reference: Golub and Van Loan, *Matrix Computations*, Section 10.2.
    """
    if not steps:
        return 0.0
    alphas = torch.tensor([a for a, _ in steps], dtype=torch.float64)
    betas = torch.tensor([b for _, b in steps[:-1]], dtype=torch.float64).clamp(min=0)
    diagonal = 1 / alphas
    diagonal[1:] += betas / alphas[:-1]
    beside = betas.sqrt() / alphas[:-1]
    T = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
    return float((1 - torch.linalg.eigvalsh(T)).abs().max())


def _identity(v: Tensor) -> Tensor:
    return v


def require_symmetric(product: Product, xi: Tensor) -> None:
    """Refuse a map that is not symmetric, by one random probe."""
    generator = torch.Generator().manual_seed(1)
    u, v = torch.randn(2, xi.numel(), generator=generator, dtype=torch.float64).to(xi)
    left, right = torch.dot(product(u), v), torch.dot(u, product(v))
    scale = torch.linalg.vector_norm(u) * torch.linalg.vector_norm(v)
    tolerance = 1e3 * torch.finfo(xi.dtype).eps
    if float((left - right).abs()) > tolerance * float(scale):
        raise GradientError(
            f"CG needs a step whose derivative is symmetric, but ⟨Mu, v⟩ − ⟨u, Mv⟩ = "
            f"{float(left - right):g}. It takes proximal gradient steps in the Euclidean geometry "
            "with one step size (one per batch element); for anything else use "
            "Implicit(GMRES()) or Implicit(BiCGStab())."
        )
