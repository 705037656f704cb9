"""The primal–dual algorithm in Bregman geometries."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, holds, is_concrete, numbers_are_cheap, wide_norm
from legato._support.constants import held_constant
from legato._support.later import later
from legato._support.tree import Var, expand_over, tree_map
from legato.algorithms.balance import AdaptiveBalance
from legato.algorithms.base import Algorithm, is_euclidean
from legato.algorithms.restart import Restart
from legato.algorithms.ruiz import Ruiz
from legato.algorithms.start import (
    as_bound,
    as_step,
    constant_where_coupled,
    fitted,
    mirror_start,
    neutral,
    require_positive_step,
    require_sound_mirror,
)
from legato.errors import GradientError, InputError, StepError
from legato.functions import Function, Separable, Zero, mirror_prox
from legato.functions.complexity import require_same_numbers
from legato.geometry import Euclidean, Geometry
from legato.operators import Stack
from legato.problems import Saddle

_ROUNDING = 1e3
"""Units of rounding by which a variable must have moved for its way to count."""
_OFF_BALANCE = 30.0
"""Factor by which a balance may differ from what the sizes of the variables ask for."""


@dataclass(frozen=True)
class Average:
    """The mean of the iterates first..N as output: first=1 (all computed ones) or 0 (the start).

    The ergodic mean, (1/N) Σ xⁿ. Reference: Chambolle and Pock (2016), Theorem 1.

    >>> A, mixed = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), lg.Simplex()
    >>> pennies = lg.Saddle(A, mixed.conjugate(), nonsmooth=mixed)
    >>> algorithm = lg.PrimalDual(average=lg.Average(first=1))
    >>> found = lg.solve(pennies, algorithm, torch.tensor([0.9, 0.1]), stop=lg.Stop(500))
    >>> found.x.round(decimals=1)
    tensor([0.5000, 0.5000])
    """

    first: int = 1

    def __post_init__(self) -> None:
        if self.first not in (0, 1):
            raise InputError(f"Average runs over 1..N or 0..N: first is 0 or 1, not {self.first}.")


class Steps(NamedTuple):
    """τ and σ: numbers, tensors, or tuples of them for tuple variables."""

    tau: Any
    sigma: Any


class MirrorPair(NamedTuple):
    """Mirror coordinates of both variables alone: what the fixed-point map iterates."""

    primal: Var
    dual: Var


class PrimalDualState(NamedTuple):
    """Mirror coordinates and points of both variables, and the derived steps."""

    primal: Var
    dual: Var
    x: Var
    y: Var
    steps: Steps


class AveragedState(NamedTuple):
    """As PrimalDualState, with the running means of both points and how many they hold."""

    primal: Var
    dual: Var
    x: Var
    y: Var
    steps: Steps
    x_mean: Var
    y_mean: Var
    number: Tensor


class Units(NamedTuple):
    """What steps are made of besides the balance: 1/τ = coupling/r + smooth and σ = dual/r."""

    coupling: Any
    smooth: Any
    dual: Any


class AdaptiveState(NamedTuple):
    """The iterate z, the points T(z) of the step before, and what restarts and balances need.

    ``begun`` is where the present run began, ``number`` and ``total`` are its iterations and all,
    ``first`` and ``last`` are residuals, ``changes`` counts those of the balance.
    """

    primal: Var
    dual: Var
    x: Var
    y: Var
    units: Units
    balance: Tensor
    begun: MirrorPair
    number: Tensor
    total: Tensor
    first: Tensor
    last: Tensor
    changes: Tensor


State = MirrorPair | PrimalDualState | AveragedState | AdaptiveState


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
        balance: r, which trades primal against dual progress in derived steps; may be learned, or
            an :class:`AdaptiveBalance`, which finds it.
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
    def _fixed_balance(self) -> Tensor | float:
        return self.balance.start if isinstance(self.balance, AdaptiveBalance) else self.balance

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
        steps = self._derive_steps(problem, tree.detach(x), image)
        if not isinstance(self.average, Average):
            return PrimalDualState(primal, dual, x, y, steps)
        number = tree.real_like(tree.leaves(x)[0]).new_tensor(1.0 - self.average.first)
        return AveragedState(primal, dual, x, y, steps, x, y, number)

    def _begin_adaptive(self, problem: Saddle, start: MirrorPair, image: Var) -> AdaptiveState:
        x, y = start
        units = self._units(problem, tree.detach(x), image)
        like = tree.real_like(tree.leaves(x)[0])
        batch = tree.leaves(x)[0].shape[: problem.batch(x)]
        zero = like.new_zeros(batch)
        first = self.balance.start if isinstance(self.balance, AdaptiveBalance) else 1.0
        r, endless = torch.full_like(zero, first), torch.full_like(zero, torch.inf)
        return AdaptiveState(x, y, x, y, units, r, start, zero, zero, endless, endless, zero)

    def _units(self, problem: Saddle, x: Var, image: Var) -> Units:
        """Steps taken apart; where the balance is a number, it is part of them."""
        if not isinstance(self.balance, AdaptiveBalance):
            tau, sigma = self._derive_steps(problem, x, image)
            like = tree.real_like(tree.leaves(x)[0])
            return Units(tree.map_steps(lambda t: 1 / t, tau), like.new_zeros(()), sigma)
        held_constant(problem)  # the balance follows from iterates
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        L = constant_where_coupled(L, problem.nonsmooth, x)
        if self.precondition or self.scaling is not None:
            coupling, dual = self._diagonal_units(problem, x, image)
            return Units(coupling, L, dual)
        K = as_bound(problem.operator.norm(x) if self.norm is None else self.norm, like)
        K = torch.where(K > 0, K, torch.ones_like(K))
        coupling = constant_where_coupled(self._for_primal(problem, K), problem.nonsmooth, x)
        dual = _dual_steps(problem.conjugate, image, self._for_dual(problem, K), 1.0, 1.0)
        return Units(coupling, L, dual)

    def _derive_steps(self, problem: Saddle, x: Var, image: Var) -> Steps:
        """Attached to what they follow from, so far as norms are (see ``Operator.norm``)."""
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        if self.precondition or self.scaling is not None:
            return self._diagonal_steps(problem, x, image, L)
        K = problem.operator.norm(x) if self.norm is None else self.norm
        K = as_bound(K, like)
        K = torch.where(K > 0, K, torch.ones_like(K))  # K = 0 couples nothing: any step will do
        if self.tau is not None and self.sigma is not None:
            later(partial(self._require_stable, problem, K, L))
            given = (self.tau, self.sigma)
            return Steps(*(as_step(s, like) for s in given))
        m, n = self._require_moduli(problem)
        K_x, K_y = self._for_primal(problem, K), self._for_dual(problem, K)
        dual = problem.conjugate
        if self.tau is not None:
            tau = as_bound(self.tau, like)
            room = m / tau - L
            if not holds(room > 0):
                raise StepError(
                    f"tau = {as_number(tau.amax()):g} must be below 1/L_f = "
                    f"{m / as_number(L.amax()):g}."
                )
            least = room.amin() if room.ndim else room
            return Steps(tau, tree_map(lambda k: n * least / k**2, K_y))
        if self.sigma is not None:
            sigma = as_bound(self.sigma, like)
            most = sigma.amax()
            bound = constant_where_coupled(most * K_x**2 / n + L, problem.nonsmooth, x)
            return Steps(m / bound, sigma)
        bound = constant_where_coupled(K_x / self._fixed_balance + L, problem.nonsmooth, x)
        return Steps(m / bound, _dual_steps(dual, image, K_y, self._fixed_balance, n))

    def _for_primal(self, problem: Saddle, K: Tensor) -> Tensor:
        """‖K‖ such that it broadcasts against x: it has the shape of the batch."""
        axes = problem.operator.coupled
        return torch.as_tensor(expand_over(K, 0 if axes is None else axes[0]))

    def _for_dual(self, problem: Saddle, K: Tensor) -> Var:
        """‖K‖ such that it broadcasts against Kx, block by block of a stack."""
        if K.ndim == 0 or problem.operator.coupled is None:
            return K
        if isinstance(problem.operator, Stack):
            seen = problem.operator.coupled[0]
            parts = ((part, part.coupled or (seen, seen)) for part in problem.operator.operators)
            # A part that couples fewer axes than the stack keeps the others as axes of its image.
            return tuple(expand_over(K, out + seen - own) for _, (own, out) in parts)
        return torch.as_tensor(expand_over(K, problem.operator.coupled[1]))

    def _lipschitz(self, problem: Saddle, like: Tensor) -> Tensor:
        L = problem.smooth.lipschitz()
        if L is None:
            if self.tau is None or self.sigma is None:
                raise StepError(
                    f"No steps can be derived: the Lipschitz constant of "
                    f"{problem.smooth!r} is unknown. Give tau and sigma with (1/tau − L)/sigma ≥ "
                    "‖K‖², or the constant, as in Smooth(callable, constant=L)."
                )
            L = 0.0
        return as_bound(L, like)

    def _moduli(self, problem: Saddle) -> tuple[Any, Any]:
        return (
            self.geometry.modulus(problem.nonsmooth.bounds()),
            self.dual_geometry.modulus(problem.conjugate.bounds()),
        )

    def _require_moduli(self, problem: Saddle) -> tuple[Any, Any]:
        moduli = self._moduli(problem)
        if None in moduli:
            first = moduli[0] is None
            geometry = self.geometry if first else self.dual_geometry
            term = problem.nonsmooth if first else problem.conjugate
            raise StepError(
                f"No steps can be derived: how strongly convex {geometry!r} is on the domain of "
                f"{term!r} is unknown. Give both tau and sigma."
            )
        return moduli

    def _require_stable(self, problem: Saddle, K: Tensor, L: Tensor) -> None:
        """Refuse given steps that violate their condition, as far as it is known."""
        m, n = self._moduli(problem)
        if m is None or n is None or not is_concrete():
            return
        tau = torch.as_tensor(self.tau, dtype=K.dtype).detach().to(K)
        sigma = torch.as_tensor(self.sigma, dtype=K.dtype).detach().to(K)
        if sigma.numel() > 1:  # it broadcasts against y, the rest against x
            sigma = sigma.amin()
        K = self._for_primal(problem, K)
        room = (m / tau - L) * n / sigma
        if not holds(room >= K**2 * (1 - 1e-5)):
            raise StepError(
                f"tau = {as_number(tau.amax()):g} and sigma = {as_number(sigma):g} violate "
                f"(1/tau − L_f)/sigma ≥ ‖K‖²: the left side is {as_number(room.amin()):g}, the "
                f"right {as_number(K.amax()) ** 2:g} (L_f = {as_number(L.amax()):g}). Take smaller "
                "steps, or leave both None to have them derived; if another norm of K fits your "
                "geometries, pass norm=…"
            )

    def _diagonal_steps(self, problem: Saddle, x: Var, image: Var, L: Tensor) -> Steps:
        """τ_j = m/(k_j/r + L_f) and σ_i = n/(r l_i) of the diagonal units, equal where a prox
        couples."""
        m, n = self._require_moduli(problem)
        columns, rows = self._diagonal_sizes(problem, x, image)
        return Steps(
            _diagonal(problem.nonsmooth, columns, 1 / self._fixed_balance, L, m),
            _diagonal(problem.conjugate, rows, self._fixed_balance, 0.0, n),
        )

    def _diagonal_units(self, problem: Saddle, x: Var, image: Var) -> tuple[Var, Var]:
        """The same for r = 1, in parts: k_j and 1/l_i."""
        columns, rows = self._diagonal_sizes(problem, x, image)
        along = _diagonal(problem.nonsmooth, columns, 1.0, 0.0, 1.0)
        return tree_map(torch.reciprocal, along), _diagonal(problem.conjugate, rows, 1.0, 0.0, 1.0)

    def _diagonal_sizes(self, problem: Saddle, x: Var, image: Var) -> tuple[Var, Var]:
        """k_j and l_i: sums of |K_ij| over columns and rows, or what a scaling has instead."""
        if self.scaling is not None:
            held_constant(problem)
            return self.scaling.sizes(problem.operator, x, image)
        absolute = problem.operator.absolute()
        columns = tree_map(torch.abs, absolute.adjoint(tree_map(torch.ones_like, image)))
        rows = tree_map(torch.abs, absolute(tree_map(torch.ones_like, x)))
        return columns, rows

    # --- iteration --------------------------------------------------------------------------------

    def _sizes(self, derived: Steps) -> Steps:
        """The steps in use: the user's own (perhaps learned) tensors, or the derived ones."""
        return Steps(
            derived.tau if self.tau is None else self.tau,
            derived.sigma if self.sigma is None else self.sigma,
        )

    def step(self, problem: Saddle, state: State) -> State:
        if isinstance(state, MirrorPair):
            x = self.geometry.unmirror(state.primal)
            y = self.dual_geometry.unmirror(state.dual)
            pair, _ = self._move(problem, state, x, y, Steps(self.tau, self.sigma))
            primal = self.geometry.attach_drift(state.primal, pair.primal)
            return MirrorPair(primal, self.dual_geometry.attach_drift(state.dual, pair.dual))
        if isinstance(state, AdaptiveState):
            return self._adaptive_step(problem, state)
        steps = self._sizes(state.steps)
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

    def _adaptive_step(self, problem: Saddle, state: AdaptiveState) -> AdaptiveState:
        steps = self._adaptive_steps(state)
        here = MirrorPair(state.primal, state.dual)
        found, _ = self._move(problem, here, *here, steps)
        number, total = state.number + 1, state.total + 1
        with torch.no_grad():
            move, batch = tree_map(torch.sub, found, here), number.ndim
            primal = _weighted_norm(move.primal, _reciprocal(steps.tau), batch)
            residual = torch.hypot(
                primal, _weighted_norm(move.dual, _reciprocal(steps.sigma), batch)
            )
            first = torch.where(number == 1, residual.to(number), state.first)
            if self.restart is None:
                assert isinstance(self.balance, AdaptiveBalance)
                anew = self.balance.due(number, total)
            else:
                anew = self.restart.due(residual, first, state.last, number, total)
            balance, changes = self._balanced(state, found, anew)
        moved = found
        if self.restart is not None:
            reflection = self._reflection(problem)
            moved = self.restart.drawn(here, found, state.begun, number, anew, reflection)
        return AdaptiveState(
            *moved,
            *found,
            state.units,
            balance,
            tree_map(lambda new, old: torch.where(_over(anew, new), new, old), found, state.begun),
            torch.where(anew, 0.0, number),
            total,
            first,
            torch.where(anew, torch.inf, residual).to(first),
            changes,
        )

    def _balanced(
        self, state: AdaptiveState, found: MirrorPair, anew: Tensor
    ) -> tuple[Tensor, Tensor]:
        """r and the number of its changes, after a run that ends at ``found`` where ``anew``."""
        if not isinstance(self.balance, AdaptiveBalance):
            return state.balance, state.changes
        batch, units, r = anew.ndim, state.units, state.balance
        sizes = (units.coupling, _reciprocal(units.dual))
        ways = tree_map(torch.sub, found, state.begun)
        primal, dual = (_weighted_norm(v, s, batch) for v, s in zip(ways, sizes, strict=True))
        # In the norm of the steps rounding in one variable is as large as that in the other: a y
        # that is 0 but for cancellation moves by nothing else.
        shares = (r**-0.5, r**0.5)
        lengths = [_weighted_norm(z, s, batch) for z, s in zip(found, sizes, strict=True)]
        size = torch.hypot(*(n * share for n, share in zip(lengths, shares, strict=True)))
        least = _ROUNDING * torch.finfo(r.dtype).eps * size
        sound = anew
        for way, share in zip((primal, dual), shares, strict=True):
            sound = sound & (way * share > least) & way.isfinite()
        return self.balance.changed(r, primal.to(r), dual.to(r), sound, state.changes)

    def _adaptive_steps(self, state: AdaptiveState) -> Steps:
        """Both steps at the present balance, or the user's own (perhaps learned) tensors."""
        tau, sigma = self.tau, self.sigma
        if tau is None:
            tau = _over_balance(state.units.coupling, state.balance, state.primal)
            tau = tree.map_steps(lambda t: 1 / (t + state.units.smooth), tau)
        if sigma is None:
            sigma = _over_balance(state.units.dual, state.balance, state.dual)
        return Steps(tau, sigma)

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

    def steps(self, problem: Saddle, state: State) -> dict[str, Any]:
        if isinstance(state, MirrorPair):
            return {"tau": self.tau, "sigma": self.sigma}
        steps = self._in_use(state)._asdict()
        if isinstance(self.balance, AdaptiveBalance) and isinstance(state, AdaptiveState):
            steps["balance"] = state.balance
        return steps

    def _in_use(self, state: Any) -> Steps:
        if isinstance(state, AdaptiveState):
            return self._adaptive_steps(state)
        return self._sizes(state.steps)

    def residual(
        self, before: State, after: State, batch: int = 0, largest: Tensor | None = None
    ) -> Tensor:
        r"""Of a state that adapts: how far T would move z with steps of balance 1.

        .. math:: \sqrt{\max(1, 1/r)^2 ‖x^+ − x‖^2 + \max(1, r)^2 ‖y^+ − y‖^2}

        A variable that moves little because its step is short has not arrived; with a longer step
        it moves by no more than the steps' ratio (Beck 2017, Theorem 10.9). It is relative to the
        size now, or where the run began: what went before may have been far too large.
        """
        if not isinstance(before, AdaptiveState) or not isinstance(after, AdaptiveState):
            return super().residual(before, after, batch, largest)
        with torch.no_grad():
            r = before.balance if before.balance.ndim == batch else before.balance.reshape(-1)
            along = tree_map(torch.sub, after.x, before.primal)
            across = tree_map(torch.sub, after.y, before.dual)
            change = torch.hypot(
                _weighted_norm(along, 1.0, batch) * _largest(1 / r, batch),
                _weighted_norm(across, 1.0, batch) * _largest(r, batch),
            )
            size = self.size(after, batch)
            begun = after._replace(x=after.begun.primal, y=after.begun.dual)
            size = torch.maximum(size, self.size(begun, batch))
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


