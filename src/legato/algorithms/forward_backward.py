"""Forward–backward splitting in a Bregman geometry, with inertia."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import (
    as_number,
    holds,
    is_concrete,
    may_be_differentiated,
    numbers_are_cheap,
)
from legato._support.constants import held_constant
from legato._support.later import later
from legato._support.tree import Var, tree_map
from legato.algorithms.backtracking import Backtracking
from legato.algorithms.base import Algorithm, SplitStep, is_euclidean
from legato.algorithms.nesterov import Nesterov, turn_of
from legato.algorithms.start import (
    as_bound,
    as_step,
    constant_where_coupled,
    fitted,
    mirror_start,
    one_for_each,
    require_positive_step,
    require_sound_mirror,
)
from legato.errors import InputError, StepError
from legato.functions import mirror_prox
from legato.functions.convexity import has_potential, is_convex
from legato.geometry import Euclidean, Geometry
from legato.problems import Composite

_RESTARTED = Nesterov(restart=True)
"""What inertia=None means where it is sound."""


class MirrorState(NamedTuple):
    """Mirror coordinates y alone: what the fixed-point map iterates."""

    mirror: Var


class ForwardBackwardState(NamedTuple):
    """Mirror coordinates y, the point x = ∇ψ*(y) and the derived step."""

    mirror: Var
    point: Var
    step: Tensor


class InertialState(NamedTuple):
    """As ForwardBackwardState, with the previous mirror coordinates and the momentum's t."""

    mirror: Var
    point: Var
    step: Tensor
    previous: Var
    t: Tensor


State = MirrorState | ForwardBackwardState | InertialState


