"""The primal–dual algorithm in Bregman geometries."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number, is_concrete
from legato._support.tree import Var, tree_map
from legato.algorithms.base import Algorithm
from legato.algorithms.start import (
    is_empty,
    mirror_start,
    neutral,
    require_positive_step,
    require_sound_mirror,
)
from legato.errors import GradientError, InputError, StepError
from legato.functions import Function, Separable, Zero, mirror_prox, strong_convexity
from legato.geometry import Euclidean, Geometry
from legato.problems import Saddle


@dataclass(frozen=True)
class Average:
    """The mean of the iterates first..N as output: first=1 (all computed ones) or 0 (the start).

    The ergodic mean, (1/N) Σ xⁿ. Reference: Chambolle and Pock (2016), Theorem 1.

    >>> pennies = lg.Saddle(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), lg.Simplex(), lg.Simplex())
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


class PrimalDualState(NamedTuple):
    """Mirror coordinates and points (or () to recompute them) of both variables, derived steps."""

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


@dataclass(frozen=True, eq=False)
class PrimalDual(Algorithm):
    r"""The primal–dual hybrid gradient method with Bregman distances.

    .. math::
        x^{n+1} &= \arg\min_x\, g(x) + ⟨∇f(x^n) + K^*y^n, x⟩ + \tfrac1τ D_ψ(x, x^n) \\
        y^{n+1} &= \arg\min_y\, h^*(y) − ⟨K(2x^{n+1} − x^n), y⟩ + \tfrac1σ D_φ(y, y^n)

    Steps satisfy (1/τ − L_f)/σ ≥ ‖K‖². What is not given is derived: τ = 1/(‖K‖/r + L_f) and
    σ = 1/(r‖K‖) with ``balance`` r. ``norm`` replaces ‖K‖ where another norm fits the geometries
    (max|K_ij| for games on simplices). ``precondition`` asks for diagonal steps. ``average``
    returns the ergodic mean. For ε-entropy add :func:`~legato.NegativeEntropy` to the problem.
    Reference: Chambolle and Pock (2016); Pock and Chambolle (2011) for preconditioning.

    >>> y = torch.tensor([0.0, 0.1, 1.0, 0.9])
    >>> data = lg.SquaredNorm() + lg.Linear(-y)  # ½‖x − y‖² without its constant
    >>> problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(0.1).dual(), nonsmooth=data)
    >>> lg.solve(problem, lg.PrimalDual(), stop=lg.Stop(500)).x.round(decimals=3)
    tensor([0.1000, 0.1000, 0.9000, 0.9000])
    """

    tau: Tensor | float | None = None
    sigma: Tensor | float | None = None
    geometry: Geometry = field(default_factory=Euclidean)
    dual_geometry: Geometry = field(default_factory=Euclidean)
    average: bool | Average = False
    balance: Tensor | float = 1.0
    norm: Tensor | float | None = None
    precondition: bool = False

    def __post_init__(self) -> None:
        require_positive_step(self.tau, "tau")
        require_positive_step(self.sigma, "sigma")
        require_positive_step(self.balance, "balance")
        if isinstance(self.average, bool):
            object.__setattr__(self, "average", Average() if self.average else None)
        if self.precondition and not (self.tau is self.sigma is self.norm is None):
            raise StepError("precondition derives both steps: do not give tau, sigma or norm.")

    # --- start ------------------------------------------------------------------------------------

    def init(self, problem: Saddle, x0: Var | None) -> Any:
        if not isinstance(problem, Saddle):
            raise InputError(
                f"PrimalDual solves Saddle problems, not {type(problem).__name__}. "
                "Use ForwardBackward for a Composite problem."
            )
        primal = mirror_start(self.geometry, problem.nonsmooth, problem.start(), x0)
        x = self.geometry.unmirror(primal)
        image = problem.operator(tree.detach(x))
        dual = neutral(self.dual_geometry, problem.dual, image)
        y = self.dual_geometry.unmirror(dual)
        steps = self._derive_steps(problem, tree.detach(x), image)
        if not isinstance(self.average, Average):
            return PrimalDualState(primal, dual, x, y, steps)
        number = tree.leaves(x)[0].new_tensor(1.0 - self.average.first)
        return AveragedState(primal, dual, x, y, steps, x, y, number)

    def _derive_steps(self, problem: Saddle, x: Var, image: Var) -> Steps:
        """Detached from the data; a learned ``balance`` keeps its gradient."""
        like = tree.leaves(x)[0]
        L = self._lipschitz(problem, like)
        if self.precondition:
            return self._diagonal_steps(problem, x, image, L)
        K = problem.operator.norm(x) if self.norm is None else self.norm
        K = torch.as_tensor(K).detach().to(like)
        K = torch.where(K > 0, K, torch.ones_like(K))  # K = 0 couples nothing: any step will do
        if self.tau is not None and self.sigma is not None:
            if None not in self._moduli(problem):
                self._require_stable(K, L)
            return Steps(*(torch.as_tensor(s).detach().to(like) for s in (self.tau, self.sigma)))
        self._require_strongly_convex(problem)
        if self.tau is not None:
            tau = torch.as_tensor(self.tau).detach().to(like)
            room = 1 / tau - L
            if is_concrete() and not bool((room > 0).all()):
                raise StepError(
                    f"tau = {as_number(tau.amax()):g} must be below 1/L_f = "
                    f"{1 / as_number(L.amax()):g}."
                )
            return Steps(tau, room / K**2)
        if self.sigma is not None:
            sigma = torch.as_tensor(self.sigma).detach().to(like)
            return Steps(1 / (sigma * K**2 + L), sigma)
        return Steps(1 / (K / self.balance + L), 1 / (self.balance * K))

    def _lipschitz(self, problem: Saddle, like: Tensor) -> Tensor:
        L = problem.smooth.lipschitz()
        if L is None:
            if self.tau is None or self.sigma is None:
                raise StepError(
                    f"No steps can be derived: the Lipschitz constant of "
                    f"{type(problem.smooth).__name__} is unknown. Give tau and sigma with "
                    "(1/tau − L)/sigma ≥ ‖K‖²."
                )
            L = 0.0
        return torch.as_tensor(L).detach().to(like)

    def _moduli(self, problem: Saddle) -> tuple[float | None, float | None]:
        return (
            strong_convexity(self.geometry, problem.nonsmooth),
            strong_convexity(self.dual_geometry, problem.dual),
        )

    def _require_strongly_convex(self, problem: Saddle) -> None:
        moduli = self._moduli(problem)
        if any(m is None or m < 1 for m in moduli):
            weak = self.geometry if moduli[0] is None or moduli[0] < 1 else self.dual_geometry
            raise StepError(
                f"No steps can be derived: {weak!r} is not 1-strongly convex on the domain of its "
                "term. Give both tau and sigma."
            )

    def _require_stable(self, K: Tensor, L: Tensor) -> None:
        if not is_concrete():
            return
        tau = torch.as_tensor(self.tau).detach().to(K)
        sigma = torch.as_tensor(self.sigma).detach().to(K)
        room = (1 / tau - L) / sigma
        if not bool((room >= K**2 * (1 - 1e-5)).all()):
            raise StepError(
                f"tau = {as_number(tau.amax()):g} and sigma = {as_number(sigma.amax()):g} violate "
                f"(1/tau − L_f)/sigma ≥ ‖K‖²: the left side is {as_number(room.amin()):g}, the "
                f"right {as_number(K.amax()) ** 2:g} (L_f = {as_number(L.amax()):g}). Take smaller "
                "steps, or leave both None to have them derived; if another norm of K fits your "
                "geometries, pass norm=…"
            )

    def _diagonal_steps(self, problem: Saddle, x: Var, image: Var, L: Tensor) -> Steps:
        """τ_j = 1/(Σ_i|K_ij|/r + L_f) and σ_i = 1/(r Σ_j|K_ij|), equal where a prox couples."""
        self._require_strongly_convex(problem)
        with torch.no_grad():
            absolute = problem.operator.absolute()
            columns = absolute.adjoint(tree_map(torch.ones_like, image))
            rows = absolute(tree_map(torch.ones_like, x))
        return Steps(
            _diagonal(problem.nonsmooth, columns, 1 / self.balance, L),
            _diagonal(problem.dual, rows, self.balance, 0.0),
        )

    # --- iteration --------------------------------------------------------------------------------

    def _sizes(self, derived: Steps) -> Steps:
        """The steps in use: the user's own (perhaps learned) tensors, or the derived ones."""
        return Steps(
            derived.tau if self.tau is None else self.tau,
            derived.sigma if self.sigma is None else self.sigma,
        )

    def step(self, problem: Saddle, state: Any) -> Any:
        tau = state.steps.tau if self.tau is None else self.tau
        sigma = state.steps.sigma if self.sigma is None else self.sigma
        lean = is_empty(state.x)
        x = self.geometry.unmirror(state.primal) if lean else state.x
        y = self.dual_geometry.unmirror(state.dual) if lean else state.y
        slope = problem.operator.adjoint(y)
        if not isinstance(problem.smooth, Zero):
            slope = tree_map(torch.add, slope, problem.smooth.grad(x))
        half = tree.sub_scaled(state.primal, tau, slope)
        primal = mirror_prox(problem.nonsmooth, self.geometry, half, tau)
        x_new = self.geometry.unmirror(primal)
        rise = problem.operator(tree.extrapolate(x_new, x))
        down = tree_map(operator.neg, sigma) if isinstance(sigma, tuple) else -sigma
        half = tree.sub_scaled(state.dual, down, rise)
        dual = mirror_prox(problem.dual, self.dual_geometry, half, sigma)
        if lean:
            return PrimalDualState(primal, dual, (), (), state.steps)
        y_new = self.dual_geometry.unmirror(dual)
        if not isinstance(state, AveragedState):
            return PrimalDualState(primal, dual, x_new, y_new, state.steps)
        number = state.number + 1

        def mean(old: Tensor, new: Tensor) -> Tensor:
            return old + (new - old) / number

        return AveragedState(
            primal,
            dual,
            x_new,
            y_new,
            state.steps,
            tree_map(mean, state.x_mean, x_new),
            tree_map(mean, state.y_mean, y_new),
            number,
        )

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: Any) -> Var:
        if isinstance(state, AveragedState):
            return state.x_mean
        return self.geometry.unmirror(state.primal) if is_empty(state.x) else state.x

    def dual(self, state: Any) -> Var:
        if isinstance(state, AveragedState):
            return state.y_mean
        return self.dual_geometry.unmirror(state.dual) if is_empty(state.y) else state.y

    def points(self, state: Any) -> Var:
        return (self.solution(state), self.dual(state))

    def fixed_point_map(self, state: Any) -> tuple[Algorithm, Any]:
        if isinstance(state, AveragedState):
            raise GradientError(
                "The averaged iterate is no fixed point of the iteration, so the fixed-point "
                "family cannot differentiate it. Use Unroll or Forward, or average=False."
            )
        tau, sigma = self._sizes(state.steps)
        plain = replace(self, tau=tau, sigma=sigma, norm=None, precondition=False)
        return plain, PrimalDualState(state.primal, state.dual, (), (), Steps((), ()))

    def with_variables(self, state: Any, lean: Any) -> Any:
        return state._replace(
            primal=lean.primal, dual=lean.dual, x=self.solution(lean), y=self.dual(lean)
        )

    def transport(self, before: Any, after: Any, cotangent: Any) -> Any:
        return cotangent._replace(
            primal=self.geometry.transport(before.primal, after.primal, cotangent.primal),
            dual=self.dual_geometry.transport(before.dual, after.dual, cotangent.dual),
        )

    def steps(self, problem: Saddle, state: Any) -> dict[str, Any]:
        return self._sizes(state.steps)._asdict()

    def require_sound(self, state: Any) -> None:
        require_sound_mirror(self.geometry, state.primal, "PrimalDual")
        require_sound_mirror(self.dual_geometry, state.dual, "PrimalDual")


def _diagonal(term: Function, sums: Var, scale: Any, extra: Any) -> Var:
    """1/(scale·sums + extra), made constant along axes that the prox of ``term`` couples."""
    if isinstance(sums, tuple):
        blocks = term.blocks if isinstance(term, Separable) else (term,) * len(sums)
        parts = zip(blocks, sums, strict=True)
        return tuple(_diagonal(block, part, scale, extra) for block, part in parts)
    for d in term.shared_dims():
        sums = sums.amax(d, keepdim=True)
    total = sums * scale + extra
    return 1 / torch.where(total > 0, total, torch.ones_like(total))
