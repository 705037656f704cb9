"""The study's figures, and its table in words: for a terminal, and for documents."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator, ScalarFormatter
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from legato.console.figures import BLUE, GREEN, GREY, INK, VERMILION, saved_figure
from legato.studies.segment.data import IGNORE, Dataset, Sample

Rows = Mapping[str, Mapping[str, Any]]

UNKNOWN = (255, 255, 255)
"""The colour of pixels without a label."""
_WIDTH = 2.15  # inches of a panel
_HEADS = ("train acc.", "train IoU", "test acc.", "test IoU", "gain acc.", "gain IoU")
_PANELS = (
    ("loss", "loss per pixel"),
    ("accuracy", "pixel accuracy, per cent"),
    ("milliseconds", "an outer iteration of all seeds, ms"),
)


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


def draw_iterations(path: Path, results: Mapping[str, Any]) -> None:
    """Draw the results of ``run_iterations``: three panels against inner iterations."""
    settings = results["settings"]
    title = (
        f"Inner iterations, what they buy and cost  ({settings['images']} images, "
        f"{settings['steps']} steps, {len(settings['seeds'])} seed(s), r = {settings['balance']:g})"
    )
    with saved_figure(path, 10, 3.4, title) as figure:
        for axes, (key, name) in zip(figure.subplots(1, 3), _PANELS, strict=True):
            shown = results["times" if key == "milliseconds" else "points"]
            for average, label, colour, marker in (
                (False, "last iterate", BLUE, "o"),
                (True, "averaged iterate", VERMILION, "s"),
            ):
                points = [p for p in shown if p["average"] == average]
                if not points:
                    continue
                values: dict[int, list[float]] = {}
                for point in points:
                    values.setdefault(point["iterations"], []).append(point[key])
                means = [fmean(each) for each in values.values()]
                axes.plot(list(values), means, color=colour, marker=marker, ms=5, label=label)
                if len(points) > len(values):  # one faint dot a seed
                    axes.plot([p["iterations"] for p in points], [p[key] for p in points],
                              color=colour, marker=".", ms=4, ls="", alpha=0.35)  # fmt: skip
            axes.set(title=name, xlabel="inner iterations")
            counts = sorted({p["iterations"] for p in shown})
            if key == "milliseconds":  # a line where time is linear
                axes.set(xlim=(0, None), ylim=(0, None))
            else:
                axes.set_xscale("log")
                axes.set_xticks(counts)
                axes.xaxis.set_major_formatter(ScalarFormatter())
                axes.xaxis.set_minor_locator(NullLocator())
        figure.axes[0].legend()


def iterations_table(results: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows: loss, accuracy and time for each number of inner iterations."""
    rows = []
    for count in sorted({p["iterations"] for p in results["points"]}):
        cells = [str(count)]
        for average in (False, True):
            points, times = (
                [p for p in results[part] if (p["average"], p["iterations"]) == (average, count)]
                for part in ("points", "times")
            )
            for key, digits in (("loss", 4), ("accuracy", 2)):
                values = [p[key] for p in points]
                spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
                cells.append(f"{fmean(values):.{digits}f}{spread}" if values else "–")
            cells.append(f"{times[0]['milliseconds']:.1f}" if times else "–")
        rows.append(tuple(cells))
    columns = ("loss", "accuracy", "ms")
    heads = (f"{which}: {name}" for which in ("last", "average") for name in columns)
    return ("inner iterations", *heads), rows


