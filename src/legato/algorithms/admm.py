"""The alternating direction method of multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var, tree_map
from legato.algorithms.base import Algorithm
from legato.algorithms.start import (
    as_bound,
    as_step,
    fitted,
    mirror_start,
    neutral,
    require_positive_step,
)
from legato.errors import InputError, StepError
from legato.functions import Composed, Function, Scaled, Zero, mirror_prox
from legato.functions.algebra import scale, terms_of
from legato.functions.complexity import require_same_numbers
from legato.functions.prox import has_prox
from legato.functions.quadratics import Factor, System, is_quadratic
from legato.geometry import Euclidean
from legato.operators import Identity, Operator
from legato.problems import Composite, Saddle


class ADMMPoint(NamedTuple):
    """The variables alone: what the fixed-point map iterates."""

    x: Var
    z: tuple[Var, ...]
    u: tuple[Var, ...]


class ADMMState(NamedTuple):
    """x, the copies z_j of K_j x, the scaled multipliers u_j, ρ, and what the systems share."""

    x: Var
    z: tuple[Var, ...]
    u: tuple[Var, ...]
    rho: Tensor
    factor: Factor


State = ADMMPoint | ADMMState


@dataclass(frozen=True, eq=False)
class ADMM(Algorithm[Any, Any]):
    r"""The alternating direction method of multipliers, for quadratic data and any penalties.

    .. math::
        x^{n+1} &= \arg\min_x\, q(x) + \tfrac{ρ}2 \sum_j ‖K_j x − z_j^n + u_j^n‖² \\
        z_j^{n+1} &= \mathrm{prox}_{h_j/ρ}(K_j x^{n+1} + u_j^n), \qquad
        u_j^{n+1} = u_j^n + K_j x^{n+1} − z_j^{n+1}

    for min q(x) + Σ h_j(K_j x), with everything quadratic in q. The first line is a linear system:
    it is divided by where it is diagonal in the entries or, for circular blurs and masked Fourier
    transforms, in the frequencies; for matrices it is factorised once; else it is solved by
    conjugate gradients. Whatever ρ > 0 is, the iteration converges. Elements of a batch may have
    their own ρ. Reference: Boyd, Parikh, Chu, Peleato, Eckstein (2011).

    Default: ``relaxation=1.0``.

    Args:
        rho: ρ, a number or a tensor (learned, or one for each element of a batch); None derives
            L_q/‖K‖².
        relaxation: K_j x is replaced by its mean with z_j, of this weight, in (0, 2).

    >>> A, b = torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.tensor([3.0, 0.5])
    >>> lasso = lg.LeastSquares(A, b) + lg.L1(1.0)
    >>> lg.solve(lasso, lg.ADMM(), stop=lg.Stop(200)).x.round(decimals=4)
    tensor([2., 0.])
    """

    rho: Tensor | float | None = None
    relaxation: float = 1.0

    def __post_init__(self) -> None:
        require_positive_step(self.rho, "rho")
        if not 0 < self.relaxation < 2:
            raise InputError(f"The relaxation of ADMM must lie in (0, 2), not {self.relaxation!r}.")

    # --- start ------------------------------------------------------------------------------------

    def init(self, problem: Any, x0: Var | None) -> ADMMState:
        q, parts = taken_apart(problem)
        x = mirror_start(Euclidean(), Zero(), problem.start(), x0)
        with torch.no_grad():  # where K or h has batch axes that x has not yet
            images = [K(tree.detach(x)) for K, _ in parts]
            z = [
                neutral(Euclidean(), h, image) for (_, h), image in zip(parts, images, strict=True)
            ]
            for (K, _), part in zip(parts, z, strict=True):
                back = require_same_numbers(x, K.adjoint(part))
                x = tree_map(_as_large_as, x, back)
        z = [tree_map(_as_large_as, part, K(x)) for (K, _), part in zip(parts, z, strict=True)]
        u = tuple(tree_map(torch.zeros_like, part) for part in z)
        if x0 is not None:
            z = [K(x) for K, _ in parts]
        return self._begin(problem, q, parts, ADMMPoint(x, tuple(z), u))

    def resume(self, problem: Any, state: State) -> ADMMState:
        q, parts = taken_apart(problem)
        x = fitted(state.x, problem.start(), "The state")
        if len(parts) != len(state.z):
            return self.init(problem, x)
        images = [K(tree.detach(x)) for K, _ in parts]
        z = tuple(
            fitted(part, image, "A copy in the state")
            for part, image in zip(state.z, images, strict=True)
        )
        begun = self._begin(problem, q, parts, ADMMPoint(x, z, state.u))
        if isinstance(state, ADMMState):  # the multipliers ρu stay
            ratio = tree.detach(state.rho) / begun.rho
            begun = begun._replace(u=tree_map(lambda t: _lifted(ratio, t) * t, state.u))
        return begun

    def _begin(self, problem: Any, q: Function, parts: Parts, point: ADMMPoint) -> ADMMState:
        rho = self._rho(q, parts, point.x)
        system = _system(q, parts)
        factor = system.factor(point.x, _lifted(self._given(rho), tree.leaves(point.x)[0]))
        return ADMMState(*point, rho, factor)

    def recomputed(self, problem: Any, state: ADMMState) -> ADMMState:
        q, parts = taken_apart(problem)
        return self._begin(problem, q, parts, ADMMPoint(*state[:3]))

    def _given(self, derived: Tensor) -> Any:
        """The ρ in use: the user's own (perhaps learned) tensor, or the derived one."""
        return derived if self.rho is None else self.rho

    def _rho(self, q: Function, parts: Parts, x: Var) -> Tensor:
        like = tree.real_like(tree.leaves(x)[0])
        if self.rho is not None:
            return as_step(self.rho, like)
        L = q.lipschitz()
        if L is None:
            raise StepError(
                f"No rho can be derived: the Lipschitz constant of {q!r} is unknown. Give ADMM "
                "one, e.g. rho=1.0."
            )
        L = as_bound(L, like).amax()
        squares = [K.norm(x).to(like).amax() ** 2 for K, _ in parts]
        total = torch.stack(squares).sum()
        one = torch.ones_like(total)
        return torch.where(L > 0, L, one) / torch.where(total > 0, total, one)

    # --- iteration --------------------------------------------------------------------------------

    def step(self, problem: Any, state: State) -> State:
        q, parts = taken_apart(problem)
        system, x = _system(q, parts), state.x
        rho = self._given(state.rho) if isinstance(state, ADMMState) else self.rho
        along = _lifted(rho, tree.leaves(x)[0])
        factor = state.factor if isinstance(state, ADMMState) else system.factor(x, along)
        right = tree_map(torch.neg, q.grad(tree_map(torch.zeros_like, x)))
        for (K, _), z, u in zip(parts, state.z, state.u, strict=True):
            pulled = K.adjoint(tree_map(torch.sub, z, u))
            right = tree_map(lambda r, p: r + along * p, right, pulled)
        x = system.solve(factor, right, along, tree.detach(x), problem.batch(x))
        copies, multipliers = [], []
        for (K, h), z, u in zip(parts, state.z, state.u, strict=True):
            image = K(x)
            if self.relaxation != 1.0:
                image = tree_map(lambda i, z: torch.lerp(z, i, self.relaxation), image, z)
            moved = tree_map(torch.add, image, u)
            new = mirror_prox(h, Euclidean(), moved, _inverse(rho, moved))
            copies.append(new)
            multipliers.append(tree_map(torch.sub, moved, new))
        point = ADMMPoint(x, tuple(copies), tuple(multipliers))
        return ADMMState(*point, *state[3:]) if isinstance(state, ADMMState) else point

    # --- reading a state --------------------------------------------------------------------------

    def solution(self, state: State) -> Var:
        return state.x

    def dual(self, state: State) -> Var:
        """y = ρu of the first term; the terms that a problem has beside it keep theirs."""
        rho = self._given(state.rho) if isinstance(state, ADMMState) else self.rho
        return tree_map(lambda t: _lifted(rho, t) * t, state.u[0])

    def points(self, state: State) -> Var:
        return (state.x, state.z, state.u)

    def fixed_point_map(self, state: State) -> tuple[Algorithm[Any, Any], ADMMPoint]:
        if isinstance(state, ADMMPoint):
            return self, state
        plain = replace(self, rho=self._given(state.rho))
        return plain, ADMMPoint(state.x, state.z, state.u)

    def with_variables(self, state: State, reduced: ADMMPoint) -> State:
        return reduced if isinstance(state, ADMMPoint) else state._replace(**reduced._asdict())

    def steps(self, problem: Any, state: State) -> dict[str, Any]:
        return {"rho": self._given(state.rho) if isinstance(state, ADMMState) else self.rho}

    def remedy(self, problem: Any, state: State) -> str:
        x, u = (as_number(tree.norm(tree.detach(v))) for v in (state.x, state.u))
        if x == 0 or u == 0:
            return ""
        return "try ADMM(relaxation=1.6), or another rho: ten times as large, or as small"


