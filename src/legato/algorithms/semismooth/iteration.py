"""Semismooth Newton on F(z) = z − T(z), which falls back to T's own steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, sum_beyond, tree_map
from legato.algorithms.backtracking import Backtracking
from legato.algorithms.base import Algorithm
from legato.algorithms.forward_backward import ForwardBackward, ForwardBackwardState, InertialState
from legato.algorithms.primal_dual import PrimalDual
from legato.algorithms.saddle.states import PrimalDualState
from legato.algorithms.saddle.steps import Steps
from legato.algorithms.semismooth.kinks import nearest_kink
from legato.algorithms.semismooth.splitting import Halves, Splitting
from legato.algorithms.semismooth.system import System
from legato.algorithms.semismooth.working_set import descended, is_known
from legato.errors import InputError, StepError
from legato.problems import Composite, Saddle

CHASE = 8
"""Newton steps made in a row before one of them has to have reduced the residual."""
_ASTRAY = 3.0
"""Growth of the residual beyond which a row of Newton steps leads nowhere."""
_REDUCED = 0.5
"""What a reduced residual is, relative to the one before."""
FIRST, MOST = 10, 1280
"""How many of T's own steps a fallback makes: twice as many after each, up to the second."""
_PRODUCTS = 3000
"""Products that a Newton step may take whose system is too large to be written out."""
_ROUNDING = 4.0
"""Residuals up to so many eps, relative to the point, are rounding."""


class Points(NamedTuple):
    """z = (x,), or (x, y): what the fixed-point map iterates."""

    z: tuple[Var, ...]


class SemismoothState(NamedTuple):
    """z and T(z), the steps of T, ‖T(z) − z‖, and how many steps of T the next fallback makes."""

    z: tuple[Var, ...]
    image: tuple[Var, ...]
    tau: Any
    sigma: Any
    residual: Tensor
    patience: Tensor


