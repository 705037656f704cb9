"""Smooth terms: value, gradient, Lipschitz constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from legato._support import tree
from legato._support.checks import holds, is_concrete, require_floating, require_nonnegative
from legato._support.graph import (
    beyond_autograd,
    fresh_leaf,
    kept_as_they_are,
    leaves_behind,
    where_transforms_work,
)
from legato._support.holding import version_of
from legato._support.tree import Var, expand_over, largest_over
from legato.errors import InputError, StepError
from legato.functions.base import Function
from legato.functions.complexity import require_real, require_same_numbers
from legato.functions.data import require_labels, require_symmetric
from legato.functions.restricted import Columns
from legato.operators import Dense, Operator, as_operator

_UNWEIGHTED = 1.0
"""The default weight, recognised by identity: no step multiplies by it."""


def _square(norm: Tensor) -> Tensor:
    """‖A‖²; refuses one that over- or underflows, from which no step can be derived."""
    square = norm**2
    smallest = torch.finfo(square.dtype).tiny  # the inverse of what is below is infinite
    lost = (norm > 0) & ((square < smallest) | torch.isinf(square))
    if not holds(~lost):
        raise StepError(
            f"‖A‖ = {float(norm.detach()[lost].flatten()[0]):g}, but its square is no number of "
            f"{norm.dtype}, so no step fits. Divide the data by such a number, or use float64."
        )
    return square


class _DataTerm(Function):
    """What least squares and logistic regression share: data seen through an operator."""

    operator: Operator
    b: Tensor

    def start(self) -> Var | None:
        return self.operator.start_behind(self.b)

    @property
    def coupled(self) -> int | None:
        return None if self.operator.coupled is None else self.operator.coupled[0]

    def _gram_on(self, columns: Columns, weights: Tensor | float) -> Tensor | None:
        """BᵀAᵀWAB for a matrix A that acts on rows as they are, else None."""
        if type(self.operator) is not Dense:  # a subclass may multiply by another matrix
            return None
        part = columns.of(self.operator.matrix.detach())
        if part is None or weights is _UNWEIGHTED:
            return None if part is None else part.mT @ part
        W = columns.each(weights)
        return part.mT @ ((W.unsqueeze(-1) if W.ndim else W).to(part) * part)

    def _lipschitz(self, bound: Tensor | float) -> Tensor | float:
        """‖A‖² times a bound of the loss's curvature, one for each element of a batch."""
        axes = self.operator.coupled
        if isinstance(bound, Tensor):
            bound = largest_over(bound, bound.ndim if axes is None else axes[1])
        square = _square(self.operator.norm(self.start()))
        return expand_over(bound * square, 0 if axes is None else axes[0])


