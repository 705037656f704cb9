"""The primal–dual algorithm in Bregman geometries."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, holds, is_concrete, numbers_are_cheap
from legato._support.later import later
from legato._support.tree import Var, expand_over, tree_map
from legato.algorithms.base import Algorithm, is_euclidean
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


State = MirrorPair | PrimalDualState | AveragedState


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
        balance: r, which trades primal against dual progress in derived steps; may be learned.
        norm: replaces ‖K‖ where another norm fits the geometries (max|K_ij| for games on
            simplices).
        precondition: derive diagonal steps.

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
    balance: Tensor | float = 1.0
    norm: Tensor | float | None = None
    precondition: bool = False

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
        primal = fitted(state.primal, problem.start(), "The state")
        image = problem.operator(tree.detach(self.geometry.unmirror(primal)))
        dual = fitted(state.dual, image, "The dual variable of the state")
        return self._begin(problem, primal, dual, image)

    def proceed(self, problem: Saddle, state: State) -> State:
        fresh = self.resume(problem, state)
        if isinstance(fresh, AveragedState) and isinstance(state, AveragedState):
            return fresh._replace(x_mean=state.x_mean, y_mean=state.y_mean, number=state.number)
        return fresh

    def _begin(self, problem: Saddle, primal: Var, dual: Var, image: Var) -> State:
        x, y = self.geometry.unmirror(primal), self.dual_geometry.unmirror(dual)
        steps = self._derive_steps(problem, tree.detach(x), image)
        if not isinstance(self.average, Average):
            return PrimalDualState(primal, dual, x, y, steps)
        number = tree.real_like(tree.leaves(x)[0]).new_tensor(1.0 - self.average.first)
        return AveragedState(primal, dual, x, y, steps, x, y, number)

    def _derive_steps(self, problem: Saddle, x: Var, image: Var) -> Steps:
        """Attached to what they follow from, so far as norms are (see ``Operator.norm``)."""
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        if self.precondition:
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
        bound = constant_where_coupled(K_x / self.balance + L, problem.nonsmooth, x)
        return Steps(m / bound, _dual_steps(dual, image, K_y, self.balance, n))

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
        """τ_j = 1/(Σ_i|K_ij|/r + L_f) and σ_i = 1/(r Σ_j|K_ij|), equal where a prox couples."""
        m, n = self._require_moduli(problem)
        absolute = problem.operator.absolute()
        columns = tree_map(torch.abs, absolute.adjoint(tree_map(torch.ones_like, image)))
        rows = tree_map(torch.abs, absolute(tree_map(torch.ones_like, x)))
        return Steps(
            _diagonal(problem.nonsmooth, columns, 1 / self.balance, L, m),
            _diagonal(problem.conjugate, rows, self.balance, 0.0, n),
        )

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
        tau, sigma = self._sizes(state.steps)
        plain = replace(self, tau=tau, sigma=sigma, norm=None, precondition=False)
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
        return self._sizes(state.steps)._asdict()

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
