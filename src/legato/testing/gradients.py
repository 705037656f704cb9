"""The law of gradients: they are what central differences of the solve are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from legato._support.tree import Var
from legato.algorithms import Algorithm
from legato.errors import InputError
from legato.gradients import GradientStrategy, Unroll
from legato.running import Stop
from legato.solving import solve
from legato.testing.report import Report, hold
from legato.testing.sampling import require_double, slope_errors


def check_gradient(
    problem: Callable[..., Any],
    algorithm: Algorithm[Any, Any] | None,
    gradient: GradientStrategy,
    loss: Callable[[Var], Tensor],
    parameters: Sequence[Tensor],
    x0: Var | None = None,
    stop: Stop | None = None,
    tolerance: float = 1e-6,
) -> Report:
    r"""Compare a gradient with central differences of the solve, h = 1e-6, in float64.

    .. math:: \frac{dL}{dθ}[d] ≈ \frac{L(x(θ + hd)) − L(x(θ − hd))}{2h}

    Where the solution has a kink in θ there is no such derivative. Raises a
    :class:`~legato.errors.LawError` where the two differ by more than ``tolerance``, relative to
    the norms of gradient and direction, parameter by parameter.

    Args:
        problem: a function of the parameters that returns a problem or an energy.
        algorithm: how to solve it; None as in :func:`~legato.solve`.
        gradient: the strategy to be checked.
        loss: a function of the solution x.
        parameters: float64 leaves with ``requires_grad``; moved in place, and put back.
        x0: a start.
        stop: 1000 iterations if None. Strategies that suppose a solution need it solved to
            rounding; a tolerance of 1e-12 would be an error of 1e-6 in the differences.
        tolerance: the largest relative difference.

    >>> weight = torch.tensor(1.0).double().requires_grad_()
    >>> data = lg.SquaredDistance(torch.tensor([3.0, 0.5]).double())
    >>> legato.testing.check_gradient(
    ...     lambda w: data + lg.L1(w), None, lg.Implicit(), torch.sum, [weight]
    ... )["gradient"] < 1e-6
    True
    """
    for p in parameters:
        if not (p.is_leaf and p.requires_grad):
            raise InputError("Parameters must be leaves that record gradients: requires_grad_().")
        require_double(p)
    stop = Stop(1000) if stop is None else stop

    def value(strategy: GradientStrategy) -> Tensor:
        return loss(solve(problem(*parameters), algorithm, x0, gradient=strategy, stop=stop).x)

    found = torch.autograd.grad(value(gradient), parameters, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    slopes = [torch.zeros_like(p) if g is None else g for p, g in pairs]
    errors = slope_errors(lambda: value(Unroll()).detach(), parameters, slopes)
    look = (
        "Is the problem solved (for Implicit and its kin), is there a kink near θ, or is a tensor "
        "detached on its way? legato.diagnose tells more."
    )
    return Report(repr(gradient), (hold("gradient", errors, tolerance, look),))
