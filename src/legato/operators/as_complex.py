"""Real variables in front of complex operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from legato._support.tree import Var, real_like
from legato.errors import InputError
from legato.operators.base import Operator


@dataclass(frozen=True, eq=False, repr=False)
class AsComplex(Operator):
    r"""Real numbers seen as complex ones, x ↦ x + 0i; the adjoint takes the real part; ‖K‖ = 1.

    .. math:: \mathrm{Re}⟨Kx, y⟩ = ⟨x, \mathrm{Re}\, y⟩

    ``Fourier(mask) @ AsComplex()`` measures a real image; without it the unknown is complex.

    >>> K = legato.operators.AsComplex()
    >>> K(torch.tensor([1.0])), K.adjoint(torch.tensor([2.0 + 3.0j]))
    (tensor([1.+0.j]), tensor([2.]))
    """

    @property
    def coupled(self) -> tuple[int, int]:
        return 0, 0

    def __call__(self, x: Var) -> Var:
        if x.is_complex():
            raise InputError("AsComplex acts on a real variable, but x is complex: leave it out.")
        return torch.complex(x, torch.zeros_like(x))

    def adjoint(self, y: Var) -> Var:
        return real_like(y)

    def norm(self, like: Var | None = None) -> Tensor:
        return torch.tensor(1.0) if like is None else real_like(like).new_ones(())

    def absolute(self) -> Operator:
        return self