@dataclass(frozen=True, eq=False, repr=False)
class LeastSquares(_DataTerm):
    r"""Least squares, f(x) = w/2 ‖Ax − b‖² with ∇f(x) = w A*(Ax − b) and L = w‖A‖².

    ``operator`` is a matrix or any :class:`~legato.Operator`. The prox is a linear system, without
    ties: a division, a factorised matrix, or conjugate gradients with an exact derivative.
    Reference: Beck and Teboulle (2009).

    >>> A, b = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 2.0])
    >>> f = lg.LeastSquares(A, b)
    >>> f(torch.zeros(2)), f.grad(torch.zeros(2))
    (tensor(2.5000), tensor([-1., -4.]))
    """

    nonnegative: ClassVar[tuple[str, ...]] = ("weight",)
    takes_complex: ClassVar[bool] = True

    operator: Operator
    b: Tensor
    weight: Tensor | float = _UNWEIGHTED

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", as_operator(self.operator))
        require_floating(self.b, "b of LeastSquares")
        require_nonnegative(self.weight, "The weight of LeastSquares")
        if isinstance(self.operator, Dense) and self.b.ndim:
            _require_rows(self.operator.matrix, self.b)

    def _residual(self, x: Var) -> Tensor:
        return self.operator.less(x, self.b)

    def summands(self, x: Var) -> Tensor:
        return 0.5 * self.weight * tree.square(self._residual(x))

    def grad(self, x: Var) -> Var:
        residual = self._residual(x)
        if self.weight is not _UNWEIGHTED:
            residual = self.weight * residual
        return require_same_numbers(x, self.operator.adjoint(residual))

    def descend(self, y: Var, step: Any, x: Var) -> Var:
        if self.weight is _UNWEIGHTED and isinstance(step, float):
            found = self.operator.pulled(y, step, self._residual(x))
            return require_same_numbers(x, found)
        return super().descend(y, step, x)

    def hessian(self, x: Tensor) -> Tensor:
        if type(self.operator) is not Dense:  # a subclass may multiply by another matrix
            return super().hessian(x)
        if not isinstance(self.weight, Tensor):
            return self.weight * self.operator.gram()
        if self.weight.ndim == 0 or self.weight.shape[-1] == 1:  # the same for all rows
            weight = self.weight if self.weight.ndim == 0 else self.weight.unsqueeze(-1)
            return weight * self.operator.gram()
        return self.operator.gram(self.weight)

    @torch.no_grad()
    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        found = self._gram_on(columns, self.weight)
        return super().hessian_on(x, columns) if found is None else found

    def lipschitz(self) -> Tensor | float | None:
        return self._lipschitz(self.weight)


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(Function):
    r"""A quadratic form, f(x) = ½⟨x, Qx⟩ + ⟨c, x⟩ with symmetric positive semi-definite Q.

    ∇f(x) = Qx + c and L = ‖Q‖; the prox is a linear system, without ties.
    Reference: Boyd and Vandenberghe, Section 4.4.

    >>> f = lg.Quadratic(2 * torch.eye(2), torch.tensor([-2.0, -4.0]))
    >>> lg.solve(lg.Composite(f), lg.ForwardBackward()).x
    tensor([1., 2.])
    """

    takes_complex: ClassVar[bool] = True

    Q: Operator
    c: Tensor

    def __post_init__(self) -> None:
        if isinstance(self.Q, Tensor) and self.Q.shape[-1] != self.Q.shape[-2]:
            raise InputError(f"Quadratic needs a square matrix, not {tuple(self.Q.shape)}.")
        object.__setattr__(self, "Q", as_operator(self.Q))
        require_floating(self.c, "c of Quadratic")
        require_symmetric(self.Q, self.c)

    def summands(self, x: Var) -> Tensor:
        return tree.product(x, 0.5 * self.Q(x) + self.c)

    @property
    def coupled(self) -> int | None:
        return None if self.Q.coupled is None else self.Q.coupled[0]

    def grad(self, x: Var) -> Var:
        return require_same_numbers(x, self.Q(x) + self.c)

    def hessian(self, x: Tensor) -> Tensor:
        return self.Q.matrix.clone() if type(self.Q) is Dense else super().hessian(x)

    @torch.no_grad()
    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        found = columns.between(self.Q.matrix.detach()) if type(self.Q) is Dense else None
        return super().hessian_on(x, columns) if found is None else found

    def lipschitz(self) -> Tensor | float:
        axes = self.Q.coupled
        return expand_over(self.Q.norm(self.start()), 0 if axes is None else axes[0])

    def start(self) -> Var:
        return torch.zeros_like(self.c)


