"""Proximal gradient descent: iPiano without inertia."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from legato.functions import Function
from legato.optim.ipiano import IPiano
from legato.optim.rules import NonConvex


class ProximalGradient(IPiano):
    r"""Forward–backward splitting for f + g, where g need not be convex.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x))

    ``alpha`` is a constant step; None searches for 0.99/L in every step.
    Reference: Attouch, Bolte, Svaiter (2013).

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.ProximalGradient([theta], prox=lg.NonNegative())
    >>> result = lg.fit(lambda level: (theta + 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach()
    tensor([0.])
    """

    def __init__(
        self, params: Iterable[Any], alpha: float | None = None, prox: Function | None = None
    ) -> None:
        super().__init__(params, NonConvex(beta=0.0, alpha=alpha), prox)