@dataclass(frozen=True, eq=False, init=False)
class ForwardBackward(Algorithm[Composite, Any]):
    r"""Forward–backward splitting with a Bregman distance.

    .. math:: x^{n+1} = \arg\min_x\, g(x) + ⟨∇f(x^n), x⟩ + \tfrac1α D_ψ(x, x^n)

    In mirror coordinates: y ← ∇ψ(prox(y − α∇f(x))). Reference: Section 5.1 of Ochs et al. (2016).
    Default: ``relaxation=1.0``.

    Args:
        step_size: α: a number, a tensor (learned, one per batch element, or one per entry where
            the prox is separable), :class:`Backtracking`, or None for 1/L.
        geometry: ψ; Euclidean if None.
        inertia: a constant β ∈ [0, 1) or :class:`Nesterov`; it extrapolates mirror coordinates.
            None is Nesterov(restart=True) where that is sound: steps derived by step_size=None, in
            the Euclidean geometry, for terms known to be convex; else 0.0, the plain method. A step
            that is given runs plain, because momentum diverges from 4/(3L) on and L is not known
            there; so does a line search unless momentum is asked for, which it goes with in the
            Euclidean geometry and with steps that never grow. ``solution.steps`` is the last one.
        relaxation: ρ in (0, 1], of the mean (1 − ρ)x^n + ρx^{n+1} that takes the place of x^{n+1},
            in the Euclidean geometry. Below 1 it converges where a map that is in the place of the
            prox, a :class:`Denoiser`, only keeps distances from growing (Krasnosel'skii and Mann).

    >>> A, b = torch.eye(2), torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.LeastSquares(A, b), lg.L1(1.0))
    >>> lg.solve(problem, lg.ForwardBackward()).x
    tensor([2., 0.])
    >>> c = lg.Linear(torch.tensor([0.0, 1.0]))
    >>> entropic = lg.ForwardBackward(1.0, lg.Entropy())
    >>> lg.solve(lg.Composite(c, lg.Simplex()), entropic).x.round()
    tensor([1., 0.])
    """

    step_size: Tensor | float | Backtracking | None
    geometry: Geometry
    inertia: float | Nesterov | None
    relaxation: float

    def __init__(
        self,
        step_size: Tensor | float | Backtracking | None = None,
        geometry: Geometry | None = None,
        inertia: float | Nesterov | None = None,
        relaxation: float = 1.0,
    ) -> None:
        # Written out because torch.compile does not follow a dataclass into a default factory.
        require_positive_step(step_size, "step_size")
        if not isinstance(inertia, Nesterov | None) and not 0 <= inertia < 1:
            raise InputError(f"The inertia must lie in [0, 1), not {inertia!r}.")
        geometry = Euclidean() if geometry is None else geometry
        if isinstance(step_size, Backtracking) and inertia not in (None, 0.0):
            _require_searched_momentum(step_size, geometry)
        if not 0 < relaxation <= 1:
            raise InputError(
                f"The relaxation of ForwardBackward must lie in (0, 1], not {relaxation!r}: to go "
                "further than a step leads, use momentum."
            )
        if relaxation != 1.0 and not is_euclidean(geometry):
            raise InputError(
                f"A relaxation takes means of points, in the Euclidean geometry only, not in "
                f"{geometry!r}."
            )
        object.__setattr__(self, "step_size", step_size)
        object.__setattr__(self, "geometry", geometry)
        object.__setattr__(self, "inertia", inertia)
        object.__setattr__(self, "relaxation", relaxation)

    # --- start ------------------------------------------------------------------------------------

    def init(self, problem: Composite, x0: Var | None) -> State:
        _require_composite(problem)
        return self._begin(
            problem, mirror_start(self.geometry, problem.nonsmooth, problem.start(), x0)
        )

    def resume(self, problem: Composite, state: State) -> State:
        _require_composite(problem)
        return self._begin(problem, fitted(state.mirror, problem.start(), "The state"))

    def proceed(self, problem: Composite, state: State) -> State:
        fresh = self.resume(problem, state)
        if isinstance(fresh, InertialState) and isinstance(state, InertialState):
            step = fresh.step
            if isinstance(self.step_size, Backtracking):  # below momentum steps never grow
                step = torch.minimum(step, state.step)
            return fresh._replace(step=step, previous=state.previous, t=state.t)
        return fresh

    def _begin(self, problem: Composite, y: Var) -> State:
        x = self.geometry.unmirror(y)
        step = self._initial_step(problem, y, x)
        if self._inertia_for(problem) == 0.0:
            return ForwardBackwardState(y, x, step)
        return InertialState(y, x, step, previous=y, t=one_for_each(problem, x))

    def _inertia_for(self, problem: Composite) -> float | Nesterov:
        """The inertia in use: as given, or momentum where it is sound with a step of 1/L.

        A step that was given decides nothing by its value, which training may change, and which
        torch.func and torch.compile do not show: it runs as it is.
        """
        if self.inertia is not None:
            return self.inertia
        derived = self.step_size is None and is_euclidean(self.geometry)
        sound = derived and is_convex(problem.smooth) and is_convex(problem.nonsmooth)
        return _RESTARTED if sound else 0.0

    def _initial_step(self, problem: Composite, y: Var, x: Var) -> Tensor:
        like = tree.leaves(x)[0]
        if isinstance(self.step_size, Backtracking):
            ones = one_for_each(problem, x, self.geometry.coupled)
            move = partial(self._move, problem, y)
            held_constant(problem, self.step_size)
            return self.step_size.scaled(problem, self.geometry, y, x, ones, move)
        if self.step_size is None:
            return self._derived_step(problem, x)
        later(partial(self._require_stable, problem))
        return as_step(self.step_size, like)

    def _derived_step(self, problem: Composite, x: Var) -> Tensor:
        L = problem.smooth.lipschitz()
        if L is None:
            raise StepError(
                f"No step can be derived: the Lipschitz constant of {problem.smooth!r} is unknown. "
                "Give ForwardBackward a step, e.g. step_size=0.1 or "
                "step_size=legato.Backtracking()."
            )
        modulus = self.geometry.modulus(problem.nonsmooth.bounds())
        if modulus is None:
            raise StepError(
                f"No step can be derived: how strongly convex {self.geometry!r} is on the domain "
                f"of {problem.nonsmooth!r} is unknown. Give ForwardBackward a step, e.g. "
                "step_size=1/(L·max x), or step_size=legato.Backtracking()."
            )
        room = 1.0
        if isinstance(self.inertia, float | int):
            room = min(1.0, 1.98 * (1 - self.inertia))  # α < 2(1 − β)/L
        L = as_bound(L, tree.leaves(x)[0])
        L = constant_where_coupled(L, problem.nonsmooth, x)
        return room * modulus / torch.where(L > 0, L, torch.ones_like(L))

    def _require_stable(self, problem: Composite) -> None:
        """α < 2(1 − β)/L, known to be necessary in the Euclidean geometry only.

        Nesterov's β tends to 1, and his extrapolated gradient steps grow from α = 4/(3L) on.
        """
        if not is_euclidean(self.geometry) or not is_concrete():
            return
        L = problem.smooth.lipschitz()
        if L is None:
            return
        if isinstance(self.inertia, Nesterov):
            most, condition, named = 4 / 3, "4/(3L)", "with momentum"
        else:
            beta = self.inertia or 0.0
            most, condition, named = 2 * (1 - beta), "2(1 − β)/L", f"β = {beta:g}"
        too_large = torch.as_tensor(self.step_size * L).detach() > most * (1 + 1e-6)  # type: ignore[operator]
        if not holds(~too_large):
            largest = as_number(torch.as_tensor(L).amax())
            raise StepError(
                f"The step {as_number(torch.as_tensor(self.step_size).amax()):g} violates its "
                f"condition α < {condition} = {most / largest:g} (L = {largest:g}, {named}): the "
                "iteration would diverge. Take a smaller step, or step_size=None for 1/L."
            )

    # --- iteration --------------------------------------------------------------------------------

    def step(self, problem: Composite, state: State) -> State:
        if isinstance(state, InertialState):
            return self._inertial_step(problem, state)
        if isinstance(state, MirrorState):
            gradient = problem.smooth.grad(self.geometry.unmirror(state.mirror))
            new = self._move(problem, state.mirror, gradient, self.step_size)
            return MirrorState(self.geometry.attach_drift(state.mirror, new))
        y, x, derived = state
        new, derived = self._forward_backward(problem, y, x, derived, derived)
        new = self._relaxed(y, new)
        return ForwardBackwardState(new, self.geometry.unmirror(new), derived)

    def _inertial_step(self, problem: Composite, state: InertialState) -> InertialState:
        inertia = _RESTARTED if self.inertia is None else self.inertia
        ahead, t = self._ahead(state)
        start = self.geometry.unmirror(ahead)
        new, derived = self._forward_backward(problem, ahead, start, state.step, state.t)
        new = self._relaxed(state.mirror, new)
        x = self.geometry.unmirror(new)
        if isinstance(inertia, Nesterov) and inertia.restart:
            if inertia.restart is True:
                turn: Any = turn_of(ahead, new, self.solution(state), x, state.t)
                anew = (turn if isinstance(t, Tensor) else turn.item()) > 0
            else:
                anew = t > inertia.longest
            t = t.masked_fill(anew, 1.0) if isinstance(t, Tensor) else 1.0 if anew else t
        if not isinstance(t, Tensor):
            t = state.t.new_full((), t)
        return InertialState(new, x, derived, state.mirror, t)

    def _forward_backward(
        self, problem: Composite, y: Var, x: Var, derived: Tensor, teller: Tensor
    ) -> tuple[Var, Tensor]:
        """Where one step from x leads, in mirror coordinates, and the step that was taken.

        ``teller`` is a number of the state, which says whether numbers are cheap to read.
        """
        if isinstance(self.step_size, Backtracking):
            gradient = problem.smooth.grad(x)
            move = partial(self._move, problem, y, gradient)
            derived = self.step_size.search(problem, self.geometry, y, x, gradient, derived, move)
            return self._move(problem, y, gradient, derived), derived
        size = self._size(derived)
        size = tree.as_numbers(size) if numbers_are_cheap(teller) else size
        half = problem.smooth.descend(y, size, x)
        return mirror_prox(problem.nonsmooth, self.geometry, half, size), derived

    def _relaxed(self, before: Var, new: Var) -> Var:
        if self.relaxation == 1.0:
            return new
        return tree_map(lambda a, b: torch.lerp(a, b, self.relaxation), before, new)

    def _ahead(self, state: InertialState) -> tuple[Var, Any]:
        """Where momentum leads from here, and the next t, which may be a number."""
        inertia = _RESTARTED if self.inertia is None else self.inertia
        t: Any = state.t
        beta: Any = inertia
        if isinstance(inertia, Nesterov):
            now = tree.as_numbers(t) if numbers_are_cheap(t) else t
            t = inertia.advance(now)
            beta = (now - 1) / t
        return tree_map(partial(_beyond, beta), state.previous, state.mirror), t

    def _size(self, derived: Tensor) -> Any:
        """The step in use: the user's own (perhaps learned) tensor, or the derived one."""
        given = self.step_size
        return derived if given is None or isinstance(given, Backtracking) else given

    def _move(self, problem: Composite, y: Var, gradient: Var, alpha: Any) -> Var:
        half = tree.sub_scaled(y, alpha, gradient)
        return mirror_prox(problem.nonsmooth, self.geometry, half, alpha)

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: State) -> Var:
        return (
            self.geometry.unmirror(state.mirror) if isinstance(state, MirrorState) else state.point
        )

    def coordinates(self, state: State) -> tuple[tuple[Geometry, Var], ...]:
        return () if is_euclidean(self.geometry) else ((self.geometry, state.mirror),)

    def at_rest(self, problem: Composite, state: State) -> State:
        if isinstance(state, MirrorState) or not isinstance(self.step_size, Backtracking):
            return state
        y, x, step = map(tree.detach, (state.mirror, state.point, state.step))
        return state._replace(step=self.step_size.at_rest(problem, self.geometry, y, x, step))

    def steadied(self, problem: Composite, state: State) -> tuple[Algorithm[Composite, Any], State]:
        own = type(self) is ForwardBackward  # a class of somebody else's keeps its own steps
        kind: type[ForwardBackward] = ForwardBackward
        algorithm: ForwardBackward = self
        if own and isinstance(state, InertialState) and torch.is_grad_enabled():
            kind = _Resting
            algorithm = kind(self.step_size, self.geometry, self.inertia, self.relaxation)
        if isinstance(state, MirrorState) or not isinstance(self.step_size, Backtracking):
            return algorithm, state
        if not self.step_size.steady:
            with torch.enable_grad():  # a model takes the same steps whether it is trained or not
                after = tree.leaves(self.step(problem, state))
                if not any(map(may_be_differentiated, after)):
                    return algorithm, state
        searching = replace(self.step_size, steady=True)
        steadied = kind(searching, self.geometry, self.inertia, self.relaxation)
        return steadied, self.at_rest(problem, state)

    def fixed_point_map(self, state: State) -> tuple[Algorithm[Composite, Any], MirrorState]:
        if isinstance(state, MirrorState):
            return self, state
        plain = ForwardBackward(self._size(state.step), self.geometry, inertia=0.0)
        return plain, MirrorState(state.mirror)

    def with_variables(self, state: State, reduced: MirrorState) -> State:
        if isinstance(state, MirrorState):
            return reduced
        return state._replace(mirror=reduced.mirror, point=self.solution(reduced))

    def transport(self, before: Any, after: Any, cotangent: Any) -> Any:
        carried = self.geometry.transport(before.mirror, after.mirror, cotangent.mirror)
        return cotangent._replace(mirror=carried)

    def halves(self, problem: Composite) -> SplitStep | None:
        """The gradient step and the prox; both have symmetric derivatives if α is one number.

        With a step per batch element they have so too, if the batch elements do not meet.
        """
        alpha, g = self.step_size, problem.nonsmooth
        if not is_euclidean(self.geometry) or isinstance(alpha, Backtracking | None):
            return None

        def forward(state: Any) -> Any:
            gradient = problem.smooth.grad(state.mirror)
            return state._replace(mirror=tree.sub_scaled(state.mirror, alpha, gradient))

        def backward(half: Any) -> Any:
            new = mirror_prox(g, self.geometry, half.mirror, alpha)
            return half._replace(mirror=new)

        def range_projector(half: Any) -> Any:
            project = g.range_projector(half.mirror)
            return project and (lambda v: v._replace(mirror=project(v.mirror)))

        known = has_potential(problem.smooth) and has_potential(g)
        symmetric = known and torch.as_tensor(alpha).numel() == 1
        return SplitStep(forward, backward, symmetric, range_projector)

    def steps(self, problem: Composite, state: State) -> dict[str, Any]:
        return {
            "step": self.step_size if isinstance(state, MirrorState) else self._size(state.step)
        }

    def remedy(self, problem: Composite, state: State) -> str:
        scale = "bring the data, or the columns of a matrix, to one size"
        if not is_euclidean(self.geometry) or isinstance(self.step_size, Backtracking):
            return scale
        if isinstance(state, InertialState) and self.inertia in (None, _RESTARTED):
            return scale
        given = "step_size=None, " if self.step_size is not None else ""
        return f"for a convex energy try ForwardBackward({given}inertia=Nesterov(restart=True))"

    def require_sound(self, state: State) -> None:
        require_sound_mirror(self.geometry, state.mirror, "ForwardBackward")


