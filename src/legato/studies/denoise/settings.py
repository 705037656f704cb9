"""Everything the study depends on, as data that can be written beside its results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from legato.errors import InputError
from legato.studies.denoise.training import Recipe

QUICK_STEPS = 20
LOWEST, HIGHEST = 2.0, 65.0
"""The noise levels of the filters for all of them, of 255."""


@dataclass(frozen=True)
class StudySettings:
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
    seconds: tuple[float, float, float] | None = None  # for maps, filters, filters with maps

    def __post_init__(self) -> None:
        if not 0 < self.sigma < 255:
            raise InputError(f"sigma must lie between 0 and 255, not {self.sigma!r}.")

    def recipe_for(self, place: int) -> Recipe:
        """The recipe of weight maps (0), filters (1) or filters with maps (2)."""
        if self.seconds is None:
            return self.recipe
        return replace(self.recipe, seconds=self.seconds[place])


def quick(settings: StudySettings) -> StudySettings:
    """The same study in a minute or two on two cores; its numbers mean little."""
    return replace(
        settings,
        filters=8, size=3, iterations=10, tv_iterations=60, tv_images=6, tv_size=48,
        map_iterations=10, recipe=replace(settings.recipe, steps=QUICK_STEPS, batch=4, patch=24),
    )  # fmt: skip
