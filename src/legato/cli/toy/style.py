"""One look for all figures: a colour and a marker a method, told apart without colour too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from legato.studies.files import replacing

# The palette of Okabe and Ito, made for colour-blind readers; neighbours in kind, near in hue.
COLOURS = {
    "Smoothed-impl": "#666666",
    "Proj.GD": "#E69F00",
    "Proj.GD2": "#D55E00",
    "Bregman-FB": "#0072B2",
    "Bregman-FB2": "#56B4E9",
    "Bregman-FB-impl": "#009E73",
}
MARKERS = {
    "Smoothed-impl": "s",
    "Proj.GD": "v",
    "Proj.GD2": "^",
    "Bregman-FB": "o",
    "Bregman-FB2": "D",
    "Bregman-FB-impl": "P",
}
CURVE = "#222222"
CLARKE = "#F6DCEA"
CLARKE_EDGE = "#CC79A7"
ACCENT = "#CC79A7"

_LOOK: Any = {
    "font.size": 9,
    "text.hinting": "none",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "figure.titlesize": 11,
    "figure.dpi": 130,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.06,
}


@contextmanager
def picture(path: Path, width: float, height: float, title: str) -> Iterator[Figure]:
    """A figure in the common look, saved when the block ends."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        yield figure
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
        # 256 colours are plenty for lines and make files a third as large. With no date and no
        # version inside, the same numbers give the same file.
        image = Image.open(drawn).convert("RGB").quantize(256)
        with replacing(path) as temporary:
            image.save(temporary, format="png", optimize=True)


def note(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """A remark inside a plot, at a place given in parts of its width and height."""
    axes.text(x, y, text, transform=axes.transAxes, fontsize=8.5, color="#444444", **options)


def title_of(name: str, values: dict[str, float]) -> str:
    """“Set A: λ = 1, b = 1 …”, for the heading of a figure."""
    return f"Set {name} (" + ", ".join(f"{k} = {v:g}" for k, v in values.items()) + ")"
