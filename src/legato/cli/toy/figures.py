"""Which figures there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from legato.cli.toy.comparison_figures import draw_errors, draw_kink
from legato.cli.toy.convergence_figure import draw_convergence
from legato.cli.toy.loss_figures import draw_loss, draw_tangents
from legato.cli.toy.nonunique_figure import draw_nonunique
from legato.studies.toy import SetResults, Settings, ToyResults

Draw = Callable[[Path], None]

_OF_A_SET: dict[str, Callable[[SetResults, Path], None]] = {
    "1_loss": draw_loss,
    "2_tangents": draw_tangents,
    "3_convergence": draw_convergence,
    "4_gradients": draw_errors,
    "5_kink": draw_kink,
}


def figures(results: ToyResults) -> dict[str, Draw]:
    """The name of every figure of a run, with the function that draws it into a file."""
    found: dict[str, Draw] = {
        f"{name}_{letter}": partial(draw, results.sets[letter])
        for letter in results.sets
        for name, draw in _OF_A_SET.items()
    }
    return found | {"6_nonunique": partial(draw_nonunique, results.nonunique)}


def number_of_figures(settings: Settings) -> int:
    """How many there will be."""
    return len(_OF_A_SET) * len(settings.sets) + 1
