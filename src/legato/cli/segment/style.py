"""The look of the study's figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from legato.studies.files import replacing

# Of the palette of Okabe and Ito, made for colour-blind readers.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A8A8A"
INK = "#222222"

_LOOK: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.titlesize": 11.5,
    "figure.dpi": 130,
}


@contextmanager
def picture(path: Path, width: float, height: float, title: str) -> Iterator[Figure]:
    """A figure in the common look, saved as a whole when the block ends."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.01, ha="left", weight="bold")
        yield figure
        drawn = BytesIO()
        kind = path.suffix.removeprefix(".").lower()
        # Photographs are many times smaller as JPEG; lines and text are sharper as PNG. Neither
        # carries a date, so the same numbers give the same file.
        photograph = {"quality": 88, "optimize": True} if kind in ("jpg", "jpeg") else None
        figure.savefig(drawn, format=kind, pil_kwargs=photograph)
        with replacing(path) as temporary:
            temporary.write_bytes(drawn.getvalue())
