"""Half-quadratic splitting: two proxes in turn, as plug-and-play methods have them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.algorithms.base import Algorithm
from legato.algorithms.douglas_rachford import derived_step, require_two_proxes
from legato.algorithms.resolvent import prepared, resolved
from legato.algorithms.start import fitted, mirror_start, require_positive_step
from legato.errors import InputError
from legato.functions import mirror_prox
from legato.functions.quadratics import Factor
from legato.geometry import Euclidean
from legato.problems import Composite


class HalfQuadraticPoint(NamedTuple):
    """Both variables alone: what the fixed-point map iterates."""

    x: Var
    z: Var


class HalfQuadraticState(NamedTuple):
    """The point of f, that of g, the present step, the last one, and a factorised system."""

    x: Var
    z: Var
    step: Tensor
    least: Tensor
    factor: Factor


State = HalfQuadraticPoint | HalfQuadraticState


@dataclass(frozen=True, eq=False)
class HalfQuadratic(Algorithm[Composite, Any]):
    r"""Half-quadratic splitting: f and g have variables of their own, drawn together.

    .. math:: \min_{x, z}\; f(x) + g(z) + \tfrac1{2α}‖x − z‖², \qquad
        x^{n+1} = \mathrm{prox}_{αf}(z^n), \quad z^{n+1} = \mathrm{prox}_{αg}(x^{n+1})

    A constant α solves this problem and not that of f + g, from which it is away by O(α): g is
    smoothed by its Moreau envelope. With ``decay`` below 1, α shrinks by that factor in every
    iteration, down to ``least``. With a :class:`Denoiser` as g it is a plug-and-play method.
    Defaults: ``decay=1.0``, ``least=0.001``.
    Reference: Geman and Yang (1995); Zhang, Van Gool, Timofte (2020).

    Args:
        step_size: the first α, a number or a tensor with one number for each element of a batch;
            None derives 1/L_f, or 1 where f has no L.
        decay: the factor from one α to the next, in (0, 1].
        least: α does not fall below this share of the first.

    >>> y = torch.tensor([3.0, 0.5])
    >>> problem = lg.Composite(lg.SquaredDistance(y), lg.L1(1.0))
    >>> lg.solve(problem, lg.HalfQuadratic(0.5), stop=lg.Stop(100)).x.round(decimals=3)
    tensor([1.5000, 0.0000])
    >>> lg.solve(problem, lg.HalfQuadratic(0.5, decay=0.97), stop=lg.Stop(200)).x.round(decimals=1)
    tensor([2., 0.])
    """

    step_size: Tensor | float | None = None
    decay: float = 1.0
    least: float = 1e-3

    def __post_init__(self) -> None:
        require_positive_step(self.step_size, "step_size")
        if not (0 < self.decay <= 1 and 0 < self.least <= 1):
            raise InputError(
                f"HalfQuadratic needs decay and least in (0, 1], not {self.decay!r} and "
                f"{self.least!r}."
            )

    def init(self, problem: Composite, x0: Var | None) -> HalfQuadraticState:
        require_two_proxes(problem, "HalfQuadratic")
        z = mirror_start(Euclidean(), problem.nonsmooth, problem.start(), x0)
        return self._begin(problem, z, z)

    def resume(self, problem: Composite, state: State) -> HalfQuadraticState:
        require_two_proxes(problem, "HalfQuadratic")
        z = fitted(state.z, problem.start(), "The state")
        return self._begin(problem, state.x, z)

    def proceed(self, problem: Composite, state: State) -> HalfQuadraticState:
        fresh = self.resume(problem, state)
        if isinstance(state, HalfQuadraticState):
            fresh = fresh._replace(step=state.step)
        return self.recomputed(problem, fresh)

    def _begin(self, problem: Composite, x: Var, z: Var) -> HalfQuadraticState:
        derived = derived_step(self.step_size, problem, z)
        step = self.step_size if isinstance(self.step_size, Tensor) else derived
        return self.recomputed(problem, HalfQuadraticState(x, z, step, step * self.least, ()))

    def recomputed(self, problem: Composite, state: HalfQuadraticState) -> HalfQuadraticState:
        if self.decay < 1:  # the systems of all iterations differ
            return state
        return state._replace(factor=prepared(problem.smooth, state.z, state.step))

    def step(self, problem: Composite, state: State) -> State:
        if isinstance(state, HalfQuadraticPoint):
            factor = prepared(problem.smooth, state.z, self.step_size)
            return HalfQuadraticPoint(*self._move(problem, state, self.step_size, factor))
        alpha, factor = state.step, state.factor
        if self.decay < 1:
            factor = prepared(problem.smooth, state.z, alpha)
        x, z = self._move(problem, state, alpha, factor)
        if self.decay < 1:
            alpha = torch.maximum(alpha * self.decay, state.least)
        return state._replace(x=x, z=z, step=alpha)

    def _move(
        self, problem: Composite, state: State, alpha: Any, factor: Factor
    ) -> tuple[Var, Var]:
        batch = problem.batch(state.z)
        x = resolved(problem.smooth, factor, state.z, alpha, state.x, batch)
        return x, mirror_prox(problem.nonsmooth, Euclidean(), x, alpha)

    def solution(self, state: State) -> Var:
        return state.z

    def points(self, state: State) -> Var:
        return (state.x, state.z)

    def fixed_point_map(self, state: State) -> tuple[Algorithm[Any, Any], HalfQuadraticPoint]:
        if isinstance(state, HalfQuadraticPoint):
            return self, state
        point = HalfQuadraticPoint(state.x, state.z)
        return replace(self, step_size=state.step, decay=1.0), point

    def with_variables(self, state: State, reduced: HalfQuadraticPoint) -> State:
        return state._replace(x=reduced.x, z=reduced.z)

    def steps(self, problem: Composite, state: State) -> dict[str, Any]:
        return {"step": state.step if isinstance(state, HalfQuadraticState) else self.step_size}
