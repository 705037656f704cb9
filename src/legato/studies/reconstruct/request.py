"""What the options of all three commands ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from legato.console.talking import progress_bar, say
from legato.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from legato.studies.reconstruct.measured import Measured

_MISFIT = 1.5
"""Times σ from which on a misfit is not put down to the noise."""


@dataclass(frozen=True)
class Request:
    """One file to be reconstructed: σ and λ where they are given, and where the result goes."""

    path: Path
    sigma: float | None
    weight: float | None
    iterations: int
    output: Path | None
    force: bool

    def __post_init__(self) -> None:
        for name, value in (("--sigma", self.sigma), ("--weight", self.weight)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"{name} must be positive and finite, not {value}. Leave it out to have it "
                    "estimated."
                )
        if self.iterations < 1:
            raise InputError(f"--iterations must be at least 1, not {self.iterations}.")

    def target(self, suffix: str) -> Path:
        """Where the result goes: never over its source, over another file only if asked to."""
        name = f"{self.path.stem}-reconstructed{suffix}"
        target = self.output or self.path.with_name(name)
        if target.is_dir():
            target = target / name
        if target.exists() and self.path.exists() and target.samefile(self.path):
            raise InputError(f"{target} is what is read. Choose another --output.")
        self._require_free(target)
        if not target.parent.is_dir():
            raise InputError(f"{target} cannot be written: there is no folder {target.parent}.")
        return target

    def targets(self) -> tuple[Path, Path]:
        """Those of the result and of the picture before."""
        target = self.target(".png")
        before = target.with_name(f"{target.stem.removesuffix('-reconstructed')}-before.png")
        self._require_free(before)
        return target, before

    def _require_free(self, target: Path) -> None:
        if target.exists() and not self.force:
            raise InputError(f"{target} exists. Give --force to replace it, or another --output.")

    def solve(self, measured: Measured) -> tuple[Tensor, bool]:
        """The picture, and whether it had stopped changing."""
        from legato.studies.reconstruct.solving import solve

        with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            task = bar.add_task(self.path.name, total=self.iterations)
            return solve(
                measured,
                self._weight(measured),
                self.iterations,
                lambda made: bar.advance(task, made),
            )

    def _weight(self, measured: Measured) -> float:
        return measured.weight if self.weight is None else self.weight

    def report(
        self,
        measured: Measured,
        x: Tensor,
        noise: str,
        where: str,
        *,
        rested: bool,
        notes: tuple[str, ...] = (),
    ) -> None:
        """One line: what was found out, what was done, where it is; and what looks wrong."""
        said = [
            f"{noise}, {'estimated' if self.sigma is None else 'given'}",
            f"λ = {self._weight(measured):.3g}",
            *measured.notes,
        ]
        misfit = measured.misfit(x)
        warned = list(notes)
        if not rested:
            warned.append("it was still changing in the end: more --iterations change it a little")
        if misfit > _MISFIT and self.weight is None:
            warned.append(
                f"what the picture would give is {misfit:.1f} σ away from the data: look at the "
                "kernel, the mask or the angles, and at σ"
            )
        say(f"{self.path}: {', '.join(said)} {where}" + "".join(f"; {note}" for note in warned))
