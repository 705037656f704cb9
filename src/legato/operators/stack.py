"""Several operators on the same variable, side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from legato._support.tree import Var, tree_map
from legato.errors import InputError
from legato.operators.base import Operator, as_operator, common_norms, surplus_axes


class Stack(Operator):
    r"""Operators applied to the same x; the result is a tuple.

    .. math:: Kx = (K_1 x, …, K_k x), \quad K^*y = \sum_j K_j^* y_j, \quad ‖K‖² ≤ \sum_j ‖K_j‖²

    Its dual variable is a tuple: use :class:`~legato.Product` and :class:`~legato.Separable`.
    Reference: Condat (2013).

    >>> K = lg.Stack(lg.Identity(), lg.Differences(dims=(-1,)))
    >>> K(torch.tensor([1.0, 3.0]))
    (tensor([1., 3.]), tensor([[2., 0.]]))
    """

    def __init__(self, *operators: Operator | Tensor) -> None:
        if not operators:
            raise InputError("Stack needs at least one operator.")
        self.operators = tuple(as_operator(K) for K in operators)

    def __call__(self, x: Var) -> Var:
        return tuple(K(x) for K in self.operators)

    def adjoint(self, y: Var) -> Var:
        if not isinstance(y, tuple) or len(y) != len(self.operators):
            raise InputError(f"The adjoint of Stack needs a tuple of {len(self.operators)} duals.")
        total, *rest = (K.adjoint(part) for K, part in zip(self.operators, y, strict=True))
        for term in rest:
            total = tree_map(torch.add, total, term)
        return total

    @property
    def coupled(self) -> tuple[int, int] | None:
        pairs = [K.coupled for K in self.operators]
        if None in pairs:
            return None
        return max(p[0] for p in pairs if p), max(p[1] for p in pairs if p)

    def start(self) -> Var | None:
        return next((x for x in (K.start() for K in self.operators) if x is not None), None)

    def norm(self, like: Var | None = None) -> Tensor:
        norms = common_norms([(K, like, surplus_axes(self, K)) for K in self.operators])
        return torch.linalg.vector_norm(norms, dim=0)

    def __repr__(self) -> str:
        return f"Stack({', '.join(map(repr, self.operators))})"

    def absolute(self) -> Operator:
        return Stack(*(K.absolute() for K in self.operators))