def _over(t: Tensor, like: Tensor) -> Tensor:
    """One number for each element of a batch, such that it broadcasts against its entries."""
    return t.reshape((*t.shape, *(1,) * (like.ndim - t.ndim)))


def _over_balance(size: Any, balance: Tensor, like: Var) -> Any:
    """size/r for a variable; one for each of its parts where r differs along a batch."""
    if isinstance(size, tuple) or (isinstance(like, tuple) and balance.ndim):
        sizes = size if isinstance(size, tuple) else (size,) * len(like)
        pairs = zip(sizes, like, strict=True)
        return tuple(_over_balance(part, balance, t) for part, t in pairs)
    return size / (balance if isinstance(like, tuple) else _over(balance, like))


def _reciprocal(steps: Any) -> Any:
    return tree.map_steps(lambda s: 1 / s, steps)


def _weighted_norm(x: Var, weights: Any, batch: int) -> Tensor:
    """(Σ w_j |x_j|²)^½ for each element of a batch."""
    if isinstance(x, tuple):
        each = weights if isinstance(weights, tuple) else (weights,) * len(x)
        parts = [_weighted_norm(t, w, batch) for t, w in zip(x, each, strict=True)]
        return torch.linalg.vector_norm(torch.stack(parts), dim=0)
    scaled = x * weights**0.5
    return (
        wide_norm(scaled, tuple(range(batch, scaled.ndim))) if scaled.ndim > batch else scaled.abs()
    )


