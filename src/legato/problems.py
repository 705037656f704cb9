"""Problems are data: which terms make up the energy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from legato._support.tree import Var, tree_map
from legato.errors import InputError, MissingConjugateError
from legato.functions import Function, Linear, Separable, Zero
from legato.functions.smooth import as_operator
from legato.operators import Operator


def _require_function(term: object, role: str) -> None:
    if not isinstance(term, Function):
        raise InputError(
            f"The {role} term must be a legato function, not {type(term).__name__}. "
            "Wrap a differentiable callable as legato.Smooth(callable)."
        )


def _require_smooth(term: Function) -> None:
    if not term.is_smooth:
        raise InputError(
            f"The smooth term {type(term).__name__} has no gradient. Pass it as nonsmooth, or "
            "replace the problem by legato.smoothed(problem, mu)."
        )


@dataclass(frozen=True, eq=False)
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
    nonsmooth: Function = field(default_factory=Zero)

    def __post_init__(self) -> None:
        _require_function(self.smooth, "smooth")
        _require_function(self.nonsmooth, "nonsmooth")
        _require_smooth(self.smooth)

    def objective(self, x: Var) -> Tensor:
        """f(x) + g(x)."""
        return self.smooth.value(x) + self.nonsmooth.value(x)

    def start(self) -> Var | None:
        """Zeros of the variable's shape, or None where the data do not tell it."""
        found = self.smooth.start()
        return self.nonsmooth.start() if found is None else found


@dataclass(frozen=True, eq=False)
class Saddle:
    r"""A convex–concave saddle-point problem, for :class:`~legato.PrimalDual`.

    .. math:: \min_x \max_y\; ⟨Kx, y⟩ + f(x) + g(x) − h^*(y) \;=\; \min_x f(x) + g(x) + h(Kx)

    ``dual`` is h*, e.g. ``L1(λ).dual()`` for h = λ‖·‖₁. Reference: Chambolle and Pock (2016).

    >>> y = torch.tensor([0.0, 1.0])
    >>> data = lg.SquaredNorm() + lg.Linear(-y)
    >>> problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(0.25).dual(), nonsmooth=data)
    >>> found = lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(500))
    >>> found.x, bool(problem.gap(found.x, found.y) < 1e-6)
    (tensor([0.2500, 0.7500]), True)
    """

    operator: Operator
    dual: Function
    nonsmooth: Function = field(default_factory=Zero)
    smooth: Function = field(default_factory=Zero)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", as_operator(self.operator))
        if not isinstance(self.operator, Operator):
            raise InputError(
                f"operator must be a matrix or a legato operator, not "
                f"{type(self.operator).__name__}."
            )
        _require_function(self.dual, "dual")
        _require_function(self.nonsmooth, "nonsmooth")
        _require_function(self.smooth, "smooth")
        _require_smooth(self.smooth)

    def objective(self, x: Var) -> Tensor:
        """The primal energy f(x) + g(x) + h(Kx)."""
        own = self.smooth.value(x) + self.nonsmooth.value(x)
        return own + self.dual.conjugate(self.operator(x))

    def dual_objective(self, y: Var) -> Tensor:
        """The dual energy −h*(y) − (f + g)*(−K*y)."""
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
        return -self.dual.value(y) - term.conjugate(argument)

    def gap(self, x: Var, y: Var) -> Tensor:
        """The primal–dual gap: an upper bound of objective(x) − min, zero at a saddle point."""
        return self.objective(x) - self.dual_objective(y)

    def start(self) -> Var | None:
        """Zeros of the primal variable's shape, or None where the data do not tell it."""
        found = self.smooth.start()
        return self.nonsmooth.start() if found is None else found

    def tilted(self, primal: Var, dual: Var) -> Saddle:
        """The problem with ⟨primal, x⟩ + ⟨dual, y⟩ added to its saddle function."""
        return replace(
            self,
            nonsmooth=_tilt(self.nonsmooth, primal),
            dual=_tilt(self.dual, tree_map(torch.neg, dual)),
        )


Problem = Composite | Saddle


def _tilt(term: Function, c: Var) -> Function:
    if not isinstance(c, tuple):
        return term + Linear(c)
    blocks = term.blocks if isinstance(term, Separable) else (term,) * len(c)
    return Separable(*(_tilt(block, part) for block, part in zip(blocks, c, strict=True)))
