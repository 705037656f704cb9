"""Everything the study depends on, as data that can be written beside its results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from legato.errors import InputError
from legato.studies.denoise.training import Recipe

QUICK_STEPS = 20
LOWEST, HIGHEST = 2.0, 65.0
"""The noise levels of the filters for all of them, of 255."""
ALL, COMPARE = "all", "compare"
"""The parts beside the noise levels: filters for all of them, and gradients and optimisers."""


@dataclass(frozen=True)
class LevelSettings:
    """One noise level of the table."""

    sigma: float = 25.0  # of 255
    filters: int = 48
    size: int = 7
    iterations: int = 20  # of the solver behind filters
    tv_iterations: int = 300
    tv_images: int = 100  # training images that choose λ …
    tv_size: int = 192  # … by their middles
    map_iterations: int = 60  # of total variation behind a network
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if not 0 < self.sigma < 255:
            raise InputError(f"sigma must lie between 0 and 255, not {self.sigma!r}.")


@dataclass(frozen=True)
class ComparisonSettings:
    """A problem small enough for every strategy."""

    sigma: float = 25.0  # of 255
    filters: int = 24
    size: int = 5
    iterations: int = 400  # solved: else strategies that differentiate the solution differ
    batch: int = 4
    patch: int = 32
    steps: int = 40
    lr: float = 1e-2
    seed: int = 0


@dataclass(frozen=True)
class TableSettings:
    """The whole table."""

    sigmas: tuple[float, ...] = (15.0, 25.0, 50.0)
    level: LevelSettings = field(default_factory=LevelSettings)
    comparison: ComparisonSettings = field(default_factory=ComparisonSettings)

    def __post_init__(self) -> None:
        if not self.sigmas:
            raise InputError("The table needs at least one noise level.")
        for sigma in self.sigmas:
            replace(self.level, sigma=sigma)  # refuses what is none

    @property
    def levels(self) -> tuple[str, ...]:
        """The parts that are noise levels."""
        return tuple(f"{sigma:g}" for sigma in self.sigmas)

    @property
    def parts(self) -> tuple[str, ...]:
        """Everything there is to compute."""
        return (*self.levels, ALL, COMPARE)

    def quick(self) -> TableSettings:
        """The same table in a minute or two on two cores; its numbers mean little."""
        return replace(
            self,
            sigmas=(25.0,) if self.sigmas == TableSettings.sigmas else self.sigmas,
            level=replace(
                self.level, filters=8, size=3, iterations=10, tv_iterations=60, tv_images=6,
                tv_size=48, map_iterations=10,
                recipe=replace(self.level.recipe, steps=QUICK_STEPS, batch=4, patch=24),
            ),
            comparison=ComparisonSettings(
                filters=8, size=3, iterations=60, batch=2, patch=16, steps=4
            ),
        )  # fmt: skip
