"""The course of a training: its loss, and its scores on the test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from legato.console.figures import BLUE, GREEN, VERMILION, saved_figure


def draw_course(path: Path, log: Sequence[dict[str, str]]) -> None:
    """Draw the lines of a ``log.csv``: left the loss, right accuracy and IoU."""
    with saved_figure(path, 8.4, 3.3, "The course of the training") as figure:
        left, right = figure.subplots(1, 2)
        left.plot(*_points(log, "loss"), color=BLUE, marker=".")
        left.set(title="training loss, mean over labelled pixels", xlabel="epoch")
        for name, label, colour, marker in (
            ("accuracy", "pixel accuracy", VERMILION, "o"),
            ("iou", "mean IoU", GREEN, "s"),
        ):
            epochs, values = _points(log, name)
            shown = [100 * value for value in values]
            right.plot(epochs, shown, color=colour, marker=marker, ms=4, label=label)
            if shown:
                right.annotate(
                    f"{shown[-1]:.1f}", (epochs[-1], shown[-1]), xytext=(5, 0), color=colour,
                    textcoords="offset points", va="center",
                )  # fmt: skip
        right.set(title="test images, per cent", xlabel="epoch")
        right.legend(loc="lower right")


def _points(log: Sequence[dict[str, str]], name: str) -> tuple[list[int], list[float]]:
    rows = [row for row in log if row.get(name)]
    return [int(row["epoch"]) + 1 for row in rows], [float(row[name]) for row in rows]
