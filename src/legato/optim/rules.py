"""The four forms of iPiano: how step, inertia and Lyapunov weights follow from L.

With Δ = ‖xⁿ − xⁿ⁻¹‖ every form keeps H = h(xⁿ) + δΔ² non-increasing, by at least γΔ² a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from legato.errors import InputError, StepError

ROOM = 0.99
"""How much of the largest step a derived step takes: the conditions are strict."""


@dataclass(frozen=True)
class Coefficients:
    """Step α, inertia β, the weights δ and γ of the Lyapunov inequality, and L behind them."""

    alpha: float
    beta: float
    delta: float
    gamma: float
    L: float


def convex_coefficients(alpha: float, beta: float, L: float) -> Coefficients:
    """δ = 1/α − L/2 − β/(2α) and γ = δ − β/(2α), for convex g."""
    delta = (1 - beta / 2) / alpha - L / 2
    return Coefficients(alpha, beta, delta, delta - beta / (2 * alpha), L)


def nonconvex_coefficients(alpha: float, beta: float, L: float) -> Coefficients:
    """δ = (1 − β)/(2α) − L/2 and γ = δ − β/(2α): without convexity the prox gives half as much."""
    delta = (1 - beta) / (2 * alpha) - L / 2
    return Coefficients(alpha, beta, delta, delta - beta / (2 * alpha), L)


@dataclass(frozen=True)
class Search:
    r"""How the estimate L follows the loss: × ``grow`` until the descent inequality holds.

    .. math:: f(x⁺) ≤ f(x) + ⟨∇f(x), x⁺ − x⟩ + \tfrac L2 ‖x⁺ − x‖²

    Each step first tries the last L times ``relax``, and gives up after ``trials`` points.
    ``first=None`` measures L at the start by one more evaluation.
    Reference: Beck and Teboulle (2009).

    >>> lg.optim.Search(first=10.0).grow
    2.0
    """

    first: float | None = None
    grow: float = 2.0
    relax: float = 0.95
    trials: int = 60

    def __post_init__(self) -> None:
        sound = (self.first is None or self.first > 0) and self.trials >= 1
        if not (sound and self.grow > 1 and 0 < self.relax <= 1):
            raise InputError(
                "Search needs first > 0 (or None), grow > 1, 0 < relax ≤ 1 and trials ≥ 1, not "
                f"{self!r}."
            )


class Rule(ABC):
    """A form of iPiano; ``search`` is None where L is not searched for."""

    convex_only: ClassVar[bool] = True
    search: Search | None

    @abstractmethod
    def coefficients(self, L: float, delta: float | None) -> Coefficients:
        """What to use with the estimate L, after a step with δ = ``delta`` (None at the first)."""


def _require_inertia(beta: float, below: float, who: str) -> None:
    if not 0 <= beta < below:
        raise InputError(f"{who} needs an inertia β in [0, {below:g}), not {beta!r}.")


def _require_step(alpha: float, limit: float, condition: str) -> None:
    if not 0 < alpha < limit:
        raise StepError(
            f"The step α = {alpha:g} violates 0 < α < {condition} = {limit:g}: the Lyapunov value "
            "would not decrease. Take a smaller step or less inertia, or let Backtracking find it."
        )


@dataclass(frozen=True)
class Constant(Rule):
    r"""Constant step and inertia, β ∈ [0, 1) and α < 2(1 − β)/L, for convex g.

    .. math:: x⁺ = \mathrm{prox}_{αg}(x − α∇f(x) + β(x − x⁻))

    ``L`` is a Lipschitz constant of ∇f; without it, H is that of the largest L that α allows.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 2.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.Constant(0.2, 0.4, L=2.0))
    >>> result = lg.fit(lambda level: (theta - 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    alpha: float
    beta: float = 0.8
    L: float | None = None
    search: None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _require_inertia(self.beta, 1.0, "Constant")
        limit = float("inf") if self.L is None else 2 * (1 - self.beta) / self.L
        _require_step(self.alpha, limit, "2(1 − β)/L")

    def coefficients(self, L: float, delta: float | None) -> Coefficients:
        L = 2 * (1 - self.beta) / self.alpha if self.L is None else self.L
        return convex_coefficients(self.alpha, self.beta, L)


@dataclass(frozen=True)
class Backtracking(Rule):
    r"""Constant inertia β ∈ [0, 1) with α = 0.99 · 2(1 − β)/L for a searched L, for convex g.

    A growing L raises δ; where H would rise with it, the step is repeated without inertia.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 3.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.Backtracking(beta=0.5))
    >>> result = lg.fit(lambda level: (theta - 1).square().sum(), [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    beta: float = 0.8
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        _require_inertia(self.beta, 1.0, "Backtracking")

    def coefficients(self, L: float, delta: float | None) -> Coefficients:
        return convex_coefficients(ROOM * 2 * (1 - self.beta) / L, self.beta, L)


@dataclass(frozen=True)
class VariableInertia(Rule):
    r"""Constant δ and γ = c₂: step and inertia both follow from a searched L, for convex g.

    .. math:: b = \frac{δ + L/2}{c_2 + L/2}, \quad β = \frac{b − 1}{b − ½}, \quad
              α = \frac{2(1 − β)}{2c_2 + L}

    Inertia fades where the loss is steep. ``delta=None`` takes the δ for which β starts at 0.8.
    Reference: Ochs, Chen, Brox, Pock (2014), Algorithm 4.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.VariableInertia())
    >>> result = lg.fit(lambda level: (theta - 1).square().sum(), [theta], optimizer, steps=80)
    >>> theta.detach().round(decimals=3)
    tensor([1.])
    """

    delta: float | None = None
    c2: float = 1e-6
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        if not self.c2 > 0 or (self.delta is not None and not self.delta >= self.c2):
            raise InputError(
                f"VariableInertia needs δ ≥ c₂ > 0, not δ = {self.delta}, c₂ = {self.c2}."
            )

    def coefficients(self, L: float, delta: float | None) -> Coefficients:
        delta = self.delta if delta is None else delta
        if delta is None:
            delta = 3 * (self.c2 + L / 2) - L / 2  # b = 3 gives β = 0.8
        b = (delta + L / 2) / (self.c2 + L / 2)
        beta = (b - 1) / (b - 0.5)
        return Coefficients(2 * (1 - beta) / (2 * self.c2 + L), beta, delta, self.c2, L)


@dataclass(frozen=True)
class NonConvex(Rule):
    r"""Constant inertia β ∈ [0, ½) with α = 0.99 (1 − 2β)/L for a searched L; g need not be convex.

    With ``alpha`` the step is constant and must satisfy α < (1 − 2β)/L.
    Reference: Ochs (2015), *Long Term Motion Analysis …*, Chapter 6.

    >>> theta = torch.tensor([0.5, 3.0], requires_grad=True)
    >>> optimizer = lg.optim.IPiano([theta], lg.optim.NonConvex(), prox=lg.optim.L0(1.0))
    >>> loss = lambda level: 0.5 * (theta[0] - 0.5) ** 2 + 0.5 * (theta[1] - 3) ** 2
    >>> result = lg.fit(loss, [theta], optimizer, steps=50)
    >>> theta.detach().round(decimals=3)
    tensor([0., 3.])
    """

    beta: float = 0.4
    alpha: float | None = None
    L: float | None = None
    search: Search | None = field(default_factory=Search)
    convex_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require_inertia(self.beta, 0.5, "NonConvex")
        if self.alpha is None:
            return
        limit = float("inf") if self.L is None else (1 - 2 * self.beta) / self.L
        _require_step(self.alpha, limit, "(1 − 2β)/L")
        object.__setattr__(self, "search", None)

    def coefficients(self, L: float, delta: float | None) -> Coefficients:
        if self.alpha is None:
            return nonconvex_coefficients(ROOM * (1 - 2 * self.beta) / L, self.beta, L)
        L = (1 - 2 * self.beta) / self.alpha if self.L is None else self.L
        return nonconvex_coefficients(self.alpha, self.beta, L)
