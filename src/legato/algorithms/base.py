"""The contract of an algorithm: a pure map on states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import wide_norm
from legato._support.tree import Var
from legato.errors import DivergenceError

State = Any
"""A NamedTuple of tensors (or tuples of tensors)."""


class SplitStep(NamedTuple):
    r"""A step taken apart into two maps with symmetric Jacobians.

    .. math:: \mathrm{step} = \mathrm{backward} ∘ \mathrm{forward}

    ``symmetric`` says that they are so in any case; where it is False, that is to be checked.
    ``range_projector(half)`` projects onto the range of backward's Jacobian there; None if unknown.
    Reference: Moreau (1965), for the proximal half.

    >>> problem = lg.Composite(lg.LeastSquares(torch.eye(2), torch.ones(2)), lg.L1(0.1))
    >>> lg.ForwardBackward(1.0).halves(problem).symmetric
    True
    """

    forward: Callable[[State], State]
    backward: Callable[[State], State]
    symmetric: bool
    range_projector: Callable[[State], Callable[[State], State] | None]


class Algorithm(ABC):
    r"""An iteration x⁺ = 𝒜(x, θ), given by hyper-parameters only.

    Subclasses are frozen dataclasses. Three methods are required; the others have defaults that
    suit an algorithm whose state holds points, not mirror coordinates.
    Reference: Section 4.2 of Ochs et al. (2016).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> algorithm = lg.ForwardBackward()
    >>> state = algorithm.step(problem, algorithm.init(problem, None))
    >>> algorithm.solution(state)
    tensor([2.0000, 0.0000])
    """

    @abstractmethod
    def init(self, problem: Any, x0: Var | None) -> State:
        """The first state; refuses a problem or start that this algorithm cannot work with."""

    @abstractmethod
    def step(self, problem: Any, state: State) -> State:
        """One iteration, without side effects."""

    @abstractmethod
    def solution(self, state: State) -> Var:
        """The point that a state stands for."""

    def resume(self, problem: Any, state: State) -> State:
        """A state of an earlier solution, perhaps of another problem, as a start for this one."""
        return state

    def dual(self, state: State) -> Var | None:
        """The dual variable, for algorithms that have one."""
        return None

    def points(self, state: State) -> Var:
        """Everything that must stand still at convergence, as points (not mirror coordinates)."""
        return self.solution(state)

    def fixed_point_map(self, state: State) -> tuple[Algorithm, State]:
        """An autonomous map with the same fixed points, and ``state`` in its terms.

        The fixed-point family differentiates this map: momentum, averages and line searches vanish
        at a solution and would only blur it.
        """
        return self, state

    def with_variables(self, state: State, stationary: State) -> State:
        """``state`` with its variables taken from a state of the stationary map."""
        return stationary

    def transport(self, before: State, after: State, cotangent: State) -> State:
        """Carry a cotangent of the state from ``before`` to ``after`` (see Geometry.transport)."""
        return cotangent

    def halves(self, problem: Any) -> SplitStep | None:
        """This (stationary) step as two symmetric halves, where it has them: see ``CG``."""
        return None

    def steps(self, problem: Any, state: State) -> dict[str, Any]:
        """The step sizes in use, for the report."""
        return {}

    def require_sound(self, state: State) -> None:
        """Raise if a state cannot have come from a healthy iteration."""
        if not all(bool(torch.isfinite(t).all()) for t in tree.leaves(state)):
            raise DivergenceError(
                f"{type(self).__name__} diverged: its state holds NaN or infinity. Try a smaller "
                "step, or look for non-finite values in the problem."
            )

    @torch.no_grad()
    def residual(self, before: State, after: State) -> Tensor:
        """The change of the points in one iteration, relative where their norm exceeds 1."""
        old, new = self.points(before), self.points(after)
        change = _size(tree.tree_map(torch.sub, new, old))
        return (change / torch.clamp(_size(new), min=1)).to(tree.leaves(new)[0].dtype)


def _size(x: Var) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([wide_norm(t) for t in tree.leaves(x)]))
