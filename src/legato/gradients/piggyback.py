"""The adjoint of a saddle-point problem, solved by the primal–dual algorithm itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Tree, tree_map
from legato.algorithms import PrimalDual
from legato.errors import GradientError, InputError
from legato.gradients.base import Linearisation, Task, pull_back
from legato.gradients.fixed_point import FixedPointGradient
from legato.gradients.linear.base import LinearResult, attainable, norm, residual_of, worst
from legato.gradients.linear.spectrum import largest_decay_rate
from legato.running import Run


@dataclass(frozen=True)
class Piggyback(FixedPointGradient):
    r"""The primal–dual adjoint: run the same algorithm on the linearised saddle-point problem.

    .. math::
        X⁺ &= ∂\mathrm{prox}\,(X − τ(K^*Y + ∇²f X + ∇_xL)) \\
        Y⁺ &= ∂\mathrm{prox}\,(Y + σ(K(2X⁺ − X) + ∇_yL))

    (X, Y) is the derivative of the saddle point when the problem is tilted by ε∇L, so each
    iteration is one product with the Jacobian of the step. Constant memory; for PrimalDual only.
    Defaults: ``iterations=1000``, ``tol=1e-6``.
    Reference: Bogensperger, Chambolle, Pock (2022).

    >>> weight = torch.tensor(0.25, requires_grad=True)
    >>> data = lg.SquaredDistance(torch.tensor([0.0, 1.0]))
    >>> problem = lg.Saddle(lg.Differences(dims=(-1,)), lg.L1(weight), nonsmooth=data)
    >>> x = lg.solve(problem, lg.PrimalDual(), gradient=lg.Piggyback(), stop=lg.Stop(500)).x
    >>> x[1].backward()
    >>> weight.grad.round(decimals=3)  # x = (weight, 1 − weight)
    tensor(-1.)
    """

    iterations: int = 1000
    tol: float = 1e-6

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.tol > 0:
            raise InputError("Piggyback needs iterations ≥ 1 and tol > 0.")

    def differentiate(self, task: Task) -> Run:
        if not isinstance(task.algorithm, PrimalDual):
            raise GradientError(
                f"Piggyback differentiates PrimalDual, not {type(task.algorithm).__name__}. "
                "Use Implicit() or FixedPoint()."
            )
        return super().differentiate(task)

    def adjoint(self, linearisation: Linearisation, xi: Tensor) -> LinearResult:
        if not bool(xi.any()):
            return LinearResult.zero(xi)
        algorithm, state = linearisation.algorithm, linearisation.state
        assert isinstance(algorithm, PrimalDual)
        geometry, dual_geometry = algorithm.geometry, algorithm.dual_geometry
        rows = linearisation.rows
        slopes = rows.unflatten(xi)
        # ∇L as cotangents of points; entries at the boundary have no influence and count as 0.
        source = geometry.inverse_metric(state.primal, slopes.primal)
        dual_source = dual_geometry.inverse_metric(state.dual, slopes.dual)
        epsilon = xi.new_zeros(()).requires_grad_()
        with torch.enable_grad():
            tilted = linearisation.problem.with_linear_terms(
                tree_map(lambda s: epsilon * s, source),
                tree_map(lambda s: epsilon * s, dual_source),
            )
        tangent_map = Linearisation(tilted, algorithm, state, [epsilon])
        one = torch.ones_like(epsilon)
        tangent = tree_map(torch.zeros_like, state)
        changes: list[list[float]] = []
        tol, settled = attainable(self.tol, xi), False
        for _ in range(self.iterations):
            moved = tangent_map.transport(tangent_map.jvp(tree.leaves(tangent), [one]))
            change, size = (
                norm(rows.flatten(moved) - rows.flatten(tangent)),
                norm(rows.flatten(moved)),
            )
            changes.append(change.reshape(-1).tolist())
            tangent = moved
            settled = not bool((change > 0.1 * tol * size).any())
            if settled:
                break
        X = geometry.metric(state.primal, tangent.primal)
        Y = dual_geometry.metric(state.dual, tangent.dual)
        w = _cotangent(linearisation, slopes, X, Y)
        residual = worst(residual_of(linearisation.transposed, w, xi)[1])
        # The iteration stops by the change of (X, Y), which rates and steps turn into a residual
        # of w of several tol. One that ran out of iterations has to show tol itself.
        converged = residual <= (10 * tol if settled else tol)
        return LinearResult(w, residual, len(changes), converged, largest_decay_rate(changes), tol)


def _cotangent(linearisation: Linearisation, xi: Any, X: Tree, Y: Tree) -> Tensor:
    r"""The solution of (I − A)ᵀw = ξ in terms of the adjoint saddle point (X, Y).

    .. math:: w_x = D_xξ_x − X/τ + D_x(∇²f X − K^*Y), \quad w_y = D_yξ_y + D_y K X + Y/σ
    """
    problem, state, algorithm = linearisation.problem, linearisation.state, linearisation.algorithm
    assert isinstance(algorithm, PrimalDual)
    geometry, dual_geometry = algorithm.geometry, algorithm.dual_geometry
    point = geometry.unmirror(state.primal)
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in tree.leaves(point)]
        slope = tree.leaves(problem.smooth.grad(tree.rebuild(point, inputs)))
    curved = tree.rebuild(point, pull_back(slope, inputs, tree.leaves(X)))
    bend = geometry.metric(state.primal, tree_map(torch.sub, curved, problem.operator.adjoint(Y)))
    rise = dual_geometry.metric(state.dual, problem.operator(X))
    w_primal = tree.sub_scaled(tree_map(torch.add, xi.primal, bend), _inverse(algorithm.tau), X)
    w_dual = tree.sub_scaled(tree_map(torch.add, xi.dual, rise), _inverse(algorithm.sigma, -1), Y)
    return linearisation.rows.flatten(xi._replace(primal=w_primal, dual=w_dual)).detach()


def _inverse(step: Any, sign: int = 1) -> Any:
    return tree_map(lambda s: sign / (s.detach() if isinstance(s, Tensor) else s), step)
