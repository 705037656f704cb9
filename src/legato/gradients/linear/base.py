"""The contract of a solver of (I − M)w = ξ, and the certificate that comes with every result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from legato.engine import Engine
from legato.errors import GradientError, InputError

Product = Callable[[Tensor], Tensor]
"""w ↦ Mw on vectors, or on each row of a matrix."""


def engine_behind(product: Product) -> Engine | None:
    """What a solver's own recurrences run by, where the product comes with an engine."""
    return getattr(product, "engine", None)


@dataclass
class LinearResult:
    """A solution of (I − M)w = ξ with its certificate ‖ξ − (I − M)w‖ ≤ residual·‖ξ‖.

    Args:
        solution: w.
        residual: what can be certified, hence never below the rounding error of w itself; the
            largest, where ξ has rows.
        iterations: the number of products, or of steps, that were taken.
        converged: whether the residual is what was asked for, in every row.
        spectral_radius: an estimate of that of M, where there is one; the largest of all rows.
        tol: the tolerance that was asked for, as far as the precision can reach it.
        certain: how near to 1 that radius may be and be told from it, where it is known to be that
            of all of M; None where it is what ξ excites.

    >>> M = torch.diag(torch.tensor([0.5, 0.25]))
    >>> result = lg.GMRES().solve(lambda w: M @ w, torch.ones(2))
    >>> result.converged, result.residual < 1e-6, result.iterations
    (True, True, 2)
    """

    solution: Tensor
    residual: float
    iterations: int
    converged: bool
    spectral_radius: float | None = None
    tol: float | None = None
    certain: float | None = None

    @classmethod
    def zero(cls, xi: Tensor) -> LinearResult:
        """The answer to ξ = 0."""
        return cls(torch.zeros_like(xi), 0.0, 0, True)


class LinearSolver(ABC):
    """Solves (I − M)w = ξ, given w ↦ Mw.

    Reference: Saad (2003), *Iterative Methods for Sparse Linear Systems*.

    >>> M = torch.diag(torch.tensor([0.5, 0.25]))
    >>> lg.GMRES().solve(lambda w: M @ w, torch.ones(2)).solution
    tensor([2.0000, 1.3333])
    """

    takes_factors: ClassVar[bool] = False
    """Whether ``solve`` wants M as :class:`Factored` where the step has such factors."""

    takes_saddle: ClassVar[bool] = False
    """Whether ``solve`` wants M as :class:`SaddleFactors` where the step has them."""

    takes_rows: ClassVar[bool] = False
    """Whether ``solve`` takes a matrix ξ, whose rows are separate systems, each to be solved to the
    tolerance. One that does not gets all rows as one vector, and is judged row by row later."""

    @abstractmethod
    def solve(self, product: Product, xi: Tensor) -> LinearResult:
        """Find w; never raise for a missed tolerance, report it."""


@dataclass(frozen=True)
class Factored:
    r"""M = BP as its two symmetric factors; a proximal gradient step in the Euclidean geometry.

    Args:
        B: v ↦ Bv, the derivative of the gradient step.
        P: v ↦ Pv, the derivative of the prox.
        project: v ↦ Πv, the orthogonal projection onto the range of P, where it is known.
        symmetric: whether both are known to be symmetric; otherwise a solver has to check.
        together: as M, for many v at once, along one more axis in front.
        engine: what a solver's own recurrences run by; None for step by step.

    >>> M = legato.gradients.Factored(lambda v: 0.5 * v, lambda v: v * torch.tensor([1.0, 0.0]))
    >>> M(torch.ones(2))
    tensor([0.5000, 0.0000])
    """

    B: Product
    P: Product
    project: Product | None = None
    symmetric: bool = False
    together: Product | None = None
    engine: Engine | None = None

    def __call__(self, v: Tensor) -> Tensor:
        return self.B(self.P(v))


@dataclass(frozen=True)
class SaddleFactors:
    r"""M of a primal–dual step in Euclidean geometries, as what it is made of.

    .. math:: M w = \begin{pmatrix} s − τHs − σK^*t \\ t − τKs \end{pmatrix}, \qquad
              t = Q w_y, \quad s = P(w_x + 2σK^*t)

    Reference: the transposed derivative of Algorithm 1 of Chambolle and Pock (2016).

    Args:
        size: how many entries of a row are primal; the others are dual.
        P: the derivative of the prox of τg.
        Q: the derivative of the prox of σh*.
        K: the operator.
        back: its adjoint.
        H: the Hessian of f; None where f is affine.
        tau: τ, one number, or one for each row.
        sigma: σ.
        engine: what a solver's own recurrences run by; None for step by step.
    """

    size: int
    P: Product
    Q: Product
    K: Product
    back: Product
    H: Product | None
    tau: Tensor
    sigma: Tensor
    engine: Engine | None = None

    def __call__(self, w: Tensor) -> Tensor:
        first, second = self.parted(w)
        t = self.Q(second)
        return self.pulled(self.P(first + 2 * self.sigma * self.back(t)), t)

    def parted(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The primal and the dual part."""
        return w[..., : self.size], w[..., self.size :]

    def pulled(self, s: Tensor, t: Tensor) -> Tensor:
        """What lies in front of the proxes, on what they made of w."""
        top = s - self.sigma * self.back(t)
        if self.H is not None:
            top = top - self.tau * self.H(s)
        return torch.cat([top, t - self.tau * self.K(s)], -1)


# --- arithmetic of rows ---------------------------------------------------------------------------


def dot(u: Tensor, v: Tensor) -> Tensor:
    """⟨u, v⟩ of a vector, or of each row, as a tensor that broadcasts against it."""
    return (u * v).sum(-1, keepdim=True)


def norm(v: Tensor) -> Tensor:
    """‖v‖ of a vector, or of each row, as a tensor that broadcasts against it."""
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a/b, and 0 where b is 0: a row that is finished stays where it is."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


# --- the certificate ------------------------------------------------------------------------------


def residual_of(product: Product, w: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
    """r = ξ − (I − M)w, and the ‖r‖/‖ξ‖ that can be certified, for each row.

    Rounding w and Mw alone changes r by u(‖w‖ + ‖Mw‖), with u the unit roundoff, so no residual
    below that means anything. Where I − M is singular, w may grow until the difference loses ξ
    altogether and r is exactly 0: without this floor the certificate would call that converged.
    """
    image = product(w)
    r = xi - w + image
    roundoff = torch.finfo(xi.dtype).eps / 2
    certain = torch.maximum(norm(r), roundoff * (norm(w) + norm(image)))
    return r, torch.where(certain == 0, certain, certain / norm(xi))


def worst(residuals: Tensor) -> float:
    """The largest of all rows; NaN where there is one. A GPU is waited for once."""
    return float(residuals.amax())


def attainable(tol: float, xi: Tensor) -> float:
    """A tolerance that this precision can reach."""
    return max(tol, 50 * torch.finfo(xi.dtype).eps)


def require_settings(tol: float, iterations: int) -> None:
    """Refuse settings with which nothing can be solved."""
    if not tol > 0 or iterations < 1:
        raise InputError(
            f"A linear solver needs tol > 0 and at least 1 iteration, not {tol}, {iterations}."
        )


def require_finite_products(products: Tensor) -> None:
    """Refuse a map whose products are NaN or infinite, of which no solver can make anything."""
    if not bool(torch.isfinite(products).all()):
        raise GradientError(
            "The derivative of the step at the solution holds NaN or infinite values: a step or "
            "the data are too large or too small for their precision, or a callable is not "
            "differentiable there. Scale the data to the size of 1, or use float64."
        )
