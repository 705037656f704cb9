"""The toy's six gradients at any θ and any number of forward and backward iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from legato.errors import LegatoError
from legato.studies.explore.controls import GradientControls, limits
from legato.studies.toy.example import KINK, SETS, SMOOTH, Toy
from legato.studies.toy.methods import BACK_ITERATED, METHODS, estimate
from legato.studies.toy.solution_map import Landscape, landscape


@dataclass(frozen=True)
class Row:
    """What one method says; ``words`` are the library's warnings, or why there is no number."""

    method: str
    gradient: float | None
    error: float | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class GradientView:
    """One row a method, more of them over back-iterations, and the loss that is differentiated.

    ``truth`` holds the ends of the Clarke subdifferential, twice the derivative where there is one.
    """

    toy: Toy
    controls: GradientControls
    truth: tuple[float, float]
    rows: list[Row]
    backs: list[int]
    along: dict[str, list[Row]]
    landscape: Landscape

    @property
    def at_kink(self) -> bool:
        """Whether there is an interval of right answers rather than one."""
        return self.truth[0] < self.truth[1]


def see_gradients(controls: GradientControls) -> GradientView:
    """dL/dθ by all six methods. Reference: Section 7.1 of Ochs et al. (2016)."""
    toy, theta = stepped(SETS[controls.values], controls.theta), controls.theta
    # Spaced evenly on a logarithmic axis.
    backs = sorted({round(controls.forward ** (k / 8)) for k in range(9)})

    def row(name: str, back: int) -> Row:
        return _row(controls.values, name, theta, controls.forward, back)

    along = {name: [row(name, back) for back in backs] for name in BACK_ITERATED}
    rows = [row(name, controls.used_back) for name in METHODS]
    curve = _landscape(controls.values)
    return GradientView(toy, controls, truth(toy, theta), rows, backs, along, curve)


def truth(toy: Toy, theta: float) -> tuple[float, float]:
    """The derivative, twice, or at the kink the ends of the Clarke subdifferential."""
    if theta == KINK:
        return toy.clarke()
    value = toy.derivative(theta)
    return value, value


def stepped(toy: Toy, theta: float) -> Toy:
    """The toy with Proj.GD's step at this θ: the figures' own, elsewhere in proportion to 1/L(θ).

    L(θ) = 1 + λθ² is the smallest Lipschitz constant of the gradient.
    """
    if theta in toy.projected_steps:
        return toy
    at = toy.projected_steps[SMOOTH] * (1 + toy.lam * SMOOTH**2)
    return replace(toy, projected_steps={theta: at / (1 + toy.lam * theta**2)})


def distance(value: float, ends: tuple[float, float]) -> float:
    """How far a number is from an interval; 0 inside."""
    return max(ends[0] - value, value - ends[1], 0.0)


@lru_cache(maxsize=4096)
def _row(values: str, name: str, theta: float, forward: int, back: int) -> Row:
    toy = stepped(SETS[values], theta)
    try:
        found = estimate(toy, name, theta, back=back, forward=forward)
    except LegatoError as error:
        return Row(name, None, None, (str(error),))
    if not math.isfinite(found.gradient):
        return Row(name, None, None, ("The gradient is not finite: the iteration diverged.",))
    return Row(name, found.gradient, distance(found.gradient, truth(toy, theta)), found.warnings)


@lru_cache(maxsize=len(SETS))
def _landscape(values: str) -> Landscape:
    return landscape(SETS[values], *limits(GradientControls, "theta"), points=301)