class _Resting(ForwardBackward):
    """The same iteration, for derivatives: it has arrived once its momentum rests as well.

    A step that is taken ahead of x may lead to the solution all the same, with step 1/L even from
    anywhere. Its derivative is that of a step from there.
    """

    def settled(self, before: State, after: State, batch: int = 0) -> Tensor | None:
        known = super().settled(before, after, batch)
        idle = torch.is_grad_enabled() and not any(map(may_be_differentiated, tree.leaves(after)))
        if idle or not isinstance(before, InertialState):
            return known
        with torch.no_grad():
            ahead = before._replace(point=self.geometry.unmirror(self._ahead(before)[0]))
            rests = self.residual(before, ahead, batch) <= _RESTS
        return rests if known is None else known & rests


_RESTS = 1e-3
"""How far ahead of x a step may be taken whose derivative is to be that of a step from x."""


def _require_searched_momentum(rule: Backtracking, geometry: Geometry) -> None:
    """The estimates behind momentum need steps that never grow, and squared Euclidean distances."""
    if rule.grow > 1:
        raise InputError(
            f"{rule!r} lets steps grow, below which momentum may diverge. Take grow=1.0, or "
            "inertia=0.0."
        )
    if not is_euclidean(geometry):
        raise InputError(
            f"A line search goes with inertia in the Euclidean geometry only, not in {geometry!r}: "
            "give a fixed step, or inertia=0.0."
        )


def _require_composite(problem: Any) -> None:
    if not isinstance(problem, Composite):
        raise InputError(
            f"ForwardBackward solves Composite problems, not {type(problem).__name__}. "
            "Use PrimalDual for a Saddle problem."
        )


def _beyond(beta: Any, before: Tensor, now: Tensor) -> Tensor:
    """now + β(now − before)."""
    if isinstance(beta, Tensor):
        return torch.addcmul(now, beta, now - before)
    return torch.lerp(before, now, 1 + beta)
