"""Polyak's heavy ball, with a prox."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from legato.errors import InputError, StepError
from legato.functions import Function
from legato.optim import vectors
from legato.optim.base import Closure, DescentOptimizer, require_finite


class HeavyBall(DescentOptimizer):
    r"""The heavy ball with a prox: iPiano's update without its conditions and its safeguards.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻))

    One gradient a step, which ``step()`` takes from ``.grad`` or from a closure, so it also goes
    with random losses. :meth:`polyak` has the optimal constants of strongly convex quadratics.
    Reference: Polyak (1964); Zavriev and Kostyuk (1993).

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.HeavyBall([theta], alpha=0.1, beta=0.5)
    >>> result = lg.fit(lambda level: (theta - 1).square().sum(), [theta], optimizer, steps=60)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    descends: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        alpha: float,
        beta: float = 0.9,
        prox: Function | None = None,
    ) -> None:
        if not 0 < alpha < math.inf:
            raise StepError(f"HeavyBall needs a positive, finite step α, not {alpha!r}.")
        if not 0 <= beta < 1:
            raise InputError(f"HeavyBall needs an inertia β in [0, 1), not {beta!r}.")
        self.alpha, self.beta = alpha, beta
        super().__init__(params, prox)

    @classmethod
    def polyak(
        cls, params: Iterable[Any], L: float, mu: float, prox: Function | None = None
    ) -> HeavyBall:
        r"""Polyak's constants for μ ≤ ∇²f ≤ L: α = 4/(√L + √μ)², β = ((√L − √μ)/(√L + √μ))²."""
        if not 0 < mu <= L < math.inf:
            raise InputError(f"Polyak's constants need 0 < μ ≤ L, not μ = {mu!r}, L = {L!r}.")
        total = math.sqrt(L) + math.sqrt(mu)
        beta = ((math.sqrt(L) - math.sqrt(mu)) / total) ** 2
        return cls(params, 4 / total**2, beta, prox)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One step; returns the loss at the point where it began, if there is a closure."""
        params = self._params()
        loss = None
        if closure is None:
            self._require_gradients(None)
            gradient = [p.grad.detach() for p in params]  # type: ignore[union-attr]
        else:
            here = self._evaluate(closure)
            require_finite(here)
            loss, gradient = here.loss, here.gradient
        x, previous = vectors.copy(params), self._recall("previous")
        half = vectors.combine(x, -self.alpha, gradient)
        if previous is not None:
            half = vectors.combine(half, self.beta, vectors.difference(x, previous))
        self._write(self._prox(half, self.alpha))
        self._keep("previous", x)
        return loss