# --- a problem, taken apart -----------------------------------------------------------------------

Parts = tuple[tuple[Operator, Function], ...]
"""Pairs (K_j, h_j)."""


def taken_apart(problem: Any) -> tuple[Function, Parts]:
    """q and the pairs (K_j, h_j) of q(x) + Σ h_j(K_j x), the penalty of a Saddle first."""
    if not isinstance(problem, Composite | Saddle):
        raise InputError(
            f"ADMM solves Composite and Saddle problems, not {type(problem).__name__}."
        )
    parts = [(problem.operator, problem.penalty)] if isinstance(problem, Saddle) else []
    quadratic: list[Function] = []
    for term in (*terms_of(problem.smooth), *terms_of(problem.nonsmooth)):
        if is_quadratic(term):
            quadratic.append(term)
        else:
            parts.append(_behind(term))
    if not parts:
        parts.append((Identity(), Zero()))
    for _, h in parts:
        if not has_prox(h, Euclidean()):
            raise InputError(
                f"ADMM needs a prox of {h!r}, which is neither quadratic nor in the table of "
                "proxes. Use ForwardBackward or PrimalDual, which take its gradient."
            )
    q = sum(quadratic[1:], quadratic[0]) if quadratic else Zero()
    return q, tuple(parts)


def _behind(term: Function) -> tuple[Operator, Function]:
    """f(Kx) as (K, f); factors go with f."""
    if isinstance(term, Composed):
        return term.operator, term.function
    if isinstance(term, Scaled) and isinstance(term.function, Composed):
        inner = term.function
        return inner.operator, scale(term.factor, inner.function)
    return Identity(), term


def _system(q: Function, parts: Parts) -> System:
    return System(q, tuple(K for K, _ in parts))


def _as_large_as(t: Tensor, other: Tensor) -> Tensor:
    return t.expand(torch.broadcast_shapes(t.shape, other.shape))


def _lifted(rho: Any, t: Tensor) -> Any:
    """ρ, one for each element of a batch or one for all, against t."""
    if not isinstance(rho, Tensor) or rho.ndim == 0:
        return rho
    batch = max((axis + 1 for axis, size in enumerate(rho.shape) if size > 1), default=0)
    return rho.reshape(rho.shape[:batch] + (1,) * (t.ndim - batch))


def _inverse(rho: Any, like: Var) -> Any:
    if isinstance(like, tuple):
        return tuple(_inverse(rho, part) for part in like)
    return 1 / _lifted(rho, like)
