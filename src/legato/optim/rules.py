"""The forms of iPiano: how step α, momentum β and the weights of H follow from L.

With Δ = ‖xⁿ − xⁿ⁻¹‖ every form keeps H = h(xⁿ) + δΔ² non-increasing, by at least γΔ² a step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from legato.errors import InputError, StepError
from legato.functions.convexity import is_convex
from legato.optim import groups

Group = Mapping[str, Any]

FRACTION_OF_LARGEST_STEP = 0.99
"""What a derived step takes of the largest one: the conditions are strict."""


@dataclass(frozen=True)
class Coefficients:
    """Step α, momentum β, the weights δ and γ of the Lyapunov inequality, and L behind them."""

    lr: float
    momentum: float
    delta: float
    gamma: float
    L: float


def largest_product(momentum: float, convex: bool) -> float:
    """What αL has to stay below: 2(1 − β) for convex g, else 1 − 2β."""
    return 2 * (1 - momentum) if convex else 1 - 2 * momentum


def coefficients_for(lr: float, momentum: float, L: float, convex: bool) -> Coefficients:
    """δ = (1 − β/2)/α − L/2 for convex g, else (1 − β)/(2α) − L/2, and γ = δ − β/(2α)."""
    delta = ((1 - momentum / 2) / lr if convex else (1 - momentum) / (2 * lr)) - L / 2
    return Coefficients(lr, momentum, delta, delta - momentum / (2 * lr), L)


@dataclass(frozen=True)
class LipschitzSearch:
    r"""How the estimate L follows the loss: × ``grow`` until the descent inequality holds.

    .. math:: f(x⁺) ≤ f(x) + ⟨∇f(x), x⁺ − x⟩ + \tfrac L2 ‖x⁺ − x‖²

    Reference: Beck and Teboulle (2009).

    Args:
        first: The L to begin with; None measures it by one more evaluation.
        grow: The factor by which L grows after a point that fails.
        relax: The factor by which each step first lowers the last L.
        trials: The number of points after which a step is given up.
    """

    first: float | None = None
    grow: float = 2.0
    relax: float = 0.95
    trials: int = 60

    def __post_init__(self) -> None:
        sound = (self.first is None or self.first > 0) and self.trials >= 1
        if not (sound and self.grow > 1 and 0 < self.relax <= 1):
            raise InputError(
                "LipschitzSearch needs first > 0 (or None), grow > 1, 0 < relax ≤ 1 and "
                f"trials ≥ 1, not {self!r}."
            )


class StepRule(ABC):
    """A form of iPiano; ``search`` is None where L is not searched for."""

    needs_convex_prox: ClassVar[bool] = True
    search: LipschitzSearch | None

    @property
    def defaults(self) -> dict[str, float]:
        """The numbers that a parameter group may have of its own, and a scheduler may change."""
        return {}

    @abstractmethod
    def coefficients(self, group: Group, L: float, delta: float | None) -> Coefficients:
        """What a group uses with the estimate L, after a step with ``delta`` (None: the first)."""


@dataclass(frozen=True)
class ConstantStep(StepRule):
    r"""Given step and momentum: β ∈ [0, 1) and α < 2(1 − β)/L for convex g.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻))

    Where g is not convex, β < ½ and α < (1 − 2β)/L. Both stand in the parameter groups, as ``lr``
    and ``momentum``: each group may have its own, and schedulers change them.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 2.

    Args:
        lr: The step α.
        momentum: The inertia β.
        L: A Lipschitz constant of ∇f; None takes the largest that α allows to weigh H.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.ConstantStep(0.2, 0.4, L=2.0))
    >>> result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    lr: float
    momentum: float = 0.8
    L: float | None = None
    search: None = field(default=None, init=False, repr=False)
    needs_convex_prox: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise StepError(f"ConstantStep needs a positive, finite lr, not {self.lr!r}.")
        self._checked(self.lr, groups.momentum(self.defaults), convex=True)

    @property
    def defaults(self) -> dict[str, float]:
        return {"lr": self.lr, "momentum": self.momentum}

    def coefficients(self, group: Group, L: float, delta: float | None) -> Coefficients:
        lr, convex = groups.learning_rate(group), is_convex(group["prox"])
        if convex:
            momentum = groups.momentum(group)
        else:
            momentum = groups.momentum(group, 0.5, " where the prox is not convex")
        if lr == 0:  # the end of a schedule, where nothing moves
            return Coefficients(0.0, 0.0, 0.0, 0.0, math.inf)
        return self._checked(lr, momentum, convex)

    def _checked(self, lr: float, momentum: float, convex: bool) -> Coefficients:
        largest = largest_product(momentum, convex)
        if self.L is not None and not lr * self.L < largest:
            condition = "2(1 − momentum)/L" if convex else "(1 − 2 · momentum)/L"
            raise StepError(
                f"lr = {lr:g} violates lr < {condition} = {largest / self.L:g}: the Lyapunov value "
                "would not decrease. Take a smaller step or less momentum, or let SearchedStep "
                "find it."
            )
        return coefficients_for(lr, momentum, largest / lr if self.L is None else self.L, convex)