def _largest(factor: Tensor, batch: int) -> Tensor:
    """At least 1, for each element of a batch or, where that is not asked for, for all."""
    factor = factor.clamp(min=1)
    return factor if factor.ndim == batch else factor.amax()


def _shape(t: Tensor) -> torch.Size:
    return t.shape


def _joint_shape(t: Tensor, other: Tensor) -> torch.Size:
    return torch.broadcast_shapes(t.shape, other.shape)


def _dual_steps(dual: Function, image: Var, K: Var, balance: Any, modulus: Any) -> Var:
    """σ = n/(r‖K‖), constant where the prox of h* couples entries."""
    if isinstance(K, tuple):
        blocks = dual.blocks if isinstance(dual, Separable) else (dual,) * len(K)
        parts = zip(blocks, image, K, strict=True)
        return tuple(_dual_steps(b, part, k, balance, modulus) for b, part, k in parts)
    return modulus / (balance * constant_where_coupled(K, dual, image))


def _diagonal(term: Function, sums: Var, scale: Any, extra: Any, modulus: Any) -> Var:
    """m/(scale·sums + extra), made constant along axes that the prox of ``term`` couples."""
    if isinstance(sums, tuple):
        blocks = term.blocks if isinstance(term, Separable) else (term,) * len(sums)
        parts = zip(blocks, sums, strict=True)
        return tuple(_diagonal(block, part, scale, extra, modulus) for block, part in parts)
    total = constant_where_coupled(sums * scale + extra, term, sums)
    return modulus / torch.where(total > 0, total, torch.ones_like(total))
