"""The paper's figure of inner iterations: loss, accuracy, time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.ticker import NullLocator, ScalarFormatter

from legato.console.figures import BLUE, VERMILION, saved_figure

_PANELS = (
    ("loss", "loss per pixel"),
    ("accuracy", "pixel accuracy, per cent"),
    ("milliseconds", "time of an outer iteration, ms"),
)


def draw_iterations(
    path: Path, results: Mapping[str, Any], times: Mapping[str, Any] | None = None
) -> None:
    """Draw the results of ``run_iterations``: three panels against inner iterations.

    ``times`` are results of another run, on a machine that did nothing else, for the third panel.
    """
    settings = results["settings"]
    title = (
        f"Inner iterations, what they buy and cost  ({settings['images']} images, "
        f"{settings['steps']} steps, {len(settings['seeds'])} seed(s))"
    )
    with saved_figure(path, 10, 3.4, title) as figure:
        for axes, (key, name) in zip(figure.subplots(1, 3), _PANELS, strict=True):
            shown = times if times is not None and key == "milliseconds" else results
            for average, label, colour, marker in (
                (False, "last iterate", BLUE, "o"),
                (True, "averaged iterate", VERMILION, "s"),
            ):
                points = [p for p in shown["points"] if p["average"] == average]
                if not points:
                    continue
                values: dict[int, list[float]] = {}
                for point in points:
                    values.setdefault(point["iterations"], []).append(point[key])
                means = [fmean(each) for each in values.values()]
                axes.plot(list(values), means, color=colour, marker=marker, ms=5, label=label)
                if len(points) > len(values):  # one faint dot a seed
                    axes.plot([p["iterations"] for p in points], [p[key] for p in points],
                              color=colour, marker=".", ms=4, ls="", alpha=0.45)  # fmt: skip
            axes.set(title=name, xlabel="inner iterations")
            counts = sorted({p["iterations"] for p in shown["points"]})
            if key == "milliseconds":  # a line where time is linear
                axes.set(xlim=(0, None), ylim=(0, None))
            else:
                axes.set_xscale("log")
                axes.set_xticks(counts)
                axes.xaxis.set_major_formatter(ScalarFormatter())
                axes.xaxis.set_minor_locator(NullLocator())
        figure.axes[0].legend()
