"""The outer loop: the minimum of a curve for one penalty, iPiano for many, and the path of both."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import legato as lg
from legato.bilevel import History, InnerSolver, Record, Until
from legato.errors import FailedStepWarning, NoInfluenceError
from legato.optim import IPiano
from legato.sklearn.criterion import Criterion
from legato.sklearn.penalties import Matrix, Vector


def _no_numbers() -> Vector:
    return np.empty(0)


@dataclass
class OuterPath:
    """Every point of the outer loop.

    ``loss`` is the mean validation loss C, ``slope`` dC/dlog α for one penalty and the norm of the
    gradient in log α for many, ``seconds`` the time since the start, ``early_stopping_loss`` the
    loss on the rows kept for early stopping, NaN without. ``chosen`` is the index of the point that
    was taken, ``reason`` says why the loop ended.
    """

    penalties: int
    loss: Vector = field(default_factory=_no_numbers)
    slope: Vector = field(default_factory=_no_numbers)
    seconds: Vector = field(default_factory=_no_numbers)
    early_stopping_loss: Vector = field(default_factory=_no_numbers)
    theta: list[Vector] = field(default_factory=list)
    chosen: int = 0
    reason: str = ""
    begun: float = field(default_factory=time.perf_counter)

    def add(self, loss: float, theta: Vector, slope: float, stopping: float | None = None) -> None:
        self.loss = np.append(self.loss, loss)
        self.slope = np.append(self.slope, slope)
        self.seconds = np.append(self.seconds, time.perf_counter() - self.begun)
        stopping = np.nan if stopping is None else stopping
        self.early_stopping_loss = np.append(self.early_stopping_loss, stopping)
        self.theta.append(np.array(theta))

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def alpha(self) -> Matrix:
        """The penalties, one row a point."""
        return np.exp([theta[: self.penalties] for theta in self.theta])


# --- one penalty ----------------------------------------------------------------------------------

Curve = Callable[[float, Any], tuple[float, float, Any, bool]]
"""x, start ↦ f(x), f′(x), a state to start the next evaluation from, whether it is hard."""


@dataclass(frozen=True)
class Point:
    x: float
    f: float
    slope: float
    state: Any


def _dip(left: Point, right: Point) -> tuple[float, float] | None:
    """Where the tangents at both ends meet, and how low; None if f does not turn in between."""
    if not (left.slope < 0 < right.slope):
        return None
    width = right.x - left.x
    t = (right.f - left.f - right.slope * width) / (left.slope - right.slope)
    t = min(max(t, 0.0), width)
    return left.x + t, left.f + left.slope * t


def _cut(left: Point, right: Point, turn: int) -> float:
    """Where to look next between two points."""
    dip, width, middle = _dip(left, right), right.x - left.x, 0.5 * (left.x + right.x)
    if dip is None:
        return middle
    secant = left.x - left.slope * width / (right.slope - left.slope)
    x = (secant, dip[0], middle)[turn % 3]
    return min(max(x, left.x + 1e-3 * width), right.x - 1e-3 * width)


def turns(points: list[Point]) -> bool:
    """Whether the lowest of points in their order is none of the two at the ends."""
    values = [p.f for p in points]
    return len(values) > 2 and 0 < int(np.argmin(values)) < len(values) - 1


SLOPE_VARIATION = 8.0
"""How much more than on the coarse walk the slope may vary within a bracket."""


RISES, RISEN = 3, 0.01
"""When a coarse walk over hard points ends: so many rises in a row, by this share in all."""


@dataclass
class CurveSearch:
    r"""The lowest point of a piecewise smooth curve, by its values and slopes.

    .. math:: f ≥ \min(f_l, f_r) − ρκ (x_r − x_l)^2/8

    A coarse walk finds the valleys and κ, how fast the slope varies; ρ is SLOPE_VARIATION. A
    bracket is promising if this bound, or the point where its end tangents meet below, lies more
    than ``tol`` (relative) under the lowest value found. The best one is cut until none is left:
    at the zero of the secant of f′ (fast where f is smooth), where the tangents meet (fast at
    kinks), and in the middle (never slow), in turn. Validation curves ripple, and a ripple narrower
    than κ tells can be missed, as by any grid.
    """

    curve: Curve
    tol: float
    most: int
    promise: float = 0.0
    """How much lower (relative) the curve might still go where no more cuts were left."""

    def coarse(self, grid: list[float]) -> list[Point]:
        """Walk along the grid, each point started from the last one.

        The walk ends early where steps are hard and the loss has risen RISES times in a row, to
        more than RISEN above its lowest value: small penalties cost most, and each takes longer
        than all before it, while the minimum lies behind.
        """
        points: list[Point] = []
        rising, state = 0, None
        for x in grid:
            f, slope, state, hard = self.curve(x, state)
            points.append(Point(x, f, slope, state))
            lowest = min(p.f for p in points)
            rising = rising + 1 if hard and len(points) > 1 and f > points[-2].f else 0
            if rising >= RISES and f > (1 + RISEN) * lowest:
                break
        return sorted(points, key=lambda p: p.x)

    def refine(self, points: list[Point]) -> Point:
        """Cut brackets until none promises anything below the lowest point."""
        points = self._widened(points)
        best = min(points, key=lambda p: p.f)
        near = [
            abs(right.slope - left.slope) / (right.x - left.x)
            for left, right in pairwise(points)
            if min(abs(left.x - best.x), abs(right.x - best.x)) < 0.5
        ]
        kappa, turns = max(near, default=0.0), dict[tuple[float, float], int]()
        for cuts in range(self.most + 1):
            best = min(points, key=lambda p: p.f)
            found = []
            for left, right in pairwise(points):
                width, dip = right.x - left.x, _dip(left, right)
                bound = min(left.f, right.f) - SLOPE_VARIATION * kappa * width**2 / 8
                bound = bound if dip is None else min(bound, dip[1])
                if bound < best.f - self.tol * abs(best.f) and width > 1e-9:
                    found.append((bound, left, right))
            if not found:
                break
            if cuts == self.most:
                self.promise = (best.f - min(bound for bound, *_ in found)) / abs(best.f)
                break
            _, left, right = min(found, key=lambda entry: entry[0])
            turn = turns.get((left.x, right.x), 0)
            x = _cut(left, right, turn)
            points = sorted([*points, self._at(x, left, right)], key=lambda p: p.x)
            turns[left.x, x] = turns[x, right.x] = turn + 1
        return min(points, key=lambda p: p.f)

    def _at(self, x: float, left: Point, right: Point) -> Point:
        near = left if x - left.x < right.x - x else right
        f, slope, state, _ = self.curve(x, near.state)
        return Point(x, f, slope, state)

    def _widened(self, points: list[Point]) -> list[Point]:
        """Midpoints where the curve is within a percent of its lowest value: valleys ripple."""
        best = min(p.f for p in points)
        close = best + 0.01 * abs(best)
        new = [
            self._at(0.5 * (left.x + right.x), left, right)
            for left, right in pairwise(points)
            if min(left.f, right.f) <= close
        ]
        return sorted([*points, *new], key=lambda p: p.x)


def log_grid(largest: float, ratio: float, spacing: float) -> list[float]:
    """log α from the largest penalty down, neighbours no further apart than ``spacing`` times."""
    top = float(np.log(largest))
    points = max(int(np.ceil(-np.log(ratio) / np.log(spacing))), 4) + 1
    return [float(x) for x in np.linspace(top, top + np.log(ratio), points)]


# --- many penalties -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prior:
    r"""A normal distribution of the log penalties around one of them, in units of a mean loss.

    .. math:: \text{prior}(θ) = \frac{u}{2 n s^2} \sum_k (θ_k − θ^0_k)^2

    With u the mean loss that one unit of the log likelihood is worth, C + prior is, up to
    constants, minus the log of a posterior density over n. ``strength`` is u/(2ns²), one a
    variable; 0 is no prior. Reference: MacKay (1992), *Bayesian interpolation*.
    """

    centre: Vector
    strength: Vector

    def __call__(self, theta: Vector) -> tuple[float, Vector]:
        away = theta - self.centre
        return float(self.strength @ away**2), 2 * self.strength * away


PATIENCE = 5
"""Steps without a lower loss on the rows for early stopping after which an outer loop ends."""


def descend(
    criterion: Criterion,
    theta: Vector,
    path: OuterPath,
    *,
    lowest: Vector,
    highest: Vector,
    steps: int,
    tol: float,
    prior: Prior,
) -> None:
    r"""Minimise the criterion over θ by iPiano within a box, and write every step to the path.

    .. math:: \min_θ\, C(θ) + \text{prior}(θ) \quad\text{with}\quad
              \log α_{\min} ≤ θ_k ≤ \log α_{\max}

    Inertia helps on long valleys, the box keeps every penalty in the range in which the lower level
    was found to be solvable, and a step is taken only if the loss falls as its gradient promises,
    which a wrong gradient would not pass. Ends where the loss falls by less than ``tol`` (relative)
    three times in a row, or the rows for early stopping saw nothing better for PATIENCE steps.
    """
    variable = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    first = len(path)

    def loss(inner: InnerSolver) -> torch.Tensor:
        value, gradient, _ = criterion(variable.detach().numpy())
        more, its_slope = prior(variable.detach().numpy())
        value, slope = value + more, torch.from_numpy(gradient + its_slope)
        return value + (slope * (variable - variable.detach())).sum()

    def until(history: History) -> str | None:
        seen = path.early_stopping_loss[first:]
        if len(seen) and not np.isnan(seen).any():
            since = len(seen) - 1 - int(np.argmin(seen))
            if since >= PATIENCE:
                return f"the rows kept for early stopping saw nothing better for {since} steps"
        return settled(history)

    settled = Until(decrease=tol, patience=3)

    def note(record: Record) -> None:
        value, gradient, _ = criterion(variable.detach().numpy())
        size = float(np.linalg.norm(gradient))
        path.add(value, variable.detach().numpy(), size, criterion.early_stopping_loss())

    value, gradient, _ = criterion(theta)
    path.add(value, theta, float(np.linalg.norm(gradient)), criterion.early_stopping_loss())
    box = lg.Box(torch.from_numpy(lowest), torch.from_numpy(highest))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = lg.fit(
                loss,
                variable,
                lambda params: IPiano(params, prox=box),
                steps,
                until=until,
                callback=note,
            )
            path.reason = result.reason
        except NoInfluenceError:
            path.reason = "no penalty changes the validation loss: all coefficients are zero"
    for warning in caught:
        # A search that ends at a kink is an end like others; it is said in the path's reason.
        if not issubclass(warning.category, FailedStepWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    own = slice(first, None)
    scores = path.early_stopping_loss[own]
    if np.isnan(scores).any():
        scores = path.loss[own] + [prior(theta)[0] for theta in path.theta[own]]
    path.chosen = first + int(np.argmin(scores))
