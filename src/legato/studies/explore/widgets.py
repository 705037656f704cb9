"""What tabs are made of: sliders, pictures, words, and curves as vector graphics."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gradio
import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from torch import Tensor

from legato.console.figures import LOOK
from legato.studies.explore.controls import limits
from legato.studies.explore.pictures import read_picture

Pixels = NDArray[numpy.uint8]

INK = "#010203"
"""Stands for the page's own colour of text, by which it is replaced."""

_SVG_LOOK: Any = LOOK | {
    "svg.fonttype": "none",  # text stays text
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.linewidth": 0.6,
    "grid.color": "#8888884D",
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def slider(controls: Any, name: str, step: float, label: str, info: str) -> gradio.Slider:
    """A control between its limits, starting where ``controls`` stand."""
    least, most = limits(controls, name)
    return gradio.Slider(
        least, most, getattr(controls, name), step=step, label=label, info=info, elem_id=name,
        buttons=["reset"],
    )  # fmt: skip


def picture(label: str, value: Any, name: str) -> gradio.Image:
    """A place for a picture, pixels shown as they are."""
    return gradio.Image(
        value, label=label, format="png", interactive=False, elem_id=name, elem_classes="crisp",
        min_width=200, buttons=["fullscreen", "download"], alt_text=label,
    )  # fmt: skip


@lru_cache(maxsize=2)
def dropped(file: str) -> Tensor:
    """Read once, not at every move of a slider; a path is that of one upload and never reused."""
    return read_picture(file)


def eight_bits(image: Tensor) -> Pixels:
    """A picture (3, H, W) in [0, 1] as (H, W, 3)."""
    values = image.permute(1, 2, 0).numpy()
    return (255 * values + 0.5).clip(0, 255).astype(numpy.uint8)


def when_idle(said: gradio.HTML) -> Any:
    """How events are answered: one at a time, only the last of many, progress shown at ``said``."""
    return {
        "trigger_mode": "always_last", "show_progress": "minimal", "show_progress_on": said,
        "concurrency_id": "compute", "concurrency_limit": 1, "api_visibility": "private",
    }  # fmt: skip


def plot(drawn: str, name: str) -> gradio.HTML:
    """A place for curves."""
    with gradio.Column(min_width=300):
        return gradio.HTML(drawn, elem_classes="plot", elem_id=name)


def only_words(message: str, others: int) -> list[Any]:
    """What went wrong as the first output, while the others stay as they are."""
    said = f'<span class="wrong" role="alert">{html.escape(message)}</span>'
    return [said, *[gradio.skip()] * others]


def curves(draw: Callable[[Axes], None], description: str, caption: str) -> str:
    """One pair of axes as an HTML figure, sharp at any width, light or dark.

    ``description`` is for those who do not see it.
    """
    with matplotlib.rc_context(_SVG_LOOK):
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
            axis.set_major_formatter(FuncFormatter(_power_of_ten))
            axis.set_minor_formatter(NullFormatter())


def _power_of_ten(value: float, place: int | None = None) -> str:
    """1, 10, 100, 0.1 and 0.01 as they are, other powers with an exponent."""
    if 0.005 < value < 5000:
        return f"{value:g}"
    exponent = int(f"{value:.0e}".partition("e")[2])
    return "10" + str(exponent).translate(_POWERS)
