"""Smoothing a constrained problem, so that the implicit function theorem applies to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce, singledispatch
from operator import add

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.errors import InputError
from legato.functions import (
    L1,
    Box,
    Function,
    NegativeEntropy,
    NonNegative,
    Simplex,
    Sum,
    Zero,
)
from legato.problems import Composite


@dataclass(frozen=True, eq=False)
class LogBarrier(Function):
    r"""The logarithmic barrier of lo < x < hi, +∞ outside.

    .. math:: f(x) = −μ \sum_i \log(x_i − lo_i) + \log(hi_i − x_i)

    Its gradient is not Lipschitz: solve with :class:`~legato.Backtracking` from an interior start.
    Reference: Section 4.1 and the toy example of Ochs et al. (2016).
    """

    mu: Tensor | float
    lo: Tensor | float = 0.0
    hi: Tensor | float = torch.inf

    def value(self, x: Var) -> Tensor:
        total = x.new_zeros(())
        for slack in (x - self.lo, self.hi - x):
            inside = (slack > 0) & torch.isfinite(slack)  # an infinite end has no barrier
            safe = torch.where(inside, slack, torch.ones_like(slack))
            # +∞ outside, where the logarithm would be NaN: a line search can compare it.
            outside = torch.where(
                slack > 0, torch.zeros_like(slack), torch.full_like(slack, torch.inf)
            )
            total = total + torch.where(inside, -self.mu * torch.log(safe), outside).sum()
        return total

    def grad(self, x: Var) -> Var:
        return self.mu / (self.hi - x) - self.mu / (x - self.lo)

    def hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self.mu / (self.hi - x) ** 2 + self.mu / (x - self.lo) ** 2)


@dataclass(frozen=True, eq=False)
class SmoothAbsolute(Function):
    r"""A smooth ℓ1 norm, f(x) = Σ w_i √(x_i² + μ²), with L = max w/μ.

    Reference: Charbonnier et al. (1997).
    """

    weight: Tensor | float
    mu: Tensor | float

    def value(self, x: Var) -> Tensor:
        return (self.weight * torch.sqrt(x * x + self.mu**2)).sum()

    def grad(self, x: Var) -> Var:
        return self.weight * x / torch.sqrt(x * x + self.mu**2)

    def hessian(self, x: Tensor) -> Tensor:
        return torch.diag_embed(self.weight * self.mu**2 * (x * x + self.mu**2) ** -1.5)

    def lipschitz(self) -> Tensor | float:
        weight = self.weight.detach().amax() if isinstance(self.weight, Tensor) else self.weight
        mu = self.mu.detach() if isinstance(self.mu, Tensor) else self.mu
        return weight / mu


def smoothed(problem: Composite, mu: Tensor | float) -> Composite:
    r"""The problem with its nonsmooth term replaced by a smooth one that tends to it as μ → 0.

    .. math:: \min_x f(x) + g(x) \;⟶\; \min_x f(x) + g_μ(x)

    Constraints x ≥ 0 and lo ≤ x ≤ hi become log barriers, the ℓ1 norm √(x² + μ²); the simplex
    keeps its equality and gains μ Σ x log x (use the Entropy geometry). The result is an ordinary
    problem: solve it, and differentiate it with ``Implicit(CG())``, which is a Hessian solve.
    Reference: Section 4.1 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> smooth = lg.smoothed(problem, mu=0.1)
    >>> lg.solve(smooth, lg.ForwardBackward(), stop=lg.Stop(500)).x.round(decimals=2)
    tensor([2.0000, 0.0500])
    """
    if not isinstance(problem, Composite):
        raise InputError(f"smoothed needs a Composite problem, not {type(problem).__name__}.")
    value = float(mu.detach()) if isinstance(mu, Tensor) else float(mu)
    if not value > 0:
        raise InputError(f"The smoothing parameter mu must be positive, not {value:g}.")
    terms = problem.nonsmooth.terms if isinstance(problem.nonsmooth, Sum) else (problem.nonsmooth,)
    replaced = [smooth_version(term, mu) for term in terms]
    smooth = [t for t in replaced if t.is_smooth]
    kept = [t for t in replaced if not t.is_smooth]
    return Composite(
        smooth=reduce(add, smooth, problem.smooth),
        nonsmooth=reduce(add, kept) if kept else Zero(),
    )


@singledispatch
def smooth_version(term: Function, mu: Tensor | float) -> Function:
    """g_μ for one term; register your own with ``smooth_version.register``."""
    if term.is_smooth:
        return term
    raise InputError(
        f"No smoothing of {type(term).__name__} is known. NonNegative, Box, L1 and Simplex have "
        "one; add yours with legato.smoothing.smooth_version.register."
    )


@smooth_version.register
def _(term: NonNegative, mu: Tensor | float) -> Function:
    return LogBarrier(mu)


@smooth_version.register
def _(term: Box, mu: Tensor | float) -> Function:
    return LogBarrier(mu, term.lo, term.hi)


@smooth_version.register
def _(term: L1, mu: Tensor | float) -> Function:
    return SmoothAbsolute(term.weight, mu)


@smooth_version.register
def _(term: Simplex, mu: Tensor | float) -> Function:
    return term + NegativeEntropy(mu)  # not smooth: the equality stays with the prox
