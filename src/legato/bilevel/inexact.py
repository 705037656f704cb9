"""Adaptive inexactness: how exactly to solve below, given the progress above."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from legato.bilevel.inner import Tolerances
from legato.errors import InputError


@dataclass(frozen=True)
class Progress:
    """What a step achieved: the length of its move, and the decrease it claims.

    ``decrease`` is None where the optimiser promises none; ``error`` bounds how far it may be off.
    """

    change: float
    failed: bool = False
    decrease: float | None = None
    error: float = 0.0


class Inexact(ABC):
    """Chooses the tolerances of every step; passed to :func:`legato.fit`."""

    first: float
    last: float
    needs_decrease = False

    @abstractmethod
    def repeat(self, now: Tolerances, step: Progress) -> Tolerances | None:
        """The tighter tolerances with which to repeat a step, or None to let it stand."""

    @abstractmethod
    def following(self, now: Tolerances, step: Progress, first_change: float) -> Tolerances:
        """The tolerances after a step that stands; the fit's first move was ``first_change``."""

    def start(self) -> Tolerances:
        return Tolerances.both(self.first)

    def _tightened(self, now: Tolerances, factor: float) -> Tolerances | None:
        if now.lower <= self.last:
            return None
        return Tolerances.both(max(self.last, factor * now.lower))

    def _require_range(self) -> None:
        if not 0 < self.last <= self.first < 1:
            raise InputError(f"{type(self).__name__} needs 0 < last ≤ first < 1, not {self!r}.")


@dataclass(frozen=True)
class HOAG(Inexact):
    r"""Decreasing tolerances: each at most ``decay`` times the last, and less where steps shorten.

    .. math:: ε_{k+1} = \min(\text{decay} · ε_k,\; ε_0 ‖θ_{k+1} − θ_k‖ / ‖θ_1 − θ_0‖)

    Never below ``last``; summable, hence convergent. A step that fails or does not move is repeated
    ten times as exactly.
    Reference: Pedregosa (2016), *Hyperparameter optimization with approximate gradient*.

    >>> tolerances = lg.bilevel.HOAG(first=1e-2, decay=0.5)
    >>> tolerances.first, tolerances.last
    (0.01, 1e-08)
    """

    first: float = 1e-2
    last: float = 1e-8
    decay: float = 0.9

    def __post_init__(self) -> None:
        self._require_range()
        if not 0 < self.decay < 1:
            raise InputError(f"HOAG needs a decay in (0, 1), not {self.decay!r}.")

    def repeat(self, now: Tolerances, step: Progress) -> Tolerances | None:
        stuck = step.failed or step.change == 0
        return self._tightened(now, 0.1) if stuck else None

    def following(self, now: Tolerances, step: Progress, first_change: float) -> Tolerances:
        allowed = self.decay * now.lower
        if first_change > 0:
            allowed = min(allowed, self.first * step.change / first_change)
        return Tolerances.both(max(self.last, allowed))


@dataclass(frozen=True)
class MAID(Inexact):
    r"""Tolerances as loose as a certificate of descent allows.

    .. math:: \hat h(θ_{k+1}) + e_{k+1} ≤ \hat h(θ_k) − e_k

    The a-posteriori errors e, of ``InnerSolver.error``, make this imply descent of the exact h. A
    step without certificate is repeated with tighter tolerances.
    Needs an optimiser that decreases something: IPiano, ProximalGradient or NonlinearCG.
    Reference: Salehi, Mukherjee, Roberts, Ehrhardt (2024), *An adaptively inexact first-order
    method for bilevel optimization*.

    Args:
        first: The tolerance of the first step.
        last: The tightest tolerance; there steps stand without certificate.
        tighten: The smallest factor from one tolerance to the next; in between they follow the
            ratio of the decrease to the errors.
        relax: The largest such factor.

    >>> theta = torch.tensor([3.0], requires_grad=True)
    >>> def loss(inner):
    ...     problem = lg.Composite(lg.Quadratic(torch.eye(1), -theta))
    ...     stop = lg.Stop(999, tol=1e-8)
    ...     x = inner.solve(problem, lg.ForwardBackward(0.5), gradient=lg.Implicit(), stop=stop)
    ...     return (x.x - 1).square().sum()
    >>> result = lg.fit(loss, [theta], lg.optim.IPiano, steps=15, inexact=lg.bilevel.MAID())
    >>> theta.detach().round(decimals=1)
    tensor([1.])
    """

    first: float = 1e-2
    last: float = 1e-8
    tighten: float = 0.1
    relax: float = 2.0
    needs_decrease = True

    def __post_init__(self) -> None:
        self._require_range()
        if not (0 < self.tighten < 1 <= self.relax):
            raise InputError(f"MAID needs 0 < tighten < 1 ≤ relax, not {self!r}.")

    def repeat(self, now: Tolerances, step: Progress) -> Tolerances | None:
        decrease = 0.0 if step.decrease is None or step.failed else step.decrease
        if decrease > step.error and step.change > 0:
            return None
        return self._tightened(now, min(0.5, self._factor(decrease, step.error)))

    def following(self, now: Tolerances, step: Progress, first_change: float) -> Tolerances:
        factor = self._factor(step.decrease or 0.0, step.error)
        return Tolerances.both(min(self.first, max(self.last, factor * now.lower)))

    def _factor(self, decrease: float, error: float) -> float:
        """Errors are in proportion to tolerances: aim at a tenth of the decrease."""
        ideal = 0.1 * max(decrease, 0.0) / error if error > 0 else self.relax
        return min(max(ideal, self.tighten), self.relax)
