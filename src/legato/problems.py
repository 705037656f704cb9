"""Problems are data: which terms are handled by a gradient, which by a prox, which by a dual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from legato._support.tree import Var, tree_map
from legato.errors import InputError, MissingConjugateError
from legato.functions import Function, Linear, Separable, Zero
from legato.functions.algebra import terms_of
from legato.functions.shapes import coupled_through, first_start, most_coupled, start_behind
from legato.operators import Operator, as_operator


def _require_function(term: object, role: str) -> None:
    if not isinstance(term, Function):
        raise InputError(
            f"The {role} term must be a legato function, not {type(term).__name__}. "
            "Wrap a differentiable callable as legato.Smooth(callable)."
        )


def _require_smooth(term: Function) -> None:
    if not term.is_smooth:
        raise InputError(
            f"The smooth term {term!r} has no gradient. Pass it as nonsmooth, or replace the "
            "problem by legato.smoothed(problem, mu)."
        )


def _batch_axes(x: Var, coupled: int | None) -> int:
    """How many leading axes of x are a batch; its last axis never is."""
    if coupled is None or isinstance(x, tuple):
        return 0
    return max(0, x.ndim - max(1, coupled))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Composite:
    r"""A smooth term plus a prox-friendly one, for :class:`~legato.ForwardBackward`.

    .. math:: \min_x\; f(x) + g(x)

    Reference: Section 5.1 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> problem.objective(torch.tensor([2.0, 0.0]))
    tensor(2.6250)
    """

    smooth: Function
    nonsmooth: Function

    # Written out, here and below: torch.compile does not follow a dataclass into a default factory.
    def __init__(self, smooth: Function, nonsmooth: Function | None = None) -> None:
        object.__setattr__(self, "smooth", smooth)
        object.__setattr__(self, "nonsmooth", Zero() if nonsmooth is None else nonsmooth)
        _require_function(self.smooth, "smooth")
        _require_function(self.nonsmooth, "nonsmooth")
        _require_smooth(self.smooth)

    def __repr__(self) -> str:
        return f"Composite(smooth={self.smooth!r}, nonsmooth={self.nonsmooth!r})"

    def batch(self, x: Var) -> int:
        """How many leading axes of x are a batch of separate problems: no term couples them."""
        return _batch_axes(x, most_coupled((self.smooth.coupled, self.nonsmooth.coupled)))

    def objective(self, x: Var) -> Tensor:
        """f(x) + g(x), for each element of a batch."""
        batch = self.batch(x)
        return self.smooth.values(x, batch) + self.nonsmooth.values(x, batch)

    def start(self) -> Var | None:
        """Zeros of the variable's shape, or None where the data do not tell it."""
        return first_start((self.smooth, self.nonsmooth))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Saddle:
    r"""A sum with a term behind an operator, as a saddle-point problem for :class:`PrimalDual`.

    .. math:: \min_x f(x) + g(x) + h(Kx) \;=\; \min_x \max_y\; ⟨Kx, y⟩ + f(x) + g(x) − h^*(y)

    ``penalty`` is h. Who has only h* writes ``h_star.conjugate()``. Reference: Chambolle and Pock
    (2016).

    Args:
        operator: K, a matrix or an :class:`~legato.Operator`.
        penalty: h, whose conjugate needs a prox in the algorithm's dual geometry.
        smooth: f, with a gradient.
        nonsmooth: g, with a prox in the algorithm's geometry.

    >>> data = lg.SquaredDistance(torch.tensor([0.0, 1.0]))
    >>> problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(0.25), nonsmooth=data)
    >>> found = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(500))
    >>> found.x, bool(problem.gap(found.x, found.y) < 1e-6)
    (tensor([0.2500, 0.7500]), True)
    """

    operator: Operator
    penalty: Function
    smooth: Function
    nonsmooth: Function

    def __init__(
        self, operator: Any, penalty: Function, smooth: Function | None = None,
        nonsmooth: Function | None = None,
    ) -> None:  # fmt: skip
        object.__setattr__(self, "operator", as_operator(operator))
        object.__setattr__(self, "penalty", penalty)
        object.__setattr__(self, "smooth", Zero() if smooth is None else smooth)
        object.__setattr__(self, "nonsmooth", Zero() if nonsmooth is None else nonsmooth)
        _require_function(self.penalty, "penalty")
        _require_function(self.smooth, "smooth")
        _require_function(self.nonsmooth, "nonsmooth")
        _require_smooth(self.smooth)

    def __repr__(self) -> str:
        return (
            f"Saddle({self.operator!r}, {self.penalty!r}, smooth={self.smooth!r}, "
            f"nonsmooth={self.nonsmooth!r})"
        )

    @property
    def conjugate(self) -> Function:
        """h*, the term of the dual variable; made once, and again where h has changed."""
        found = self.penalty.conjugate()
        object.__setattr__(self, "_conjugate", found)  # which h itself does not hold
        return found

    def batch(self, x: Var) -> int:
        """How many leading axes of x are a batch of separate problems: no term couples them."""
        behind = coupled_through(self.operator, self.penalty)
        return _batch_axes(x, most_coupled((self.smooth.coupled, self.nonsmooth.coupled, behind)))

    def objective(self, x: Var) -> Tensor:
        """The primal energy f(x) + g(x) + h(Kx), for each element of a batch."""
        batch = self.batch(x)
        own = self.smooth.values(x, batch) + self.nonsmooth.values(x, batch)
        return own + self.penalty.values(self.operator(x), batch)

    def dual_objective(self, y: Var) -> Tensor:
        """The dual energy −h*(y) − (f + g)*(−K*y), for each element of a batch."""
        if isinstance(self.smooth, Zero):
            term = self.nonsmooth
        elif isinstance(self.nonsmooth, Zero):
            term = self.smooth
        else:
            raise MissingConjugateError(
                "The conjugate of smooth + nonsmooth is not known in closed form, so the "
                "primal–dual gap cannot be computed. If the smooth term is Linear or a kernel such "
                "as SquaredNorm, add it to nonsmooth instead; else use the residual."
            )
        argument = tree_map(torch.neg, self.operator.adjoint(y))
        batch = self.batch(argument)
        return -self.conjugate.values(y, batch) - term.conjugate().values(argument, batch)

    def gap(self, x: Var, y: Var) -> Tensor:
        """The primal–dual gap: an upper bound of objective(x) − min, zero at a saddle point."""
        return self.objective(x) - self.dual_objective(y)

    def start(self) -> Var | None:
        """Zeros of the primal variable's shape, or None where the data do not tell it."""
        found = first_start((self.smooth, self.nonsmooth))
        if found is not None:
            return found
        return start_behind(self.operator, self.penalty)

    def with_linear_terms(self, primal: Var, dual: Var) -> Saddle:
        """The problem with ⟨primal, x⟩ + ⟨dual, y⟩ added to its saddle function."""
        conjugate = _plus_linear(self.conjugate, tree_map(torch.neg, dual))
        return replace(
            self,
            nonsmooth=_plus_linear(self.nonsmooth, primal),
            penalty=conjugate.conjugate(),
        )


