"""Polyak's heavy ball, with a prox."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from legato._support import tree
from legato.errors import InputError
from legato.functions import Function
from legato.optim.base import DescentOptimizer
from legato.optim.evaluation import Closure, require_finite
from legato.optim.groups import learning_rate, momentum


class HeavyBall(DescentOptimizer):
    r"""The heavy ball with a prox: iPiano's update without its conditions and its safeguards.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻))

    One gradient a step, which ``step()`` takes from ``.grad`` or from a closure, so it also goes
    with random losses. Without prox and with a constant lr it is ``torch.optim.SGD``; where lr
    changes, β multiplies the last move and not, as there, a mean of gradients.
    Reference: Polyak (1964); Zavriev and Kostyuk (1993).

    Args:
        params: Tensors or parameter groups; a group may have its own lr, momentum and prox.
        lr: The step α.
        momentum: The inertia β in [0, 1).
        prox: The function g; None is no function.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.HeavyBall([theta], lr=0.1, momentum=0.5)
    >>> result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], optimizer, steps=60)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    descends: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        prox: Function | None = None,
    ) -> None:
        super().__init__(params, prox, {"lr": lr, "momentum": momentum})

    @classmethod
    def polyak(
        cls, params: Iterable[Any], L: float, mu: float, prox: Function | None = None
    ) -> HeavyBall:
        r"""Polyak's constants for μ ≤ ∇²f ≤ L: α = 4/(√L + √μ)², β = ((√L − √μ)/(√L + √μ))²."""
        if not 0 < mu <= L < math.inf:
            raise InputError(f"Polyak's constants need 0 < μ ≤ L, not μ = {mu!r}, L = {L!r}.")
        total = math.sqrt(L) + math.sqrt(mu)
        return cls(params, 4 / total**2, ((math.sqrt(L) - math.sqrt(mu)) / total) ** 2, prox)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One step; returns the loss at the point where it began, if there is a closure."""
        loss = None
        if closure is None:
            gradient = self._gradients(None)
        else:
            here = self._evaluate(closure)
            require_finite(here)
            loss, gradient = here.loss, here.gradient
        x, previous = tree.copy(self._params()), self._recall("previous")
        last_move = None if previous is None else tree.tree_map(torch.sub, x, previous)
        pairs = [(learning_rate(group), momentum(group)) for group in self.param_groups]
        numbers = [(lr, beta if lr > 0 else 0.0) for lr, beta in pairs]
        self._write(self._inertial_step(x, gradient, last_move, numbers))
        self._keep("previous", x)
        return loss
