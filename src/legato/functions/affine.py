"""Terms without curvature or freedom: nothing, a linear term, an equality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import require_floating, require_tensor_or_number
from legato._support.tree import Var, tree_map
from legato.functions.base import Function, ProxParts, indicator
from legato.geometry import Geometry


@dataclass(frozen=True, eq=False, repr=False)
class Zero(Function):
    """No term at all, g(x) = 0 on the geometry's domain; its prox has no ties.

    >>> lg.Zero().prox(torch.tensor([3.0, -2.0]))
    tensor([ 3., -2.])
    """

    takes_complex: ClassVar[bool] = True

    def value(self, x: Var) -> Tensor:
        return tree.real_like(tree.leaves(x)[0]).new_zeros(())

    def values(self, x: Var, batch: int) -> Tensor:
        first = tree.real_like(tree.leaves(x)[0])
        return first.new_zeros(first.shape[:batch])

    @property
    def coupled(self) -> int:
        return 0

    def grad(self, x: Var) -> Var:
        return tree_map(torch.zeros_like, x)

    def hessian(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[-1], x.shape[-1])

    def lipschitz(self) -> float:
        return 0.0

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.full_like(tree.real_like(y), torch.inf)

    def make_conjugate(self) -> Function:
        return Equality(0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Function):
    r"""A linear term, g(x) = Re⟨c, x⟩; in a sum it only shifts the argument of the other's prox.

    .. math:: \mathrm{prox}_{α(g + ⟨c, ·⟩)}(y) = \mathrm{prox}_{αg}(y − αc)

    Its conjugate is the indicator of {c}. Reference: Section 6.3 of Ochs et al. (2016).

    >>> g = lg.NonNegative() + lg.Linear(torch.tensor([1.0, -1.0]))
    >>> g.prox(torch.zeros(2), 0.5)
    tensor([0.0000, 0.5000])
    """

    takes_complex: ClassVar[bool] = True

    c: Tensor

    def __post_init__(self) -> None:
        require_floating(self.c, "c of Linear")

    def summands(self, x: Var) -> Tensor:
        return tree.product(self.c, x)

    @property
    def coupled(self) -> int:
        return 0

    def start(self) -> Var | None:
        return torch.zeros_like(self.c)

    def grad(self, x: Var) -> Var:
        return self.c.expand_as(x)

    def hessian(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[-1], x.shape[-1])

    def lipschitz(self) -> float:
        return 0.0

    def prox_parts(self, geometry: Geometry) -> ProxParts:
        return ProxParts(Zero(), shifts=((1.0, self.c),))

    def make_conjugate(self) -> Function:
        return Equality(self.c)


@dataclass(frozen=True, eq=False, repr=False)
class Equality(Function):
    r"""The indicator of x = b; ``Equality(b) @ A`` asks for Ax = b.

    Its conjugate is the linear function ⟨b, ·⟩, so that in a saddle-point problem its dual variable
    is the multiplier of the constraint. Its prox is b, without ties.

    >>> nearest = lg.SquaredDistance(torch.zeros(2)) + lg.Equality(torch.ones(1)) @ torch.ones(1, 2)
    >>> lg.solve(nearest, stop=lg.Stop(500, tol=1e-6)).x.round(decimals=4)
    tensor([0.5000, 0.5000])
    """

    takes_complex: ClassVar[bool] = True

    b: Tensor | float

    def __post_init__(self) -> None:
        require_tensor_or_number(self.b, "b of Equality")

    def summands(self, x: Var) -> Tensor:
        away = [(t - self.b).abs() for t in tree.leaves(x)]
        return indicator(away[0] if len(away) == 1 else torch.cat([t.flatten() for t in away]))

    @property
    def coupled(self) -> int:
        return 0

    def start(self) -> Var | None:
        if isinstance(self.b, Tensor) and self.b.ndim > 0:
            return torch.zeros_like(self.b)
        return None

    def bounds(self) -> tuple[Any, Any]:
        return self.b, self.b

    def kinks(self, y: Tensor, step: Any) -> Tensor:
        return torch.full_like(tree.real_like(y), torch.inf)

    def make_conjugate(self) -> Function:
        if isinstance(self.b, Tensor):
            return Linear(self.b)
        return Zero() if self.b == 0 else Linear(torch.tensor(self.b, dtype=torch.float64))
