"""The contract of an algorithm: a pure map on states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import wide_norm
from legato._support.tree import Var
from legato.errors import DivergenceError
from legato.geometry import Euclidean, Geometry, Product

if TYPE_CHECKING:
    from legato.algorithms.semismooth.splitting import Splitting

P = TypeVar("P")
"""The kind of problem that an algorithm solves."""

S = TypeVar("S", bound=tuple[Any, ...])
"""Its state: a NamedTuple of tensors, or of tuples of tensors."""


class SplitStep(NamedTuple):
    r"""A step taken apart into two maps with symmetric Jacobians.

    .. math:: \mathrm{step} = \mathrm{backward} ∘ \mathrm{forward}

    ``symmetric`` says that they are so in any case; where it is False, that is to be checked.
    ``range_projector(half)`` projects onto the range of backward's Jacobian there; None if unknown.
    Reference: Moreau (1965), for the proximal half.
    """

    forward: Callable[[Any], Any]
    backward: Callable[[Any], Any]
    symmetric: bool
    range_projector: Callable[[Any], Callable[[Any], Any] | None]


class Algorithm(ABC, Generic[P, S]):
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

    def moves_apart(self, problem: P) -> bool:
        """Whether an element of a batch moves as it would alone, and may thus stop by itself."""
        return True

    @abstractmethod
    def init(self, problem: P, x0: Var | None) -> S:
        """The first state; refuses a problem or start that this algorithm cannot work with."""

    @abstractmethod
    def step(self, problem: P, state: S) -> S:
        """One iteration, without side effects."""

    @abstractmethod
    def solution(self, state: S) -> Var:
        """The point that a state stands for."""

    def resume(self, problem: P, state: S) -> S:
        """A start at the variables of any earlier state, with steps that fit this problem.

        Momentum and averages begin anew: they may belong to another problem.
        """
        return self.init(problem, self.solution(state))

    def proceed(self, problem: P, state: S) -> S:
        """The state of an earlier solve of this very problem, to go on as if it had not stopped.

        Steps are derived again all the same: the problem's data may have changed in place.
        """
        return state

    def recomputed(self, problem: P, state: S) -> S:
        """A state without history, with what it keeps of the problem computed anew.

        Truncated differentiation starts from it: a gradient at the point, say, depends on the
        problem even where the point counts as a constant.
        """
        return state

    def dual(self, state: S) -> Var | None:
        """The dual variable, for algorithms that have one."""
        return None

    def points(self, state: S) -> Var:
        """Everything that must stand still at convergence, as points (not mirror coordinates)."""
        return self.solution(state)

    def at_rest(self, problem: P, state: S) -> S:
        """The last state, with steps that suit every direction and not only those of its moves.

        At a solution steps do not matter, but the derivative of the iteration sees all directions.
        """
        return state

    def steadied(self, problem: P, state: S) -> tuple[Algorithm[P, S], S]:
        """This algorithm and a start, with steps that suit every direction in all iterations.

        Derivatives of iterates move along directions in which the iterates themselves rest.
        """
        return self, state

    def fixed_point_map(self, state: S) -> tuple[Algorithm[P, Any], Any]:
        """An autonomous map with the same fixed points, and ``state`` in its terms.

        The fixed-point family differentiates this map: momentum, averages and line searches vanish
        at a solution and would only blur it.
        """
        return self, state

    def with_variables(self, state: S, reduced: Any) -> S:
        """``state`` with its variables taken from a state of the fixed-point map."""
        return reduced

    def transport(self, before: Any, after: Any, cotangent: Any) -> Any:
        """Carry a cotangent of the state from ``before`` to ``after`` (see Geometry.transport)."""
        return cotangent

    exact: ClassVar[bool] = False
    """Whether the derivative of one step, at a solution, is all of it."""

    def margin(self, problem: P, state: S) -> Tensor | None:
        """How far each element is from a kink of its step, relative to its size; None: not told.

        At a kink complementarity is not strict, and a solution has one derivative on each side.
        """
        return None

    def evened(self, state: Any, batch: int = 0) -> Algorithm[P, Any] | None:
        """This (fixed-point) map with steps that move x and its dual each by its own size.

        A fixed point is one for all steps: the solutions are the same. None where there are no such
        steps, or no dual.
        """
        return None

    def units(self, state: Any) -> Any:
        """Numbers shaped like ``state`` that bring cotangents of its parts to one size, or None.

        A (fixed-point) step that moves x by far less than its dual mixes cotangents of two sizes,
        of which a norm sees the larger ones.
        """
        return None

    def halves(self, problem: P) -> SplitStep | None:
        """This (fixed-point) step as two symmetric halves, where it has them: see ``CG``."""
        return None

    def splitting(self, problem: P) -> Splitting | None:
        """This (fixed-point) step as the primal–dual one that it is, if so: see ``MINRES``."""
        return None

    def steps(self, problem: P, state: S) -> dict[str, Any]:
        """The step sizes in use, for the report."""
        return {}

    def remedy(self, problem: P, state: S) -> str:
        """What to try where this iteration is slow, in words; empty where nothing is known."""
        return ""

    def require_sound(self, state: S) -> None:
        """Raise if a state cannot have come from a healthy iteration."""
        if not all(bool(torch.isfinite(t).all()) for t in tree.leaves(state)):
            raise DivergenceError(
                f"{type(self).__name__} diverged: its state holds NaN or infinity. Try a smaller "
                "step, or look for non-finite values in the problem."
            )

    def residual(
        self, before: S, after: S, batch: int = 0, largest: Tensor | None = None
    ) -> Tensor:
        """The change of the points in one iteration, relative to their size.

        One number for each element of a batch. ``largest`` is the largest norm seen so far, to
        which the change is compared if the present one is smaller.
        """
        with torch.no_grad():  # as a decorator it does not go through torch.compile
            old, new = self.points(before), self.points(after)
            change = norm_of(tree.tree_map(torch.sub, new, old), batch)
            size = self.size(after, batch)
            size = size if largest is None else torch.maximum(size, largest)
            return change / torch.where(size > 0, size, 1.0)

    def coordinates(self, state: S) -> tuple[tuple[Geometry, Var], ...]:
        """The mirror coordinates of a state with their geometries, where these are curved."""
        return ()

    def settled(self, before: S, after: S, batch: int = 0) -> Tensor | None:
        r"""Whether points stand still a thousand such iterations on; None where geometry is flat.

        .. math:: ∇ψ^*(y^+ + 1000\,(y^+ − y)) ≈ ∇ψ^*(y^+)

        At a boundary points stand still whichever way their mirror coordinates drift: an entry that
        came there by a start, or by momentum, may be on its way back. An algorithm may have more
        that has to rest before its iterates are differentiated.
        """
        pairs = zip(self.coordinates(before), self.coordinates(after), strict=True)
        with torch.no_grad():
            calm = []
            for (geometry, y), (_, y_next) in pairs:
                x = geometry.unmirror(y_next)
                moved = norm_of(tree.tree_map(torch.sub, x, geometry.unmirror(y)), batch)
                far = tree.tree_map(lambda a, b: b + _OUTLOOK * (b - a), y, y_next)
                change = norm_of(tree.tree_map(torch.sub, geometry.unmirror(far), x), batch)
                # What moves visibly is told by the residual.
                visible = 10 * _OUTLOOK * moved
                calm.append(change <= torch.maximum(visible, _CALM * norm_of(x, batch)))
        return torch.stack(calm).all(0) if calm else None

    def returning(self, before: S, after: S, batch: int = 0) -> Tensor:
        """Whether entries grow by a share of the points' size in a thousand such iterations.

        It tells points on their way back from a boundary from those on their way to it.
        """
        pairs = zip(self.coordinates(before), self.coordinates(after), strict=True)
        with torch.no_grad():
            grows = [torch.zeros_like(self.size(after, batch), dtype=torch.bool)]
            for (geometry, y), (_, y_next) in pairs:
                x = geometry.unmirror(y_next)
                far = tree.tree_map(lambda a, b: b + _OUTLOOK * (b - a), y, y_next)
                more = tree.tree_map(
                    lambda a, b: torch.clamp(b.abs() - a.abs(), min=0.0), x, geometry.unmirror(far)
                )
                grows.append(norm_of(more, batch) > _CALM * norm_of(x, batch))
        return torch.stack(grows).any(0)

    def size(self, state: S, batch: int = 0) -> Tensor:
        """The norm of the points, for each element of a batch."""
        with torch.no_grad():
            return norm_of(self.points(state), batch)


def is_euclidean(geometry: Geometry) -> bool:
    """Euclidean, or a product of such: mirror coordinates are points, each half is symmetric."""
    if isinstance(geometry, Product):
        return all(map(is_euclidean, geometry.blocks))
    return isinstance(geometry, Euclidean)


_WIDE = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}
_OUTLOOK = 1000.0
"""Iterations to look ahead."""
_CALM = 0.01
"""By how much points may move in that time, relative to their size."""


def norm_of(x: Var, batch: int) -> Tensor:
    """Euclidean, in float64 where the device has it: squares of 1e20 are no float32 numbers."""
    parts = [t.detach() for t in tree.leaves(x)]
    lengths = [_length(t, batch) for t in parts]
    total = lengths[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(lengths), dim=0)
    return total.to(tree.real_dtype(parts[0].dtype))


def _length(t: Tensor, batch: int) -> Tensor:
    if t.ndim > batch:
        return wide_norm(t, tuple(range(batch, t.ndim)))
    wide = t if t.device.type == "mps" else t.to(_WIDE.get(t.dtype, torch.float64))
    return wide.abs()