def iterations_markdown(results: Mapping[str, Any]) -> str:
    """The rows of :func:`iterations_table` as a Markdown table."""
    head, rows = iterations_table(results)
    lines = [f"| {' | '.join(line)} |" for line in (head, ["---:"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def definitions_markdown(rows: Rows) -> str:
    """Mean IoU by its four definitions, as a Markdown table."""
    keys = ("iou", "iou_of_images", "iou_of_present", "iou_with_unknown")
    heads = ("all pixels", "each image", "classes in it", "unknown counted")
    lines = [
        "| | "
        + " | ".join(f"{part}: {head}" for part in ("train", "test") for head in heads)
        + " |",
        "|---|" + "---:|" * 2 * len(heads),
    ]
    for name, row in rows.items():
        cells = (f"{row[part][key]['mean']:.2f}" for part in ("train", "test") for key in keys)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def overlay(
    image: Tensor, labels: Tensor, palette: Sequence[Sequence[int]], strength: float = 0.62
) -> NDArray[numpy.uint8]:
    """The grey image (3, H, W), tinted by its labels (H, W), as an (H, W, 3) array.

    Labels that the palette does not name are unknown.
    """
    colours = numpy.full((256, 3), UNKNOWN, numpy.uint8)
    colours[: len(palette)] = palette
    grey = numpy.asarray(image.numpy(), numpy.float32).mean(0)[..., None]
    tinted: NDArray[Any] = (1 - strength) * grey + strength * colours[labels.numpy()]
    return tinted.round().clip(0, 255).astype(numpy.uint8)


class Column(NamedTuple):
    """Label maps by the name of the image, under a title."""

    title: str
    labels: Mapping[str, Tensor]


def draw_panels(
    path: Path,
    samples: Sequence[Sample],
    columns: Sequence[Column],
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    *,
    weights: Mapping[str, Tensor] | None = None,
    title: str = "",
) -> None:
    """Draw input | columns … | truth, one image a row, with the accuracy of each label map.

    ``weights`` are pictures (H, W) uint8 of the weights W, shown as a last column: dark where the
    segmentation may change at no cost. Nothing here needs a model.
    """
    heads = ["input", *(column.title for column in columns), "truth"]
    heads += [] if weights is None else ["weights W (dark: edge)"]
    tallest = max(s.labels.shape[0] / s.labels.shape[1] for s in samples)
    height = (_WIDTH * tallest + 0.22) * len(samples) + 0.55 + (0.3 if title else 0)
    with saved_figure(path, _WIDTH * len(heads) + 0.2, height, title) as figure:
        grid = figure.subplots(len(samples), len(heads), squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, head in zip(grid[0], heads, strict=True):
            axes.set_title(head, loc="center", weight="bold", color=INK)
        for row, sample in zip(grid, samples, strict=True):
            row[0].imshow(sample.image.permute(1, 2, 0).numpy())
            before: float | None = None
            for axes, column in zip(row[1:], columns, strict=False):
                labels = column.labels[sample.name]
                axes.imshow(overlay(sample.image, labels, palette))
                right = accuracy(labels, sample.labels)
                text = f"{right:.1f} %"
                if before is not None:
                    text += f"  ({right - before:+.1f})".replace("-", "−")
                before = right
                _write_below(axes, text)
            truth = row[1 + len(columns)]
            truth.imshow(overlay(sample.image, sample.labels, palette))
            if weights is not None:
                row[-1].imshow(weights[sample.name].numpy(), cmap="gray", vmin=0, vmax=255)
        patches = [
            Patch(color=_shade(colour), label=textwrap.shorten(name, 24))
            for name, colour in zip(classes, palette, strict=True)
        ]
        if any(bool((sample.labels == IGNORE).any()) for sample in samples):
            patches.append(Patch(facecolor=_shade(UNKNOWN), edgecolor="#999999",
                                 label="unknown"))  # fmt: skip
        figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 6))


def accuracy(labels: Tensor, truth: Tensor) -> float:
    """Per cent of the labelled pixels that are right."""
    known = truth != IGNORE
    return 100 * float((labels[known] == truth[known]).float().mean())


def spread_out(
    data: Dataset, after: Mapping[str, Tensor], before: Mapping[str, Tensor] | None, count: int
) -> list[int]:
    """Places of ``count`` images across the range of gains, the best first and the worst last.

    Without ``before``, across the range of accuracies: good and bad cases alike.
    """
    gains = []
    for index, name in enumerate(data.names):
        truth = data[index].labels
        gain = accuracy(after[name], truth)
        gains.append(gain if before is None else gain - accuracy(before[name], truth))
    order = sorted(range(len(gains)), key=lambda index: -gains[index])
    places = numpy.linspace(0, len(order) - 1, min(count, len(order)))
    return [order[round(place)] for place in places.tolist()]


def _shade(colour: Sequence[int]) -> tuple[float, float, float]:
    red, green, blue = (level / 255 for level in colour)
    return red, green, blue


def _write_below(axes: Axes, text: str) -> None:
    axes.text(
        0.5, -0.03, text, transform=axes.transAxes, ha="center", va="top", fontsize=8, color=INK
    )  # fmt: skip


def draw_table(path: Path, rows: Rows) -> None:
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


def rich_table(rows: Rows) -> Table:
    """The rows of ``collect`` for a terminal."""
    table = Table(
        title=_caption(rows),
        box=None,
        header_style="bold",
        title_justify="left",
        title_style="italic",
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for head in _HEADS[2:]:
        table.add_column(head, justify="right", no_wrap=True)
    best = max(rows, key=lambda name: rows[name]["test"]["iou"]["mean"], default=None)
    for name, row in rows.items():
        cells = _cells(row)[2:]
        table.add_row(escape(name), *cells, style="bold green" if name == best else "")
    return table


def markdown(rows: Rows) -> str:
    """The rows of ``collect`` as a Markdown table."""
    lines = [
        "| | what | " + " | ".join(_HEADS) + " |",
        "|---|---|" + "---:|" * len(_HEADS),
    ]
    for name, row in rows.items():
        what = row["what"].replace("|", "\\|")
        lines.append(f"| {name} | {what} | " + " | ".join(_cells(row)) + " |")
    return "\n".join([*lines, "", _caption(rows)]) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [
        _spread(row[part][key]) if part in row else ""
        for part in ("train", "test")
        for key in ("accuracy", "iou")
    ]
    gains = [_spread(row["gain"][key], "+") if "gain" in row else "" for key in ("accuracy", "iou")]
    return cells + gains


def _spread(value: Mapping[str, Any], sign: str = "") -> str:
    text = f"{value['mean']:{sign}.2f}".replace("-", "−")
    return f"{text} ± {value['std']:.2f}" if len(value["each"]) > 1 else text


def _caption(rows: Rows) -> str:
    seeds = max((len(row["test"]["iou"]["each"]) for row in rows.values()), default=0)
    if seeds < 2:
        return "Per cent, one seed; gain over the control."
    return (
        f"Per cent, mean ± standard deviation over {seeds} seeds; gain over the control of the "
        "same seed."
    )
