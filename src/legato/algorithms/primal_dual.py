"""The primal–dual algorithm in Bregman geometries."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, numbers_are_cheap
from legato._support.tree import Var, tree_map
from legato.algorithms.average import Average
from legato.algorithms.balance import AdaptiveBalance
from legato.algorithms.base import Algorithm, is_euclidean, norm_of
from legato.algorithms.restart import Restart
from legato.algorithms.ruiz import Ruiz
from legato.algorithms.saddle.adaptation import Adaptation, change_at_balance_one
from legato.algorithms.saddle.states import (
    AdaptiveState,
    AveragedState,
    MirrorPair,
    PrimalDualState,
    State,
)
from legato.algorithms.saddle.steps import StepRule, Steps, Units, over
from legato.algorithms.semismooth.splitting import Splitting
from legato.algorithms.start import (
    fitted,
    mirror_start,
    neutral,
    require_positive_step,
    require_sound_mirror,
)
from legato.errors import GradientError, InputError, StepError
from legato.functions import Zero, mirror_prox
from legato.functions.complexity import require_same_numbers
from legato.geometry import Euclidean, Geometry
from legato.problems import Saddle

_OFF_BALANCE = 30.0
"""Factor by which a balance may differ from what the sizes of the variables ask for."""


@dataclass(frozen=True, eq=False)
class PrimalDual(Algorithm[Saddle, Any]):
    r"""The primal–dual hybrid gradient method with Bregman distances.

    .. math::
        x^{n+1} &= \arg\min_x\, g(x) + ⟨∇f(x^n) + K^*y^n, x⟩ + \tfrac1τ D_ψ(x, x^n) \\
        y^{n+1} &= \arg\min_y\, h^*(y) − ⟨K(2x^{n+1} − x^n), y⟩ + \tfrac1σ D_φ(y, y^n)

    Steps satisfy (m/τ − L_f)·(n/σ) ≥ ‖K‖², with the moduli m and n of ψ and φ (1 if Euclidean).
    Default: ``balance=1.0``.
    Reference: Chambolle and Pock (2016); Pock and Chambolle (2011) for preconditioning.

    Args:
        tau: τ, a number or tensor; None derives 1/(‖K‖/r + L_f).
        sigma: σ; None derives 1/(r‖K‖).
        geometry: ψ, in which g has a prox; Euclidean if None.
        dual_geometry: φ, in which the conjugate h* has a prox; Euclidean if None.
        average: True, or an :class:`Average`, returns the ergodic mean.
        balance: r, which trades primal against dual progress in derived steps: a number, a tensor
            of one for each element of a batch, or an :class:`AdaptiveBalance`, which finds it.
        norm: replaces ‖K‖ where another norm fits the geometries (max|K_ij| for games on
            simplices).
        precondition: derive diagonal steps.
        restart: a :class:`Restart` makes it Halpern's iteration with restarts, in Euclidean
            geometries; ``Unroll`` differentiates it with its restarts and balances held fixed.
        scaling: :class:`Ruiz` derives diagonal steps from rows and columns of one size.

    >>> y = torch.tensor([0.0, 0.1, 1.0, 0.9])
    >>> energy = lg.SquaredDistance(y) + lg.L1(0.1) @ lg.Differences(dims=(-1,))
    >>> lg.solve(energy, lg.PrimalDual(), stop=lg.Stop(500)).x.round(decimals=3)
    tensor([0.1000, 0.1000, 0.9000, 0.9000])
    """

    tau: Tensor | float | None = None
    sigma: Tensor | float | None = None
    # Euclidean; torch.compile does not follow a dataclass into a default factory.
    geometry: Geometry = None  # type: ignore[assignment]
    dual_geometry: Geometry = None  # type: ignore[assignment]
    average: bool | Average = False
    balance: Tensor | float | AdaptiveBalance = 1.0
    norm: Tensor | float | None = None
    precondition: bool = False
    restart: Restart | None = None
    scaling: Ruiz | None = None

    def __post_init__(self) -> None:
        for name in ("geometry", "dual_geometry"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, Euclidean())
        require_positive_step(self.tau, "tau")
        require_positive_step(self.sigma, "sigma")
        require_positive_step(self.balance, "balance")
        if isinstance(self.average, bool):
            object.__setattr__(self, "average", Average() if self.average else None)
        if self.precondition and not (self.tau is self.sigma is self.norm is None):
            raise StepError("precondition derives both steps: do not give tau, sigma or norm.")
        if self.scaling is not None and not (self.tau is self.sigma is self.norm is None):
            raise StepError("scaling derives both steps: do not give tau, sigma or norm.")
        if self.scaling is not None and self.precondition:
            raise StepError("scaling and precondition both derive diagonal steps: give one.")
        self._require_kinds()
        if self._adapts:
            self._require_adaptable()

    @property
    def _adapts(self) -> bool:
        return self.restart is not None or isinstance(self.balance, AdaptiveBalance)

    @property
    def _adaptation(self) -> Adaptation:
        balance = self.balance if isinstance(self.balance, AdaptiveBalance) else None
        return Adaptation(self.restart, balance)

    @property
    def _rule(self) -> StepRule:
        return StepRule(
            self.geometry,
            self.dual_geometry,
            self.tau,
            self.sigma,
            1.0 if isinstance(self.balance, AdaptiveBalance) else self.balance,
            self.norm,
            self.precondition,
            self.scaling,
        )

    def _require_kinds(self) -> None:
        for name, kind, other in (
            ("restart", Restart, None),
            ("scaling", Ruiz, None),
            ("balance", AdaptiveBalance, Tensor | float | int),
        ):
            value = getattr(self, name)
            if isinstance(value, kind) or (isinstance(value, other) if other else value is None):
                continue
            given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            hint = f" Did you mean {kind.__name__}()?" if value is kind or value is True else ""
            rest = "a number or a tensor" if other else "None"
            raise InputError(f"{name} must be {kind.__name__}(…) or {rest}, not {given}.{hint}")

    def _require_adaptable(self) -> None:
        who = "Restarts" if self.restart is not None else "An adaptive balance"
        if not (is_euclidean(self.geometry) and is_euclidean(self.dual_geometry)):
            curved = self.dual_geometry if is_euclidean(self.geometry) else self.geometry
            raise InputError(
                f"{who} measure distances, which only Euclidean geometries have, and {curved!r} is "
                "none. Leave both out, and look for a balance= that suits."
            )
        if self.average is not None:
            raise InputError(
                f"{who} work on the last iterate: take average=False, or leave them out."
            )
        if isinstance(self.balance, AdaptiveBalance) and not (self.tau is self.sigma is None):
            raise StepError(
                "An adaptive balance derives both steps: do not give tau or sigma, or give a "
                "number as balance."
            )

    # --- start ------------------------------------------------------------------------------------

    def init(self, problem: Saddle, x0: Var | None) -> State:
        _require_saddle(problem)
        primal = mirror_start(self.geometry, problem.nonsmooth, problem.start(), x0)
        image = problem.operator(tree.detach(self.geometry.unmirror(primal)))
        dual = neutral(self.dual_geometry, problem.conjugate, image)
        with torch.no_grad():  # where K or h has batch axes that x has not yet
            back = problem.operator.adjoint(self.dual_geometry.unmirror(tree.detach(dual)))
        require_same_numbers(primal, back)
        if tree_map(_shape, back) != tree_map(_shape, primal):
            primal = tree_map(lambda t, b: t.expand(_joint_shape(t, b)), primal, back)
            image = problem.operator(tree.detach(self.geometry.unmirror(primal)))
            dual = neutral(self.dual_geometry, problem.conjugate, image)
        return self._begin(problem, primal, dual, image)

    def resume(self, problem: Saddle, state: State) -> State:
        _require_saddle(problem)
        given = (state.x, state.y) if isinstance(state, AdaptiveState) else state[:2]
        primal = fitted(given[0], problem.start(), "The state")
        image = problem.operator(tree.detach(self.geometry.unmirror(primal)))
        dual = fitted(given[1], image, "The dual variable of the state")
        return self._begin(problem, primal, dual, image)

    def proceed(self, problem: Saddle, state: State) -> State:
        fresh = self.resume(problem, state)
        if isinstance(fresh, AveragedState) and isinstance(state, AveragedState):
            return fresh._replace(x_mean=state.x_mean, y_mean=state.y_mean, number=state.number)
        if isinstance(fresh, AdaptiveState) and isinstance(state, AdaptiveState):
            adapts = isinstance(self.balance, AdaptiveBalance)  # else it is part of the units
            balance = state.balance if adapts else fresh.balance
            return state._replace(units=fresh.units, balance=balance)
        return fresh

    def _begin(self, problem: Saddle, primal: Var, dual: Var, image: Var) -> State:
        x, y = self.geometry.unmirror(primal), self.dual_geometry.unmirror(dual)
        if self._adapts:
            return self._begin_adaptive(problem, MirrorPair(x, y), image)
        steps = self._rule.steps(problem, tree.detach(x), image)
        if not isinstance(self.average, Average):
            return PrimalDualState(primal, dual, x, y, steps)
        number = tree.real_like(tree.leaves(x)[0]).new_tensor(1.0 - self.average.first)
        return AveragedState(primal, dual, x, y, steps, x, y, number)

    def _begin_adaptive(self, problem: Saddle, start: MirrorPair, image: Var) -> AdaptiveState:
        x = start.primal
        if isinstance(self.balance, AdaptiveBalance):
            units = self._rule.units(problem, tree.detach(x), image)
        else:  # the balance is part of the steps
            tau, sigma = self._rule.steps(problem, tree.detach(x), image)
            nothing = tree.real_like(tree.leaves(x)[0]).new_zeros(())
            units = Units(tree.map_steps(lambda t: 1 / t, tau), nothing, sigma)
        batch = tree.leaves(x)[0].shape[: problem.batch(x)]
        return self._adaptation.begin(start, units, batch)

    # --- iteration --------------------------------------------------------------------------------

    def step(self, problem: Saddle, state: State) -> State:
        if isinstance(state, MirrorPair):
            x = self.geometry.unmirror(state.primal)
            y = self.dual_geometry.unmirror(state.dual)
            pair, _ = self._move(problem, state, x, y, Steps(self.tau, self.sigma))
            primal = self.geometry.attach_drift(state.primal, pair.primal)
            return MirrorPair(primal, self.dual_geometry.attach_drift(state.dual, pair.dual))
        if isinstance(state, AdaptiveState):
            here, steps = MirrorPair(state.primal, state.dual), self._in_use(state)
            found, _ = self._move(problem, here, *here, steps)
            return self._adaptation.after(state, found, steps, self._reflection(problem))
        steps = self._in_use(state)
        if numbers_are_cheap(tree.leaves(state.x)[0]):
            steps = tree.as_numbers(steps)
        pair, x_new = self._move(problem, state, state.x, state.y, steps)
        y_new = self.dual_geometry.unmirror(pair.dual)
        if not isinstance(state, AveragedState):
            return PrimalDualState(pair.primal, pair.dual, x_new, y_new, state.steps)
        number = state.number + 1

        def mean(old: Tensor, new: Tensor) -> Tensor:
            return old + (new - old) / number

        return AveragedState(
            pair.primal,
            pair.dual,
            x_new,
            y_new,
            state.steps,
            tree_map(mean, state.x_mean, x_new),
            tree_map(mean, state.y_mean, y_new),
            number,
        )

    def _in_use(self, state: Any) -> Steps:
        """The user's own (perhaps learned) steps, or the derived ones."""
        if isinstance(state, AdaptiveState):
            derived = state.units.at(state.balance, state.primal, state.dual)
        else:
            derived = state.steps
        return Steps(
            derived.tau if self.tau is None else self.tau,
            derived.sigma if self.sigma is None else self.sigma,
        )

    def _reflection(self, problem: Saddle) -> float:
        """How far beyond T(z) one may go: (1 − α)/α for T averaged with α = 1/2, or 2/3 with f."""
        if isinstance(problem.smooth, Zero):
            return 1.0
        both_given = self.tau is not None and self.sigma is not None
        return 0.0 if both_given else 0.5  # else L_f is known: steps were derived with it

    def _move(
        self, problem: Saddle, state: Any, x: Var, y: Var, steps: Steps
    ) -> tuple[MirrorPair, Var]:
        """Both mirror variables after one iteration, and the new x."""
        tau, sigma = steps
        slope = problem.operator.adjoint(y)
        if not isinstance(problem.smooth, Zero):
            slope = tree_map(torch.add, slope, problem.smooth.grad(x))
        half = tree.sub_scaled(state.primal, tau, slope)
        primal = mirror_prox(problem.nonsmooth, self.geometry, half, tau)
        x_new = self.geometry.unmirror(primal)
        rise = problem.operator(tree.extrapolate(x_new, x))
        down = tree_map(operator.neg, sigma) if isinstance(sigma, tuple) else -sigma
        half = tree.sub_scaled(state.dual, down, rise)
        dual = mirror_prox(problem.conjugate, self.dual_geometry, half, sigma)
        return MirrorPair(primal, dual), x_new

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: State) -> Var:
        if isinstance(state, MirrorPair):
            return self.geometry.unmirror(state.primal)
        return state.x_mean if isinstance(state, AveragedState) else state.x

    def dual(self, state: State) -> Var:
        if isinstance(state, MirrorPair):
            return self.dual_geometry.unmirror(state.dual)
        return state.y_mean if isinstance(state, AveragedState) else state.y

    def points(self, state: State) -> Var:
        return (self.solution(state), self.dual(state))

    def coordinates(self, state: State) -> tuple[tuple[Geometry, Var], ...]:
        if isinstance(state, AveragedState):
            return ()
        pairs = (self.geometry, state.primal), (self.dual_geometry, state.dual)
        return tuple(pair for pair in pairs if not is_euclidean(pair[0]))

    def fixed_point_map(self, state: State) -> tuple[Algorithm[Saddle, Any], MirrorPair]:
        if isinstance(state, AveragedState):
            raise GradientError(
                "The averaged iterate is no fixed point of the iteration, so the fixed-point "
                "family cannot differentiate it. Use Unroll or Forward, or average=False."
            )
        if isinstance(state, MirrorPair):
            return self, state
        tau, sigma = self._in_use(state)
        plain = replace(
            self, tau=tau, sigma=sigma, norm=None, precondition=False, scaling=None, restart=None,
            balance=1.0,
        )  # fmt: skip
        if isinstance(state, AdaptiveState):
            return plain, MirrorPair(state.x, state.y)
        return plain, MirrorPair(state.primal, state.dual)

    def with_variables(self, state: State, reduced: MirrorPair) -> State:
        if isinstance(state, MirrorPair):
            return reduced
        x, y = self.solution(reduced), self.dual(reduced)
        return state._replace(primal=reduced.primal, dual=reduced.dual, x=x, y=y)

    def transport(self, before: Any, after: Any, cotangent: Any) -> Any:
        return cotangent._replace(
            primal=self.geometry.transport(before.primal, after.primal, cotangent.primal),
            dual=self.dual_geometry.transport(before.dual, after.dual, cotangent.dual),
        )

    def splitting(self, problem: Saddle) -> Splitting | None:
        own = type(self) is PrimalDual  # a class of somebody else's may step otherwise
        given = own and self.tau is not None and self.sigma is not None
        if not (given and is_euclidean(self.geometry) and is_euclidean(self.dual_geometry)):
            return None
        return Splitting(problem, self.tau, self.sigma).detached

    def evened(self, state: Any, batch: int = 0) -> Algorithm[Saddle, Any] | None:
        if self.tau is None or self.sigma is None or self.coordinates(state):
            return None
        x, y = norm_of(state.primal, batch), norm_of(state.dual, batch)
        balance = (_largest(self.tau, x) / _largest(self.sigma, x)).sqrt()
        wanted = torch.where((x > 0) & (y > 0), x / torch.where(y > 0, y, 1.0), balance)
        share = (wanted / balance).clamp(max=1.0)
        tau, sigma = over(self.tau, 1 / share, state.primal), over(self.sigma, share, state.dual)
        return replace(self, tau=tau, sigma=sigma)

    def units(self, state: Any) -> Any:
        r"""√τ and √σ, in whose metric x²/τ + y²/σ steps keep distances from growing.

        They are powers of two, which leave digits as they are.
        """
        if self.tau is None or self.sigma is None or self.coordinates(state):
            return None
        return MirrorPair(_roots(self.tau, state.primal), _roots(self.sigma, state.dual))

    def steps(self, problem: Saddle, state: State) -> dict[str, Any]:
        if isinstance(state, MirrorPair):
            return {"tau": self.tau, "sigma": self.sigma}
        steps = self._in_use(state)._asdict()
        if isinstance(self.balance, AdaptiveBalance) and isinstance(state, AdaptiveState):
            steps["balance"] = state.balance
        return steps

    def residual(
        self, before: State, after: State, batch: int = 0, largest: Tensor | None = None
    ) -> Tensor:
        """Of a state that adapts: of what T would move with steps of balance 1.

        It is relative to the size now, or where the run began: what went before may have been far
        too large.
        """
        if not isinstance(before, AdaptiveState) or not isinstance(after, AdaptiveState):
            return super().residual(before, after, batch, largest)
        with torch.no_grad():
            change = change_at_balance_one(before, after, batch)
            begun = after._replace(x=after.begun.primal, y=after.begun.dual)
            size = torch.maximum(self.size(after, batch), self.size(begun, batch))
            if largest is not None:
                size = torch.maximum(size, torch.finfo(size.dtype).eps * largest)
            return change.to(size) / torch.where(size > 0, size, 1.0)

    def remedy(self, problem: Saddle, state: State) -> str:
        """A balance by which both variables move at their own scale, where the present one is off.

        .. math:: r = ‖x‖/‖y‖

        The primal weight of Applegate et al. (2021), from norms instead of distances.
        """
        scale = "bring the data to the size of 1"
        if self.tau is not None or self.sigma is not None:
            return f"leave tau and sigma None, or {scale}"
        if not (is_euclidean(self.geometry) and is_euclidean(self.dual_geometry)):
            return scale
        if isinstance(self.balance, AdaptiveBalance):
            diagonal = self.precondition or self.scaling is not None
            return scale if diagonal else f"try PrimalDual(…, scaling=Ruiz()), or {scale}"
        x, y = (as_number(tree.norm(tree.detach(v))) for v in self.points(state))
        present = as_number(torch.as_tensor(self.balance).amax())
        if x == 0 or y == 0 or 1 / _OFF_BALANCE < x / y / present < _OFF_BALANCE:
            return scale if self.precondition else f"try PrimalDual(precondition=True), or {scale}"
        return (
            f"the primal variable is {x / y:.1e} times as large as the dual one: try "
            f"PrimalDual(balance={float(f'{x / y:.1g}'):g}), or {scale}"
        )

    def require_sound(self, state: State) -> None:
        require_sound_mirror(self.geometry, state.primal, "PrimalDual")
        require_sound_mirror(self.dual_geometry, state.dual, "PrimalDual")


