"""What can be set on the page, from which start and within which limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from legato.errors import InputError
from legato.studies.toy.example import SETS, SMOOTH


def _between(least: float, most: float, start: float) -> Any:
    return field(default=start, metadata={"limits": (least, most)})


def limits(controls: type[Any] | Any, name: str) -> tuple[float, float]:
    """The least and the largest value that a control may have."""
    (found,) = (one.metadata["limits"] for one in fields(controls) if one.name == name)
    return found


def _require_within_limits(controls: Any) -> None:
    for one in fields(controls):
        if "limits" not in one.metadata:
            continue
        value, (least, most) = getattr(controls, one.name), one.metadata["limits"]
        if not (math.isfinite(value) and least <= value <= most):
            raise InputError(f"{one.name} lies between {least} and {most}, not {value}.")
        if one.type == "int" and value != int(value):
            raise InputError(f"{one.name} is a whole number, not {value}.")


@dataclass(frozen=True)
class SegmentationControls:
    """L labels; β and κ of :class:`legato.nn.ContrastWeights`; iterations of the layer."""

    labels: int = _between(2, 8, start=4)
    smoothness: float = _between(0, 40, start=5.0)  # photographs need more than drawn scenes
    contrast: float = _between(0, 50, start=5.0)
    iterations: int = _between(1, 1000, start=100)

    def __post_init__(self) -> None:
        _require_within_limits(self)


@dataclass(frozen=True)
class DenoisingControls:
    """σ of the noise, of 255, and λ of :class:`legato.nn.TotalVariation`."""

    noise: float = _between(5, 75, start=25.0)
    weight: float = _between(0, 0.5, start=0.03)

    def __post_init__(self) -> None:
        _require_within_limits(self)


@dataclass(frozen=True)
class GradientControls:
    """The set of values, θ, and the numbers of iterations made and of those differentiated."""

    values: str = "A"
    theta: float = _between(-0.5, 1.0, start=SMOOTH)
    forward: int = _between(1, 400, start=200)
    back: int = _between(1, 400, start=20)

    def __post_init__(self) -> None:
        if self.values not in SETS:
            raise InputError(f"There is no set {self.values!r}: choose {' or '.join(SETS)}.")
        _require_within_limits(self)

    @property
    def used_back(self) -> int:
        """No more iterations can be differentiated than were made."""
        return min(self.back, self.forward)