@dataclass(frozen=True)
class Semismooth:
    r"""The iteration of :class:`Newton` where a term has no gradient.

    .. math:: z^{n+1} = z^n − (I − J)^{-1} F(z^n), \qquad F(z) = z − T(z), \quad J ∈ ∂T(z^n)

    Some Newton steps are made in a row; the first point whose residual ‖F‖ is half as large is
    taken. Where none is, or where an active set comes back (a cycle), T makes steps of its own,
    with momentum where it is sound, and more of them each time. All of it happens for each element
    of a batch by itself. Reference: Qi and Sun (1993), *A nonsmooth version of Newton's method*.
    """

    base: ForwardBackward | PrimalDual | None

    # --- start ------------------------------------------------------------------------------------

    def begin(
        self, problem: Composite | Saddle, starts: Callable[[Any], Any], *, known: bool
    ) -> SemismoothState:
        """From the first state of T's own algorithm; ``known`` if somebody chose that point."""
        base: Any = self.base
        if base is None:
            base = PrimalDual() if isinstance(problem, Saddle) else ForwardBackward()
        try:
            start = starts(base)
        except StepError:
            if self.base is not None or isinstance(problem, Saddle):
                raise
            base = ForwardBackward(Backtracking())  # no step can be derived: look for one
            start = starts(base)
        if isinstance(start, PrimalDualState):
            z: tuple[Var, ...] = (start.primal, start.dual)
            found = base.steps(problem, start)
            tau, sigma = found["tau"], found["sigma"]
        else:
            z, sigma = (start.mirror,), ()
            tau = base._size(start.step)
        splitting = Splitting(problem, tau, None if isinstance(sigma, tuple) else sigma)
        image = splitting(z)
        residual = distance(image, z, problem.batch(z[0]))
        patience = torch.full_like(residual, FIRST if known else 0)
        return SemismoothState(z, image, tau, sigma, residual, patience)

    def splitting(self, problem: Composite | Saddle, state: SemismoothState) -> Splitting:
        return Splitting(problem, state.tau, state.sigma if isinstance(problem, Saddle) else None)

    # --- iteration --------------------------------------------------------------------------------

    def step(self, problem: Composite | Saddle, state: SemismoothState) -> SemismoothState:
        splitting, batch = self.splitting(problem, state), problem.batch(state.z[0])
        size = distance(state.z, None, batch)
        eps = torch.finfo(size.dtype).eps
        arrived = state.residual <= _ROUNDING * eps * size
        attached = torch.is_grad_enabled() and any(
            t.requires_grad for t in tree.leaves(state.image)
        )
        if bool(arrived.all()) and not attached:
            return state._replace(z=state.image)  # as far as T(z) differs at all, by rounding
        fresh = state.patience == 0  # the active set of a neutral start says little: T goes first
        # What has arrived stays, unless its derivative is asked for: that is Newton's there.
        held = fresh if attached else fresh | arrived
        if bool(fresh.all()) and not attached and is_known(splitting, state.z, batch):
            x, image, solved = descended(splitting.detached, state.z[0])
            if solved:
                patience = torch.full_like(state.patience, FIRST)
                residual = distance((image,), (x,), batch)
                return state._replace(z=(x,), image=(image,), residual=residual, patience=patience)
        accepted, newton = self._chase(splitting, state, batch, held, arrived)
        z = newton
        failed = ~accepted & ~arrived
        patience = state.patience
        if bool((failed | arrived).any()):
            plain = state.image
            if bool(failed.any()):
                patience = patience.clamp(min=FIRST)
                count = int(torch.where(failed, patience, 0).amax())
                plain = self._own_steps(problem, state, count, attached)
                plain = _where(arrived, state.image, plain)
                patience = torch.where(failed, (2 * patience).clamp(max=MOST), patience)
            z = _where(accepted, newton, plain)
        return self._moved(splitting, state._replace(patience=patience), z, batch)

    def _moved(
        self, splitting: Splitting, state: SemismoothState, z: tuple[Var, ...], batch: int
    ) -> SemismoothState:
        image = splitting(z)
        residual = distance(image, z, batch)
        return state._replace(z=z, image=image, residual=residual)

    def _chase(
        self, splitting: Splitting, state: SemismoothState, batch: int, held: Tensor,
        arrived: Tensor,
    ) -> tuple[Tensor, tuple[Var, ...]]:  # fmt: skip
        """Which elements a Newton step has brought closer, and where to."""
        allowed = _REDUCED * state.residual.detach()
        nearly = 1e3 * torch.finfo(allowed.dtype).eps * distance(state.z, None, batch)
        accepted = torch.zeros_like(held)
        stopped = held
        seen: list[Tensor] = []
        z, found = tree.detach(state.z), state.z
        for _ in range(CHASE):
            with torch.no_grad():
                halves = splitting.detached.halves(z)
                system = System(splitting, z, halves, batch, patience=_PRODUCTS)
                active = system.active.reshape(stopped.shape)
                for earlier in seen:
                    stopped = stopped | (earlier == active)
                if bool((stopped | accepted).all()):
                    break
                seen.append(active)
            trial = newton_point(splitting, system, z)
            # There the value is rounding, which a dual that is not unique would make large.
            settled = tree_map(lambda i, t: i.detach() + (t - t.detach()), state.image, trial)
            trial = _where(arrived, settled, trial)
            with torch.no_grad():
                there = tree.detach(trial)
                residual = distance(splitting.detached(there), there, batch)
            new = ((residual <= allowed) | (arrived & (residual <= nearly))) & ~accepted & ~stopped
            found = _where(new, trial, found)
            accepted = accepted | new
            # Written so that NaN ends it, too.
            stopped = stopped | ~(residual <= _ASTRAY * state.residual.detach())
            if bool((stopped | accepted).all()):
                break
            z = _where(accepted | stopped, z, there)
        return accepted, found

    def _own_steps(
        self, problem: Composite | Saddle, state: SemismoothState, count: int, attached: bool
    ) -> tuple[Var, ...]:
        """Steps of T's own algorithm, with momentum where that is sound, or of models of it."""
        now: Any
        base: Any
        splitting = self.splitting(problem, state).detached
        z, batch = state.z, problem.batch(state.z[0])
        if count < 4 * FIRST and not attached and is_known(splitting, z, batch):
            x, _, solved = descended(splitting, z[0])
            z = (x,)
            if solved:
                return z
        base = self.base or default_base(problem)
        if isinstance(base, PrimalDual):
            x, y = z
            now = PrimalDualState(x, y, x, y, Steps(state.tau, state.sigma))
        else:
            (x,) = z
            inertia = base._inertia_for(problem)
            now = ForwardBackwardState(x, x, state.tau)
            if inertia != 0.0:
                t = torch.ones_like(state.residual)
                t = t.reshape(*t.shape, *(1,) * (x.ndim - t.ndim)) if t.ndim else t
                now = InertialState(x, x, state.tau, previous=x, t=t)
        for _ in range(count):
            now = base.step(problem, now)
        return (now.primal, now.dual) if isinstance(base, PrimalDual) else (now.mirror,)


def default_base(problem: Composite | Saddle) -> ForwardBackward | PrimalDual:
    """The algorithm whose step T is, where none was given: with a line search if need be."""
    if isinstance(problem, Saddle):
        return PrimalDual()
    with torch.no_grad():
        known = problem.smooth.lipschitz() is not None
    return ForwardBackward(None if known else Backtracking())


