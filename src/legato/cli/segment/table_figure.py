"""The table as bars: what each variant gains over the control."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legato.console.figures import BLUE, GREY, INK, VERMILION, saved_figure


def draw_table(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the rows of ``collect``: left the scores, right the gains, with every seed as a dot."""
    names = list(rows)
    with saved_figure(path, 9.6, 1.3 + 0.42 * len(names), "Test images, per cent") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        # Scores are dots, since bars that do not begin at 0 mislead; gains are bars.
        for axes, part, title in (
            (left, "test", "mean IoU and accuracy"),
            (right, "gain", "gain over the control of the same seed"),
        ):
            for key, label, colour, shift, marker in (
                ("iou", "mean IoU", BLUE, -0.19, "o"),
                ("accuracy", "pixel accuracy", VERMILION, 0.19, "s"),
            ):
                shown = [(place, row[part][key]) for place, row in enumerate(rows.values())
                         if part in row]  # fmt: skip
                places = [place + shift for place, _ in shown]
                means = [value["mean"] for _, value in shown]
                spread = [value["std"] for _, value in shown]
                if part == "gain":
                    axes.barh(places, means, 0.36, color=colour, label=label)
                    axes.errorbar(means, places, xerr=spread, fmt="none", ecolor=INK, capsize=2.5,
                                  elinewidth=1)  # fmt: skip
                else:
                    axes.errorbar(means, places, xerr=spread, fmt=marker, color=colour, ms=7,
                                  ecolor=INK, capsize=2.5, elinewidth=1)  # fmt: skip
                for place, (_, value) in zip(places, shown, strict=True):
                    if len(value["each"]) > 1:
                        axes.plot(value["each"], [place] * len(value["each"]), ".", ms=4,
                                  color="white", mec=INK, mew=0.6)  # fmt: skip
            axes.set_title(title)
            axes.grid(axis="y", visible=False)
        right.axvline(0, color=GREY, lw=0.8)
        left.set_yticks(range(len(names)), names)
        left.invert_yaxis()
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2)
