"""Energies of several unknowns: each of them is a part of a tuple."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from legato._support.checks import require_tensor
from legato._support.tree import Var, real_like
from legato.errors import InputError
from legato.operators.base import Operator


class Shape(NamedTuple):
    """What is known of an unknown before there is one."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, eq=False, repr=False)
class Part(Operator):
    r"""One of several unknowns, (x_1, …, x_k) ↦ x_i; ‖K‖ = 1. :func:`parts` makes them.

    Its adjoint puts zeros in the other places. A tuple of unknowns counts as one problem: leading
    axes are no batch.

    >>> u, v = legato.operators.parts(torch.zeros(1), torch.zeros(2))
    >>> u, (u + u)((torch.ones(1), torch.ones(2)))
    (Part(0), tensor([2.]))
    """

    index: int
    shapes: tuple[Shape, ...]

    def __call__(self, x: Var) -> Var:
        if not isinstance(x, tuple) or len(x) != len(self.shapes):
            found = f"a tuple of {len(x)}" if isinstance(x, tuple) else "one tensor"
            raise InputError(f"{self!r} is one of {len(self.shapes)} unknowns, but x is {found}.")
        return x[self.index]

    def adjoint(self, y: Var) -> Var:
        return tuple(y if k == self.index else shape.zeros() for k, shape in enumerate(self.shapes))

    def start(self) -> Var:
        return tuple(shape.zeros() for shape in self.shapes)

    def norm(self, like: Var | None = None) -> Tensor:
        return real_like(self.shapes[self.index].zeros()).new_ones(())

    def absolute(self) -> Operator:
        return self

    def __repr__(self) -> str:
        return f"Part({self.index})"


def parts(*examples: Tensor) -> tuple[Part, ...]:
    r"""Unknowns shaped like these tensors, to be seen by the terms of one energy.

    The solution is a tuple of them. Total generalised variation is

    .. math:: \min_{u, w}\; \tfrac12‖u − y‖^2 + α_1‖∇u − w‖_{2,1} + α_0‖Ew‖_{2,1}

    Reference: Bredies, Kunisch, Pock (2010).

    >>> y, D = torch.tensor([[0.0, 1.0, 2.0, 5.0]] * 4), lg.Differences()
    >>> u, w = legato.operators.parts(y, D(y))
    >>> slope, bend = lg.GroupL1(0.2, dim=-3), lg.GroupL1(0.4, dim=-3)
    >>> tgv = slope @ (D @ u - w) + bend @ (lg.SymmetrisedGradient() @ w)
    >>> image, field = lg.solve(lg.SquaredDistance(y) @ u + tgv, stop=lg.Stop(200)).x
    >>> image.shape, field.shape
    (torch.Size([4, 4]), torch.Size([2, 4, 4]))
    """
    if len(examples) < 2:
        raise InputError("parts needs an example of each of at least two unknowns.")
    for example in examples:
        require_tensor(example, "An example for parts")
    shapes = tuple(Shape(t.shape, t.dtype, t.device) for t in examples)
    return tuple(Part(k, shapes) for k in range(len(shapes)))