def _require_saddle(problem: Any) -> None:
    if not isinstance(problem, Saddle):
        raise InputError(
            f"PrimalDual solves Saddle problems, not {type(problem).__name__}. "
            "Use ForwardBackward for a Composite problem."
        )


def _largest(steps: Any, like: Tensor) -> Tensor:
    """The largest step of each element of a batch, whose shape is that of ``like``."""
    if isinstance(steps, tuple):
        return torch.stack([_largest(s, like) for s in steps]).amax(0)
    t = torch.as_tensor(steps, dtype=like.dtype, device=like.device).detach()
    own = like.ndim > 0 and t.shape[: like.ndim] == like.shape
    return t.reshape(*like.shape, -1).amax(-1) if own else t.amax().expand(like.shape)


def _roots(steps: Any, like: Var) -> Var:
    """Powers of two next to the roots of steps, for each real number of a variable."""
    if isinstance(like, tuple):
        each = steps if isinstance(steps, tuple) else (steps,) * len(like)
        return tree.rebuilt(like, [_roots(s, t) for s, t in zip(each, like, strict=True)])
    real = tree.real_like(like)
    t = torch.as_tensor(steps, dtype=real.dtype, device=real.device).detach()
    t = torch.exp2(0.5 * torch.log2(t)).expand(like.shape)
    t = torch.ldexp(torch.ones_like(t), torch.frexp(t).exponent)
    return torch.complex(t, t) if like.is_complex() else t


def _shape(t: Tensor) -> torch.Size:
    return t.shape


def _joint_shape(t: Tensor, other: Tensor) -> torch.Size:
    return torch.broadcast_shapes(t.shape, other.shape)
