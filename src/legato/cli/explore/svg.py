"""Curves as vector graphics inside the page: sharp at any width, light or dark."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK = "#010203"
"""Stands for the page's own colour of text, by which it is replaced."""

_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#8888884D",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def curves(draw: Callable[[Axes], None], description: str, caption: str) -> str:
    """One pair of axes as an HTML figure; ``description`` is for those who do not see it."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(5.2, 3.3), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    picture = drawn.getvalue()
    picture = picture[picture.index("<svg") :].replace(INK, "currentColor")
    return (
        f'<figure role="img" aria-label="{html.escape(description)}">{picture}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def logarithmic(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Logarithmic axes with powers written as text."""
    for wanted, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if wanted:
            scale("log")
            axis.set_major_locator(LogLocator(10, numticks=7))
            axis.set_major_formatter(FuncFormatter(power_of_ten))
            axis.set_minor_formatter(NullFormatter())


def power_of_ten(value: float, place: int | None = None) -> str:
    """1, 10, 100 and 0.1 as they are, other powers with an exponent."""
    if 0.05 < value < 5000:
        return f"{value:g}"
    exponent = int(f"{value:.0e}".partition("e")[2])
    return "10" + str(exponent).translate(_POWERS)
