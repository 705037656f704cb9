"""The toy's six gradients at any θ and any number of forward and backward iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from legato.errors import InputError, LegatoError
from legato.studies.explore.segmentation import Range
from legato.studies.toy.example import KINK, SETS, SMOOTH, Toy
from legato.studies.toy.methods import BACK_ITERATED, METHODS, estimate
from legato.studies.toy.solution_map import Landscape, landscape

LIMITS = {"theta": Range(-0.5, 1.0), "forward": Range(1, 400), "back": Range(1, 400)}
_CURVE_POINTS = 9


@dataclass(frozen=True)
class GradientControls:
    """The set of values, θ, and the numbers of iterations made and of those differentiated."""

    values: str = "A"
    theta: float = SMOOTH
    forward: int = 200
    back: int = 20

    def __post_init__(self) -> None:
        if self.values not in SETS:
            raise InputError(f"There is no set {self.values!r}: choose {' or '.join(SETS)}.")
        for field in fields(self)[1:]:
            value, (least, most) = getattr(self, field.name), LIMITS[field.name]
            if not (math.isfinite(value) and least <= value <= most):
                raise InputError(f"{field.name} lies between {least} and {most}, not {value}.")

    @property
    def used_back(self) -> int:
        """No more iterations can be differentiated than were made."""
        return min(self.back, self.forward)


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
    backs = _backs(controls.forward)
    along = {
        name: [_row(controls.values, name, theta, controls.forward, k) for k in backs]
        for name in BACK_ITERATED
    }
    rows = [
        _row(controls.values, name, theta, controls.forward, controls.used_back) for name in METHODS
    ]
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
    return landscape(SETS[values], *LIMITS["theta"], points=301)


def _backs(forward: int) -> list[int]:
    exponents = (math.log(forward) * k / (_CURVE_POINTS - 1) for k in range(_CURVE_POINTS))
    return sorted({round(math.exp(e)) for e in exponents})
