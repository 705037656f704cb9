"""The Potts iteration by the engine: any dtype, any device, any order of derivative."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from legato.algorithms import Average, PrimalDual
from legato.algorithms.primal_dual import AveragedState, PrimalDualState, Steps
from legato.functions import Box, Linear, NegativeEntropy, Simplex
from legato.geometry import Entropy, Interval
from legato.gradients import GradientStrategy, Unroll
from legato.nn.kernels.neighbourhood import Offset, offsets
from legato.nn.kernels.potts_iterates import PottsIterates, canonical_weights
from legato.operators import Differences
from legato.problems import Saddle
from legato.running import Stop
from legato.solving import solve


def model(cost: Tensor, weights: Tensor, directions: Sequence[Offset], epsilon: float) -> Saddle:
    """min_u max_p ⟨W∇u, p⟩ + ⟨c, u⟩ over the pixelwise simplex and |p| ≤ 1, plus ε Σ u log u."""
    term = Simplex(dim=1 - cost.ndim) + Linear(cost)
    if epsilon > 0:
        term = term + NegativeEntropy(epsilon)
    return Saddle(
        Differences(offsets=tuple(directions), weights=weights), Box(-1.0, 1.0), nonsmooth=term
    )


def algorithm(tau: Tensor, sigma: Tensor, average: bool = False) -> PrimalDual:
    """The engine's primal–dual method in the geometries of the Potts model."""
    mean = Average(1) if average else False
    return PrimalDual(tau, sigma, Entropy(), Interval(-1.0, 1.0), average=mean)


def start(
    cost: Tensor, directions: int, state: tuple[Tensor, Tensor] | None, average: bool = False
) -> PrimalDualState | AveragedState:
    """The engine's state for given (or zero) mirror variables."""
    shape = (*cost.shape[:2], directions, *cost.shape[2:])
    a, b = (torch.zeros_like(cost), cost.new_zeros(shape)) if state is None else state
    primal = 1 + torch.log_softmax(a, 1)
    x, y = torch.softmax(a, 1), torch.tanh(b)
    plain = PrimalDualState(primal, b, x, y, Steps((), ()))
    return AveragedState(*plain, x, y, cost.new_zeros(())) if average else plain


def potts(
    cost: Tensor,
    weights: Tensor | None,
    tau: Tensor,
    sigma: Tensor,
    *,
    iterations: int,
    epsilon: float = 0.0,
    neighbours: int = 4,
    mirror: Tensor | None = None,
    dual: Tensor | None = None,
    average: bool = False,
    checkpoint: int | None = None,
) -> PottsIterates:
    r"""Run the Bregman primal–dual iteration of the Potts model in mirror coordinates.

    .. math:: a⁺ = (a − τ(c + K^⊤ \tanh b)) / (1 + τε), \quad u = \mathrm{softmax}(a), \quad
              b⁺ = b + σK(2u⁺ − u), \quad K = W∇

    Reference: Section 7 of Ochs et al. (2016).
    """
    directions = offsets(cost.ndim - 2, neighbours)
    w = canonical_weights(weights, cost, len(directions))
    shape = (*cost.shape[:2], len(directions), *cost.shape[2:])
    a = torch.zeros_like(cost) if mirror is None else mirror
    b = cost.new_zeros(shape) if dual is None else dual
    done = solve(
        model(cost, w, directions, epsilon),
        algorithm(tau, sigma, average),
        start(cost, len(directions), (a, b), average),
        gradient=Unroll(checkpoint=checkpoint),
        stop=Stop(iterations),
    ).state
    return _iterates(done, done.x_mean if average else None)


def solve_implicitly(
    problem: Saddle,
    cost: Tensor,
    tau: Tensor,
    sigma: Tensor,
    state: tuple[Tensor, Tensor] | None,
    iterations: int,
    gradient: GradientStrategy,
) -> PottsIterates:
    """The same solution, differentiated by one of the fixed-point family."""
    directions = len(problem.operator.offsets)  # type: ignore[attr-defined]
    first = start(cost, directions, state)
    stop = Stop(iterations)
    done = solve(problem, algorithm(tau, sigma), first, gradient=gradient, stop=stop).state
    return _iterates(done, None)


def _iterates(state: PrimalDualState | AveragedState, mean: Tensor | None) -> PottsIterates:
    a = state.primal - state.primal.amax(1, keepdim=True)
    return PottsIterates(a, state.dual, state.x, mean)
