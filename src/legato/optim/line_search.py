"""A line search for the strong Wolfe conditions that survives NaN and rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from legato.errors import InputError
from legato.optim.evaluation import Evaluation


@dataclass(frozen=True)
class Ray:
    """One point on a ray: φ(t) = f(x + td), φ'(t), and what was evaluated there."""

    t: float
    value: float
    slope: float
    found: Evaluation

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


@dataclass(frozen=True)
class StrongWolfe:
    r"""Sufficient decrease and a small slope, found by bracketing and cubic interpolation.

    .. math:: φ(t) ≤ φ(0) + c_1 t φ'(0), \qquad |φ'(t)| ≤ c_2 |φ'(0)|

    Points where the loss is NaN or infinite count as too far. Below the rounding of the loss the
    first condition is left to the slopes. Where the bracket closes on a kink the lowest point with
    sufficient decrease has to do. Reference: Nocedal and Wright (2006), Section 3.5.
    """

    c1: float = 1e-4
    c2: float = 0.25
    trials: int = 40

    def __post_init__(self) -> None:
        if not (0 < self.c1 < self.c2 < 1 and self.trials >= 1):
            raise InputError(f"StrongWolfe needs 0 < c₁ < c₂ < 1 and trials ≥ 1, not {self!r}.")

    def search(self, phi: Callable[[float], Ray], start: Ray, first: float) -> Ray | None:
        """A point that satisfies the conditions, or None where not even the loss decreases."""
        lo, hi, t = start, None, first
        for _ in range(self.trials):
            if hi is not None and abs(hi.t - lo.t) <= 1e-10 * max(hi.t, lo.t):
                break
            new = phi(t)
            slack = start.found.rounding + (new.found.rounding if new.finite else 0.0)
            ceiling = start.value + self.c1 * t * start.slope + slack
            if not new.finite or new.value > ceiling or new.value > lo.value + slack:
                if new.finite and -t * start.slope < start.found.error + new.found.error:
                    break  # a shorter step could not be told from noise
                hi = new
                t = _between(lo, hi)
                continue
            if abs(new.slope) <= -self.c2 * start.slope:
                return new
            uphill = new.slope >= 0 if hi is None else new.slope * (hi.t - lo.t) >= 0
            if uphill:
                hi = lo
            lo, old = new, lo
            t = _beyond(old, lo) if hi is None else _between(lo, hi)
        return lo if lo.value < start.value else None


def _cubic(a: Ray, b: Ray) -> float:
    """The minimiser of the cubic with the values and slopes of a and b; NaN where there is none."""
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return math.nan
    d2 = math.copysign(math.sqrt(square), b.t - a.t)
    bottom = b.slope - a.slope + 2 * d2
    return b.t - (b.t - a.t) * (b.slope + d2 - d1) / bottom if bottom != 0 else math.nan


def _between(lo: Ray, hi: Ray) -> float:
    """A point well inside the bracket."""
    width = hi.t - lo.t
    if not hi.finite:
        return lo.t + 0.1 * width
    guess = (_cubic(lo, hi) - lo.t) / width
    return lo.t + width * (0.5 if math.isnan(guess) else min(max(guess, 0.1), 0.9))


def _beyond(old: Ray, new: Ray) -> float:
    """A point beyond both, where the slope should vanish."""
    guess = _cubic(old, new)
    if not guess > new.t:
        guess = math.inf
    return min(max(guess, 1.5 * new.t), 10 * new.t)
