"""The whole study as a function of its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from legato.errors import InputError
from legato.studies.toy.coupled import CoupledRow, compare_coupled
from legato.studies.toy.example import KINK, SETS, SMOOTH, Toy
from legato.studies.toy.kink import KinkRow, approach, limits
from legato.studies.toy.methods import (
    BACK_ITERATED,
    FORWARD,
    METHODS,
    Estimate,
    energies,
    estimate,
)
from legato.studies.toy.nonunique import StepCurve, step_curve
from legato.studies.toy.published import Comparison, compare
from legato.studies.toy.solution_map import (
    DerivativeCheck,
    Landscape,
    check_derivative,
    landscape,
)

__all__ = ["SetResults", "Settings", "ToyResults", "run"]

BACKS = (5, 10, 20, 50, 100, 200)
"""Back-iterations of the paper's six panels."""

FORWARD_METHODS = ("Smoothed-impl", "Proj.GD", "Bregman-FB")
"""One method for each forward iteration there is; the others share theirs with one of these."""

Advance = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What was asked for; ``quick`` draws the same figures from fewer points."""

    sets: tuple[str, ...] = ("A", "B")
    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sets:
            raise InputError("The toy study needs at least one set of values.")
        for name in self.sets:
            if name not in SETS:
                raise InputError(f"There is no set {name!r}: choose {' or '.join(SETS)}, or both.")

    @property
    def stages(self) -> int:
        """How often ``run`` reports."""
        return 5 * len(self.sets) + 2

    @property
    def backs(self) -> tuple[int, ...]:
        """The numbers of back-iterations looked at: those of the panels, and more for curves."""
        if self.quick:
            more = {1, 15, 30, 70}
        else:
            more = {*range(1, 20, 2), *range(20, 80, 5), *range(80, FORWARD + 1, 20)}
        return tuple(sorted(more.union(BACKS)))

    @property
    def kink_forwards(self) -> tuple[int, ...]:
        """Forward iterations at which the limits at θ = 0 are looked at."""
        return (200, 800) if self.quick else (50, 200, 800, 3200)


@dataclass(frozen=True)
class SetResults:
    """Everything about one set of values; estimates are keyed by θ, method and back-iterations."""

    toy: Toy
    landscape: Landscape
    energies: dict[float, dict[str, list[float]]]
    estimates: dict[float, dict[str, dict[int, Estimate]]]
    limits: dict[str, float]
    approach: list[KinkRow]
    comparisons: list[Comparison]
    check: DerivativeCheck


@dataclass(frozen=True)
class ToyResults:
    """What a run found."""

    settings: Settings
    sets: dict[str, SetResults]
    nonunique: list[StepCurve]
    coupled: list[CoupledRow]

    def record(self) -> dict[str, Any]:
        """The numbers worth keeping, for results.json."""
        return {
            "settings": asdict(self.settings),
            "forward_iterations": FORWARD,
            "sets": {name: _record(found) for name, found in self.sets.items()},
            "nonunique": [
                {"iterations": c.iterations, "steepest_slope": max(map(abs, c.slope))}
                for c in self.nonunique
            ],
            "coupled": [asdict(row) for row in self.coupled],
        }


def run(settings: Settings, advance: Advance = lambda what: None) -> ToyResults:
    """Compute the study; ``advance`` is called with the name of each stage that begins."""
    sets = {name: _study(SETS[name], settings, advance) for name in settings.sets}
    advance("the example without a unique solution")
    points = 401 if settings.quick else 1001
    nonunique = [step_curve(n, 3.0, points) for n in (1, 3, 10, 30, 100)]
    advance("smoothing where entries are coupled")
    return ToyResults(settings, sets, nonunique, compare_coupled())


def _study(toy: Toy, settings: Settings, advance: Advance) -> SetResults:
    advance(f"set {toy.name}: numbers of the table")
    comparisons, check = compare(toy), check_derivative(toy, settings.seed)
    advance(f"set {toy.name}: loss and solution map")
    curve = landscape(toy, -1.0, 2.0, 301 if settings.quick else 1201)
    advance(f"set {toy.name}: energies along the iterations")
    gaps = {
        theta: {name: energies(toy, name, theta) for name in FORWARD_METHODS}
        for theta in (SMOOTH, KINK)
    }
    advance(f"set {toy.name}: gradients along the back-iterations")
    estimates = {
        theta: {name: _estimates(toy, name, theta, settings.backs) for name in METHODS}
        for theta in (SMOOTH, KINK)
    }
    advance(f"set {toy.name}: limits at θ = 0")
    rows = approach(toy, settings.kink_forwards)
    return SetResults(toy, curve, gaps, estimates, limits(toy), rows, comparisons, check)


def _estimates(toy: Toy, method: str, theta: float, backs: tuple[int, ...]) -> dict[int, Estimate]:
    if method not in BACK_ITERATED:  # no back-iterations: one estimate serves all
        return dict.fromkeys(backs, estimate(toy, method, theta))
    return {back: estimate(toy, method, theta, back=back) for back in backs}


def _record(found: SetResults) -> dict[str, Any]:
    toy = found.toy
    return {
        "values": asdict(toy),
        "ground_truth": toy.solution(toy.theta_star),
        "twin_of_theta_star": toy.twin(),
        "comparison": {
            c.key: {
                "what": c.label,
                "value": c.value,
                "errata": c.printed,
                "agrees": c.agrees,
            }
            for c in found.comparisons
        },
        "gradients": {
            f"theta={theta:g}": {
                name: {f"K={back}": panels[back].gradient for back in BACKS}
                for name, panels in methods.items()
            }
            for theta, methods in found.estimates.items()
        },
        "warnings": {
            f"theta={theta:g}": {
                name: panels[BACKS[-1]].warnings
                for name, panels in methods.items()
                if panels[BACKS[-1]].warnings
            }
            for theta, methods in found.estimates.items()
        },
        "energy_gaps": {
            f"theta={theta:g}": {
                name: {f"n={n}": gaps[n - 1] for n in BACKS} for name, gaps in methods.items()
            }
            for theta, methods in found.energies.items()
        },
        "kink": {
            "clarke": toy.clarke(),
            "limits": found.limits,
            "approach": [asdict(row) for row in found.approach],
        },
        "derivative_check": asdict(found.check),
    }
