"""The Potts iteration by the engine: any dtype, any device, any order of derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from legato.algorithms import Average, PrimalDual
from legato.algorithms.saddle.states import AveragedState, PrimalDualState
from legato.algorithms.saddle.steps import Steps
from legato.geometry import Entropy, Interval
from legato.gradients import GradientStrategy, Unroll
from legato.nn.fused.operator import Tensors
from legato.nn.fused.unrolling import iterate_from
from legato.nn.potts.model import PottsIterates, PottsSettings, dual_shape, model, potts_function


def iterate(tensors: Tensors, settings: PottsSettings, gradient: GradientStrategy) -> PottsIterates:
    r"""Run the Bregman primal–dual iteration of the Potts model in mirror coordinates.

    .. math:: a⁺ = (a − τ(c + K^⊤ \tanh b)) / (1 + τε), \quad u = \mathrm{softmax}(a), \quad
              b⁺ = b + σK(2u⁺ − u), \quad K = W∇

    Reference: Section 8 of Ochs et al. (2016).
    """
    cost, weights, tau, sigma, mirror, dual = tensors
    directions = settings.directions
    mean = Average(1) if settings.average else False
    state = iterate_from(
        model(cost, weights, directions, settings.epsilon),
        PrimalDual(tau, sigma, Entropy(), Interval(-1.0, 1.0), average=mean),
        _start(cost, len(directions), mirror, dual, settings.average),
        settings.iterations,
        gradient,
    )
    a = state.primal - state.primal.amax(1, keepdim=True)
    return PottsIterates(a, state.dual, state.x, state.x_mean if settings.average else None)


def _start(
    cost: Tensor, directions: int, mirror: Tensor | None, dual: Tensor | None, average: bool
) -> PrimalDualState | AveragedState:
    """The engine's state for given (or zero) mirror variables."""
    a = torch.zeros_like(cost) if mirror is None else mirror
    b = cost.new_zeros(dual_shape(cost, directions)) if dual is None else dual
    x, y = torch.softmax(a, 1), torch.tanh(b)
    plain = PrimalDualState(1 + torch.log_softmax(a, 1), b, x, y, Steps((), ()))
    return AveragedState(*plain, x, y, cost.new_zeros(())) if average else plain


def _unrolled(tensors: Tensors, settings: PottsSettings) -> Tensors:
    return iterate(tensors, settings, Unroll(checkpoint=settings.checkpoint or None))


potts = potts_function(_unrolled)
