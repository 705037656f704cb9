"""The adjoint of a saddle-point problem, solved by the primal–dual algorithm itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legato._support import tree
from legato._support.tree import Var, tree_map
from legato.algorithms import Algorithm, PrimalDual
from legato.errors import GradientError, InputError
from legato.gradients.base import Backward
from legato.gradients.fixed_point import FixedPointGradient, warn_if_inexact
from legato.gradients.linear_solvers import LinearResult, _decay, attainable, relative_residual
from legato.gradients.linearisation import Linearisation
from legato.problems import Saddle
from legato.running import Run, Stop, Trace


@dataclass(frozen=True)
class Piggyback(FixedPointGradient):
    r"""The primal–dual adjoint: run the same algorithm on the linearised saddle-point problem.

    .. math::
        X⁺ &= ∂\mathrm{prox}\,(X − τ(K^*Y + ∇²f X + ∇_xL)) \\
        Y⁺ &= ∂\mathrm{prox}\,(Y + σ(K(2X⁺ − X) + ∇_yL))

    (X, Y) is the derivative of the saddle point when the problem is tilted by ε∇L, so each
    iteration is one product with the Jacobian of the step. Constant memory; for PrimalDual only.
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

    def differentiate(
        self,
        problem: Any,
        algorithm: Algorithm,
        state: Any,
        stop: Stop,
        trace: Trace | None,
        report: Backward,
    ) -> Run:
        if not isinstance(algorithm, PrimalDual):
            raise GradientError(
                f"Piggyback differentiates PrimalDual, not {type(algorithm).__name__}. "
                "Use Implicit() or FixedPoint()."
            )
        return super().differentiate(problem, algorithm, state, stop, trace, report)

    def adjoint(self, problem: Saddle, linearisation: Linearisation, xi: Var) -> LinearResult:
        algorithm = linearisation.algorithm
        assert isinstance(algorithm, PrimalDual)
        geometry, dual_geometry = algorithm.geometry, algorithm.dual_geometry
        state = linearisation.state
        size = float(tree.norm(xi))
        if size == 0:
            return LinearResult(torch.zeros_like(tree.flatten(xi)), 0.0, 0, True)
        # Sources as cotangents of points; entries at the boundary have no influence and count 0.
        source = geometry.inverse_metric(state.primal, xi.primal)
        dual_source = dual_geometry.inverse_metric(state.dual, xi.dual)
        epsilon = tree.leaves(state.primal)[0].new_zeros(()).requires_grad_()
        with torch.enable_grad():
            tilted = problem.with_linear_terms(
                tree_map(lambda s: epsilon * s, source),
                tree_map(lambda s: epsilon * s, dual_source),
            )
        tangent_map = Linearisation(tilted, algorithm, state, [epsilon])
        one = torch.ones_like(epsilon)
        tangent = tree_map(torch.zeros_like, state)
        changes: list[float] = []
        tol = attainable(self.tol, epsilon)
        for _ in range(self.iterations):
            moved = tangent_map.transport(tangent_map.jvp(tree.leaves(tangent), [one]))
            changes.append(float(tree.norm(tree_map(torch.sub, moved, tangent))))
            tangent = moved
            if not changes[-1] > 0.1 * tol * float(tree.norm(tangent)):
                break
        X = geometry.metric(state.primal, tangent.primal)
        Y = dual_geometry.metric(state.dual, tangent.dual)
        w = _cotangent(problem, algorithm, state, xi, X, Y)
        residual = relative_residual(linearisation.transposed, w, tree.flatten(xi))
        return LinearResult(w, residual, len(changes), residual <= tol * 10, _decay(changes))

    def conclude(self, result: LinearResult, linearisation: Linearisation) -> None:
        warn_if_inexact(result, linearisation, attainable(self.tol, result.solution))


def _cotangent(
    problem: Saddle, algorithm: PrimalDual, state: Any, xi: Any, X: Var, Y: Var
) -> Tensor:
    r"""The solution of (I − A)ᵀw = ξ in terms of the adjoint saddle point (X, Y).

    .. math:: w_x = D_xξ_x − X/τ + D_x(∇²f X − K^*Y), \quad w_y = D_yξ_y + D_y K X + Y/σ
    """
    geometry, dual_geometry = algorithm.geometry, algorithm.dual_geometry
    slope = problem.operator.adjoint(Y)
    with torch.enable_grad():
        points = [t.detach().requires_grad_() for t in tree.leaves(geometry.unmirror(state.primal))]
        gradient = tree.leaves(problem.smooth.grad(tree.rebuild(state.primal, points)))
        live = [(g, t) for g, t in zip(gradient, tree.leaves(X), strict=True) if g.requires_grad]
        curved: Any = [None] * len(points)
        if live:
            curved = torch.autograd.grad(
                [g for g, _ in live], points, [t for _, t in live], allow_unused=True
            )
    filled = [torch.zeros_like(p) if c is None else c for c, p in zip(curved, points, strict=True)]
    bend = tree_map(torch.sub, tree.rebuild(state.primal, filled), slope)
    tau, sigma = algorithm.tau, algorithm.sigma
    w_primal = tree_map(
        torch.add,
        tree.sub_scaled(xi.primal, _inverse(tau), X),
        geometry.metric(state.primal, bend),
    )
    w_dual = tree_map(
        torch.add,
        tree.sub_scaled(xi.dual, tree_map(lambda s: -s, _inverse(sigma)), Y),
        dual_geometry.metric(state.dual, problem.operator(X)),
    )
    return tree.flatten(xi._replace(primal=w_primal, dual=w_dual)).detach()


def _inverse(step: Any) -> Any:
    return tree_map(lambda s: 1 / s.detach() if isinstance(s, Tensor) else 1 / s, step)
