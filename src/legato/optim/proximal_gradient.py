"""Proximal gradient descent: iPiano without momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from legato.functions import Function
from legato.optim.ipiano import IPiano
from legato.optim.rules import ConstantStep, NonConvexStep


class ProximalGradient(IPiano):
    r"""Forward–backward splitting for f + g, where g need not be convex.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x))

    With ``lr`` and without prox it is ``torch.optim.SGD`` that refuses steps into NaN.
    Reference: Attouch, Bolte, Svaiter (2013).

    Args:
        params: Tensors or parameter groups; a group may have its own prox, and lr if one is given.
        lr: A constant step α; None searches for 0.99/L in every step (then no scheduler applies).
        prox: The function g; None is no function.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.ProximalGradient([theta], prox=lg.NonNegative())
    >>> result = lg.fit(lambda inner: (theta + 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach()
    tensor([0.])
    """

    def __init__(
        self, params: Iterable[Any], lr: float | None = None, prox: Function | None = None
    ) -> None:
        rule = NonConvexStep(momentum=0.0) if lr is None else ConstantStep(lr, momentum=0.0)
        super().__init__(params, rule, prox)