def newton_point(
    splitting: Splitting, system: System, z: tuple[Var, ...], after: tuple[Var, ...] | None = None
) -> tuple[Var, ...]:
    """z + (I − J)⁻¹(T(z) − z), with the factor as a constant: J is that of T at z."""
    after = splitting(z) if after is None else after
    change = tree_map(torch.sub, after, z)
    flat = tree.leaves(change)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in flat)):
        return tree_map(torch.add, z, system.solve(change))
    like = tree.detach(z)

    def on_leaves(solve: Callable[[Any], Any]) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *r: tuple(tree.leaves(solve(tree.rebuild(like, r))))

    pair = on_leaves(system.solve), on_leaves(system.solve_transposed)
    moved = tree.rebuild(like, _Solved.apply(pair, *flat))  # type: ignore[no-untyped-call]
    return tree_map(torch.add, z, moved)


class _Solved(torch.autograd.Function):
    """r ↦ Sr for a pair (S, Sᵀ) of linear maps; the derivative of the one is the other."""

    @staticmethod
    def forward(pair: Any, *r: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return pair[0](*r)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.pair = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *_Solved.apply(ctx.pair[::-1], *grads))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class NewtonMap(Algorithm[Any, Points]):
    r"""The full Newton step with its system as a constant.

    .. math:: N(z) = z + (I − J)^{-1}(T(z) − z)

    At a solution its derivative in z is 0 and that in θ the one of the solution: ``OneStep`` is
    exact, for one transposed solve. Where I − J is singular, as with a dual that is not unique, its
    derivative in z is a projection, which a loss of x alone does not see.
    """

    tau: Any
    sigma: Any
    _last: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    exact: ClassVar[bool] = True

    def init(self, problem: Any, x0: Var | None) -> Points:
        raise InputError("This map starts from the state of a Newton solve only.")

    def step(self, problem: Any, state: Points) -> Points:
        splitting = self._splitting(problem)
        halves = splitting.halves(state.z)
        after = (halves.x, halves.y) if isinstance(problem, Saddle) else (halves.x,)
        system = self._system(problem, splitting, state, halves)
        return Points(newton_point(splitting, system, state.z, after))

    def _splitting(self, problem: Any) -> Splitting:
        sigma = self.sigma if isinstance(problem, Saddle) else None
        return Splitting(problem, self.tau, sigma).detached

    @torch.no_grad()
    def _system(self, problem: Any, splitting: Splitting, state: Points, halves: Halves) -> System:
        z = tree.detach(state.z)
        last = self._last
        if last.get("problem") is not problem or not tree.equal(last["z"], z):
            halves = tree.detach(halves)
            system = System(splitting, z, halves, problem.batch(z[0]))
            last.update(problem=problem, z=z, halves=halves, system=system)
        return last["system"]

    @torch.no_grad()
    def margin(self, problem: Any, state: Points) -> Tensor | None:
        splitting, z = self._splitting(problem), tree.detach(state.z)
        last = self._last
        known = last.get("problem") is problem and tree.equal(last["z"], z)
        halves = last["halves"] if known else splitting.halves(z)
        batch = problem.batch(z[0])
        found = nearest_kink(problem.nonsmooth, halves.u, splitting.tau, batch)
        if isinstance(problem, Saddle):
            found += nearest_kink(splitting.conjugate, halves.v, splitting.sigma, batch)
        return torch.stack(found).amin(0) if found else None

    def solution(self, state: Points) -> Var:
        return state.z[0]

    def dual(self, state: Points) -> Var | None:
        return state.z[1] if len(state.z) > 1 else None

    def points(self, state: Points) -> Var:
        return state.z


def distance(one: Any, other: Any, batch: int) -> Tensor:
    """‖one − other‖, or ‖one‖, for each element of a batch; detached."""
    with torch.no_grad():
        moved = tree.detach(one)
        if other is not None:
            moved = tree_map(torch.sub, moved, tree.detach(other))
        parts = [sum_beyond(t.double() * t.double(), batch) for t in tree.leaves(moved)]
        return torch.stack(parts).sum(0).sqrt().to(tree.leaves(moved)[0].dtype)


def _where(condition: Tensor, one: Any, other: Any) -> Any:
    """Element by element of a batch."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        shape = condition.shape + (1,) * (a.ndim - condition.ndim)
        return torch.where(condition.reshape(shape), a, b)

    if condition.ndim == 0:
        return one if bool(condition) else other
    return tree_map(choose, one, other)