Problem = Composite | Saddle


def _plus_linear(term: Function, c: Var) -> Function:
    if not isinstance(c, tuple):
        return term + Linear(c)
    blocks = term.blocks if isinstance(term, Separable) else (term,) * len(c)
    return Separable(*(_plus_linear(block, part) for block, part in zip(blocks, c, strict=True)))


@overload
def smoothed(problem: Problem, mu: Tensor | float) -> Composite: ...
@overload
def smoothed(problem: Function, mu: Tensor | float) -> Function: ...
def smoothed(problem: Problem | Function, mu: Tensor | float) -> Composite | Function:
    r"""The problem with its nonsmooth terms replaced by smooth ones that tend to them as μ → 0.

    .. math:: \min_x f(x) + g(x) + h(Kx) \;⟶\; \min_x f(x) + g_μ(x) + h_μ(Kx)

    Constraints x ≥ 0 and lo ≤ x ≤ hi become log barriers; norms become Σ w √(‖·‖² + μ²), also
    behind an operator; the simplex keeps its equality and gains μ Σ x log x (use the Entropy
    geometry). The result is an ordinary problem, or an ordinary energy for an energy: solve it, and
    differentiate it with ``Implicit(CG())``, which is a Hessian solve.
    Reference: Section 4.1 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> smooth = lg.smoothed(problem, mu=0.1)
    >>> lg.solve(smooth, lg.ForwardBackward(), stop=lg.Stop(500)).x.round(decimals=2)
    tensor([2.0000, 0.0500])
    >>> variation = lg.split(lg.SquaredDistance(b) + lg.L1(0.5) @ lg.Differences((-1,)))
    >>> lg.solve(lg.smoothed(variation, mu=0.01), stop=lg.Stop(500)).x.round(decimals=2)
    tensor([2.5000, 1.0000])
    """
    value = float(mu.detach()) if isinstance(mu, Tensor) else float(mu)
    if not value > 0:
        raise InputError(f"The smoothing parameter mu must be positive, not {value:g}.")
    if isinstance(problem, Function):
        return problem.smoothed(mu)
    if not isinstance(problem, Composite | Saddle):
        raise InputError(
            f"smoothed needs a Composite or Saddle problem or an energy, not "
            f"{type(problem).__name__}."
        )
    replaced = [term.smoothed(mu) for term in terms_of(problem.nonsmooth)]
    if isinstance(problem, Saddle):
        replaced.append(problem.penalty.smoothed(mu) @ problem.operator)
    smooth = [term for term in replaced if term.is_smooth]
    kept = [term for term in replaced if not term.is_smooth]
    return Composite(
        smooth=sum(smooth, problem.smooth),
        nonsmooth=sum(kept[1:], kept[0]) if kept else Zero(),
    )
