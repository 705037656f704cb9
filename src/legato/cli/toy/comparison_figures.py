"""Six panels for six numbers of back-iterations, at θ = 0.3 and at the kink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from legato.cli.toy.loss_figures import heading
from legato.cli.toy.numbers import minus, printed_like
from legato.cli.toy.style import CLARKE, COLOURS, MARKERS
from legato.console.figures import saved_figure
from legato.studies.toy import FORWARD, METHODS, SetResults
from legato.studies.toy.example import KINK, SMOOTH
from legato.studies.toy.study import BACKS

_FLOOR = 1e-17
"""Where an error of exactly 0 is drawn on a logarithmic axis."""


def draw_errors(found: SetResults, path: Path) -> None:
    """How far each method is from the analytic gradient at θ = 0.3."""
    exact = found.toy.derivative(SMOOTH)
    title = f"{heading(found.toy)}, θ = {SMOOTH:g}: error of dL/dθ = {minus(f'{exact:.8f}')}"
    with saved_figure(path, 10.0, 5.6, title) as figure:
        for axes, back in _panels(figure):
            for row, method in enumerate(METHODS):
                error = abs(found.estimates[SMOOTH][method][back].gradient - exact)
                _lollipop(axes, row, method, _FLOOR, max(error, _FLOOR))
                _number(axes, row, printed_like(error, "1.0e0"))
            axes.set_xscale("log")
            axes.set_xlim(_FLOOR, 1)
            axes.xaxis.set_major_locator(LogLocator(10.0, numticks=5))
            axes.xaxis.set_minor_locator(NullLocator())
            if back in BACKS[3:]:
                axes.set_xlabel("|estimate − analytic|")


def draw_kink(found: SetResults, path: Path) -> None:
    """Where each method's gradient lies in Clarke's subdifferential at θ = 0."""
    lo, hi = found.toy.clarke()
    title = f"{heading(found.toy)}, θ = 0: all within Clarke’s subdifferential, yet far apart"
    with saved_figure(path, 10.0, 6.0, title) as figure:
        for axes, back in _panels(figure):
            axes.axvspan(lo, hi, color=CLARKE, lw=0, zorder=0, label="Clarke subdifferential")
            for method, text in (
                ("Bregman-FB", "½ λb(x(0) − g): limit of FB and FB-impl"),
                ("Bregman-FB2", "½(1 − e⁻²) λb(x(0) − g): limit of FB2"),
            ):
                axes.axvline(
                    found.limits[method], color=COLOURS[method], ls="--", lw=1.2, label=text
                )
            for row, method in enumerate(METHODS):
                gradient = found.estimates[KINK][method][back].gradient
                _lollipop(axes, row, method, 0.0, gradient)
                _number(axes, row, minus(f"{gradient:#.3g}"))
            margin = 0.06 * (hi - lo)
            axes.set_xlim(lo - margin, hi + margin)
            if back in BACKS[3:]:
                axes.set_xlabel("estimate of dL/dθ")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _panels(figure: Figure) -> Iterator[tuple[Axes, int]]:
    grid = figure.subplots(2, 3, sharey=True, sharex=True)
    for axes, back in zip(grid.flat, BACKS, strict=True):
        axes.set_title(f"{back} of {FORWARD} back-iterations")
        axes.set_yticks(range(len(METHODS)), list(METHODS))
        axes.set_ylim(len(METHODS) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0, pad=9)  # room for markers at the edge
        axes.grid(False, axis="y")
        yield axes, back


def _lollipop(axes: Axes, row: int, method: str, start: float, end: float) -> None:
    colour = COLOURS[method]
    axes.hlines(row, min(start, end), max(start, end), color=colour, lw=2)
    axes.plot(end, row, MARKERS[method], color=colour, ms=7, clip_on=False, zorder=3)


def _number(axes: Axes, row: int, text: str) -> None:
    axes.text(1.04, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