@dataclass(frozen=True, eq=False, repr=False)
class Logistic(_DataTerm):
    r"""Logistic loss, f(x) = Σ log(1 + exp(−b_i (Ax)_i)) with labels b ∈ {−1, 1}; L = ‖A‖²/4.

    Reference: Hastie, Tibshirani, Friedman, *The Elements of Statistical Learning*, Section 4.4.

    >>> f = lg.Logistic(torch.eye(2), torch.tensor([1.0, -1.0]))
    >>> f.grad(torch.zeros(2))
    tensor([-0.5000,  0.5000])
    """

    operator: Operator
    b: Tensor
    _looked_at: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", as_operator(self.operator))
        require_labels(self.b, "Logistic")
        object.__setattr__(self, "_looked_at", version_of(self.b))

    def start(self) -> Var | None:
        if is_concrete() and version_of(self.b) != self._looked_at:  # changed in place since
            require_labels(self.b, "Logistic")
            object.__setattr__(self, "_looked_at", version_of(self.b))
        return super().start()

    def _margin(self, x: Var) -> Tensor:
        require_real(self, x)
        return self.b * self.operator(x)

    def summands(self, x: Var) -> Tensor:
        return F.softplus(-self._margin(x))

    def grad(self, x: Var) -> Var:
        return self.operator.adjoint(self._slope(x))

    def descend(self, y: Var, step: Any, x: Var) -> Var:
        if isinstance(step, float):
            return self.operator.pulled(y, step, self._slope(x))
        return super().descend(y, step, x)

    def _slope(self, x: Var) -> Tensor:
        """Of the loss, in what the operator sees."""
        require_real(self, x)
        against = -self.b
        return against * torch.sigmoid(against * self.operator(x))

    def hessian(self, x: Tensor) -> Tensor:
        if type(self.operator) is not Dense:
            return super().hessian(x)
        margin = self._margin(x)
        weights = torch.sigmoid(margin) * torch.sigmoid(-margin)  # p(1 − p) would cancel
        return self.operator.gram(self.b * self.b * weights)

    @torch.no_grad()
    def hessian_on(self, x: Var, columns: Columns) -> Tensor:
        margin = self._margin(x)
        weights = self.b * self.b * torch.sigmoid(margin) * torch.sigmoid(-margin)
        found = self._gram_on(columns, weights)
        return super().hessian_on(x, columns) if found is None else found

    def lipschitz(self) -> Tensor | float:
        return self._lipschitz(0.25 * self.b**2)


@contextmanager
def _inference_tensors_told() -> Iterator[None]:
    """What torch 2.11 cannot differentiate by, and later ones can, in words."""
    try:
        yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise InputError(
            "The callable of Smooth uses tensors that were made in inference mode, through which "
            "this torch computes no gradient. Make them outside of inference_mode, clone() them "
            "there, or solve under torch.no_grad()."
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class Smooth(Function):
    r"""Any differentiable callable (or nn.Module), f(x) = Σ callable(x), gradient by autograd.

    Reference: Griewank and Walther (2008).

    Args:
        callable: takes x and returns numbers that are added up.
        constant: a Lipschitz constant of ∇f, for an automatic step; without it give the algorithm
            a step or :class:`~legato.Backtracking`.
        coupled: how many trailing axes of x belong together, if leading ones are a batch and the
            callable keeps them. None: all axes.
        convex: say True where the callable is: only then may momentum be chosen by itself.

    >>> f = lg.Smooth(lambda x: torch.cosh(x - 2))
    >>> lg.solve(lg.Composite(f), lg.ForwardBackward(0.3), torch.zeros(1)).x.round(decimals=3)
    tensor([2.])
    """

    takes_complex: ClassVar[bool] = True

    callable: Callable[[Var], Tensor]
    constant: float | None = None
    coupled: int | None = None
    convex: bool = False

    def summands(self, x: Var) -> Tensor:
        value = self.callable(x)
        if value.is_complex():
            raise InputError(
                "The callable of Smooth returned complex numbers, but a function to be minimised "
                "is real: take .abs(), .real or a square."
            )
        return value

    def grad(self, x: Var) -> Var:
        if beyond_autograd(tree.leaves(x)):
            with where_transforms_work():
                return torch.func.grad(self.value)(x)
        attached = torch.is_grad_enabled()
        with torch.enable_grad():
            points = [t if attached and t.requires_grad else fresh_leaf(t) for t in tree.leaves(x)]
            with kept_as_they_are(), _inference_tensors_told():
                value = self.value(tree.rebuild(x, points))
            if not value.requires_grad:
                raise InputError(
                    "The callable of Smooth returned a value that does not depend on x through "
                    "autograd. Compute it with torch operations and without detach() or item()."
                )
            # The leaf made here requires gradients itself: only what else does asks for a graph.
            attached = attached and (
                any(t.requires_grad for t in tree.leaves(x)) or bool(leaves_behind([value], points))
            )
            grads = torch.autograd.grad(value, points, create_graph=attached)
        return tree.rebuild(x, grads)

    def lipschitz(self) -> float | None:
        return self.constant


def _require_rows(A: Tensor, b: Tensor) -> None:
    if b.shape[-1] not in (1, A.shape[-2]):
        raise InputError(
            f"LeastSquares needs a b with a number for each row of A, {A.shape[-2]} for A of shape "
            f"{tuple(A.shape)}, but b has shape {tuple(b.shape)}."
        )
