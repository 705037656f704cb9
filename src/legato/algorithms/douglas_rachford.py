"""Douglas–Rachford splitting: two proxes, and no gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from legato._support import tree
from legato._support.checks import as_number
from legato._support.tree import Var, tree_map
from legato.algorithms.base import Algorithm
from legato.algorithms.resolvent import prepared, require_resolvent, resolved
from legato.algorithms.start import as_bound, as_step, fitted, mirror_start, require_positive_step
from legato.errors import InputError
from legato.functions import mirror_prox
from legato.functions.prox import has_prox
from legato.functions.quadratics import Factor
from legato.geometry import Euclidean
from legato.problems import Composite


class DouglasRachfordPoint(NamedTuple):
    """The iterate z and the point x = prox_g(z) alone: what the fixed-point map iterates."""

    z: Var
    x: Var


class DouglasRachfordState(NamedTuple):
    """z, x = prox_g(z), the step, and what the linear systems of all iterations share."""

    z: Var
    x: Var
    step: Tensor
    factor: Factor


State = DouglasRachfordPoint | DouglasRachfordState


@dataclass(frozen=True, eq=False)
class DouglasRachford(Algorithm[Composite, Any]):
    r"""Douglas–Rachford splitting of f + g by their proxes, whatever the step.

    .. math::
        x^n = \mathrm{prox}_{αg}(z^n), \qquad
        z^{n+1} = z^n + λ\bigl(\mathrm{prox}_{αf}(2x^n − z^n) − x^n\bigr)

    f has a prox in the table, or is quadratic: then a linear system is solved, as in
    :class:`ADMM`. Where a term stands behind an operator, use that.
    Default: ``relaxation=1.0``.
    Reference: Lions and Mercier (1979); Eckstein and Bertsekas (1992).

    Args:
        step_size: α, a number or a tensor that broadcasts against x with one number for each
            element of a batch; None derives 1/L_f, or 1 where f has no L.
        relaxation: λ in (0, 2).

    >>> A, b = torch.tensor([[1.0, 0.5], [0.0, 1.0]]), torch.tensor([3.0, 0.5])
    >>> lasso = lg.LeastSquares(A, b) + lg.L1(1.0)
    >>> lg.solve(lasso, lg.DouglasRachford(), stop=lg.Stop(200)).x.round(decimals=4)
    tensor([2., 0.])
    """

    step_size: Tensor | float | None = None
    relaxation: float = 1.0

    def __post_init__(self) -> None:
        require_positive_step(self.step_size, "step_size")
        if not 0 < self.relaxation < 2:
            raise InputError(
                f"The relaxation of DouglasRachford must lie in (0, 2), not {self.relaxation!r}."
            )

    def init(self, problem: Composite, x0: Var | None) -> DouglasRachfordState:
        require_two_proxes(problem, "DouglasRachford")
        z = mirror_start(Euclidean(), problem.nonsmooth, problem.start(), x0)
        return self._begin(problem, z)

    def resume(self, problem: Composite, state: State) -> DouglasRachfordState:
        require_two_proxes(problem, "DouglasRachford")
        return self._begin(problem, fitted(state.z, problem.start(), "The state"))

    def _begin(self, problem: Composite, z: Var) -> DouglasRachfordState:
        step = derived_step(self.step_size, problem, z)
        alpha = step if self.step_size is None else self.step_size
        x = mirror_prox(problem.nonsmooth, Euclidean(), z, alpha)
        return DouglasRachfordState(z, x, step, prepared(problem.smooth, z, alpha))

    def recomputed(self, problem: Composite, state: DouglasRachfordState) -> DouglasRachfordState:
        alpha = self._given(state)
        return state._replace(factor=prepared(problem.smooth, state.z, alpha))

    def _given(self, state: State) -> Any:
        """The step in use: the user's own (perhaps learned) tensor, or the derived one."""
        if isinstance(state, DouglasRachfordState) and self.step_size is None:
            return state.step
        return self.step_size

    def step(self, problem: Composite, state: State) -> State:
        f, g, alpha, z = problem.smooth, problem.nonsmooth, self._given(state), state.z
        if isinstance(state, DouglasRachfordState):
            factor = state.factor
        else:
            factor = prepared(f, z, alpha)
        x = mirror_prox(g, Euclidean(), z, alpha)
        mirrored = tree.extrapolate(x, z)
        other = resolved(f, factor, mirrored, alpha, state.x, problem.batch(x))
        new = tree_map(lambda z, x, o: z + self.relaxation * (o - x), z, x, other)
        return state._replace(z=new, x=x)

    def solution(self, state: State) -> Var:
        return state.x

    def points(self, state: State) -> Var:
        return (state.z, state.x)

    def fixed_point_map(self, state: State) -> tuple[Algorithm[Any, Any], DouglasRachfordPoint]:
        if isinstance(state, DouglasRachfordPoint):
            return self, state
        return replace(self, step_size=self._given(state)), DouglasRachfordPoint(state.z, state.x)

    def with_variables(self, state: State, reduced: DouglasRachfordPoint) -> State:
        return state._replace(z=reduced.z, x=reduced.x)

    def steps(self, problem: Composite, state: State) -> dict[str, Any]:
        return {"step": self._given(state)}

    def remedy(self, problem: Composite, state: State) -> str:
        present = as_number(torch.as_tensor(self._given(state)).amax())
        return f"try another step_size, ten times {present:.2g} or a tenth of it"


def require_two_proxes(problem: Any, who: str) -> None:
    """Refuse problems of another kind, and terms without a prox."""
    if not isinstance(problem, Composite):
        raise InputError(
            f"{who} solves Composite problems, not {type(problem).__name__}. Use ADMM where a term "
            "stands behind an operator."
        )
    require_resolvent(problem.smooth, who)
    if not has_prox(problem.nonsmooth, Euclidean()):
        raise InputError(f"{who} needs a Euclidean prox of {problem.nonsmooth!r}.")


def derived_step(given: Any, problem: Composite, x: Var) -> Tensor:
    """The step that was given, else 1/L_f; 1 where f has no L, or is flat."""
    like = tree.real_like(tree.leaves(x)[0])
    if given is not None:
        return as_step(given, like)
    L = problem.smooth.lipschitz()
    L = as_bound(1.0 if L is None else L, like).amax()
    return 1 / torch.where(L > 0, L, torch.ones_like(L))
