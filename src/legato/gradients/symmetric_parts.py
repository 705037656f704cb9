"""The derivatives of the two halves of a proximal gradient step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var
from legato.algorithms import SplitStep
from legato.gradients.linearisation import pull_back


class SymmetricParts:
    r"""The Jacobians of the two halves of a step at one state, each of them symmetric.

    .. math:: A_x = PB, \qquad B = \frac{∂\,\mathrm{half}}{∂s}, \quad
              P = \frac{∂\,\mathrm{step}}{∂\,\mathrm{half}}

    On flat vectors; see :class:`~legato.CG`, which lives on them.
    Reference: Moreau (1965), Proposition 12.b, for the symmetry of P.

    >>> problem = lg.Composite(lg.Quadratic(0.5 * torch.eye(2), torch.zeros(2)), lg.L1(0.1))
    >>> algorithm = lg.ForwardBackward(1.0)
    >>> stationary, state = algorithm.fixed_point_map(algorithm.init(problem, torch.tensor([1.0, 0.0])))
    >>> parts = legato.gradients.symmetric_parts.SymmetricParts(stationary.halves(problem), state)
    >>> parts.smooth(torch.ones(2)), parts.prox(torch.ones(2))
    (tensor([0.5000, 0.5000]), tensor([1., 0.]))
    """

    along: Callable[[Tensor], Tensor] | None
    """v ↦ Πv for the projection Π onto the range of P, where it is known."""

    def __init__(self, halves: SplitStep, state: Var) -> None:
        self._state = tree.detach(state)
        with torch.enable_grad():
            self._inputs = [t.detach().requires_grad_() for t in tree.leaves(state)]
            self._half = tree.leaves(halves.forward(tree.rebuild(state, self._inputs)))
            self._middle = [t.detach().requires_grad_() for t in self._half]
            self._after = tree.leaves(halves.backward(tree.rebuild(state, self._middle)))
        with torch.no_grad():
            project = halves.range_projector(tree.rebuild(state, [t.detach() for t in self._half]))
        self.along = project and (lambda v: tree.flatten(project(tree.unflatten(self._state, v))))

    def smooth(self, v: Tensor) -> Tensor:
        """Bv."""
        return self._product(self._half, self._inputs, v)

    def prox(self, v: Tensor) -> Tensor:
        """Pv."""
        return self._product(self._after, self._middle, v)

    def _product(self, outputs: list[Tensor], inputs: list[Tensor], v: Tensor) -> Tensor:
        cotangents = tree.leaves(tree.unflatten(self._state, v))
        return tree.flatten(tuple(pull_back(outputs, inputs, cotangents)))