@dataclass(frozen=True)
class SearchedStep(StepRule):
    r"""Given momentum β ∈ [0, 1) with α = 0.99 · 2(1 − β)/L for a searched L, for convex g.

    A growing L raises δ; where H would rise with it, the step is repeated without momentum. A group
    may have its own ``momentum``; it has no ``lr``, and a scheduler is refused.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 3.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.SearchedStep(momentum=0.5))
    >>> result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    momentum: float = 0.8
    search: LipschitzSearch = field(default_factory=LipschitzSearch)

    def __post_init__(self) -> None:
        self._momentum(self.defaults)

    @property
    def defaults(self) -> dict[str, float]:
        return {"momentum": self.momentum}

    def _momentum(self, group: Group) -> float:
        below = 1.0 if self.needs_convex_prox else 0.5
        return groups.momentum(group, below, f" for {type(self).__name__}")

    def coefficients(self, group: Group, L: float, delta: float | None) -> Coefficients:
        momentum, convex = self._momentum(group), self.needs_convex_prox
        lr = FRACTION_OF_LARGEST_STEP * largest_product(momentum, convex) / L
        return coefficients_for(lr, momentum, L, convex)


@dataclass(frozen=True)
class NonConvexStep(SearchedStep):
    r"""Given momentum β ∈ [0, ½) with α = 0.99 (1 − 2β)/L for a searched L; g need not be convex.

    Reference: Ochs (2015), *Long Term Motion Analysis …*, Chapter 6.

    >>> theta = torch.tensor([0.5, 3.0], requires_grad=True)
    >>> g = lg.functions.L0(1.0)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.NonConvexStep(), prox=g)
    >>> loss = lambda inner: 0.5 * (theta[0] - 0.5) ** 2 + 0.5 * (theta[1] - 3) ** 2
    >>> result = lg.fit(loss, [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([0., 3.])
    """

    momentum: float = 0.4
    needs_convex_prox: ClassVar[bool] = False


@dataclass(frozen=True)
class VariableMomentum(StepRule):
    r"""Constant δ and γ = c₂: step and momentum both follow from a searched L, for convex g.

    .. math:: b = \frac{δ + L/2}{c_2 + L/2}, \quad β = \frac{b − 1}{b − ½}, \quad
              α = \frac{2(1 − β)}{2c_2 + L}

    Momentum fades where the loss is steep. ``delta=None`` takes the δ for which β starts at 0.8.
    Groups have neither ``lr`` nor ``momentum``, and a scheduler is refused.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 4.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.VariableMomentum())
    >>> result = lg.fit(lambda inner: (theta - 1).square().sum(), [theta], optimizer, steps=80)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    delta: float | None = None
    c2: float = 1e-6
    search: LipschitzSearch = field(default_factory=LipschitzSearch)

    def __post_init__(self) -> None:
        if not self.c2 > 0 or (self.delta is not None and not self.delta >= self.c2):
            raise InputError(
                f"VariableMomentum needs δ ≥ c₂ > 0, not δ = {self.delta}, c₂ = {self.c2}."
            )

    def coefficients(self, group: Group, L: float, delta: float | None) -> Coefficients:
        delta = self.delta if delta is None else delta
        if delta is None:
            delta = 3 * (self.c2 + L / 2) - L / 2  # b = 3 gives β = 0.8
        b = (delta + L / 2) / (self.c2 + L / 2)
        momentum = (b - 1) / (b - 0.5)
        return Coefficients(2 * (1 - momentum) / (2 * self.c2 + L), momentum, delta, self.c2, L)
