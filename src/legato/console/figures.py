"""One look for the figures of all studies, and one way to write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from legato._support.files import replacing

# The palette of Okabe and Ito, made for colour-blind readers.
BLUE, SKY, GREEN, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#CC79A7"
ORANGE, VERMILION = "#E69F00", "#D55E00"
INK, GREY = "#222222", "#8A8A8A"

LOOK: Any = {
    "font.size": 9,
    "text.hinting": "none",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "figure.titlesize": 11,
    "figure.dpi": 130,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.06,
}


@contextmanager
def saved_figure(path: Path, width: float, height: float, title: str = "") -> Iterator[Figure]:
    """A figure in the common look, saved as a whole when the block ends.

    Photographs belong in ``.jpg``, many times smaller; lines and text are sharper in ``.png``.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.01, ha="left", weight="bold")
        yield figure
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
    # Neither kind carries a date or a version, so the same numbers give the same file.
    image = Image.open(drawn).convert("RGB")
    with replacing(path) as temporary:
        if path.suffix.lower() in (".jpg", ".jpeg"):
            image.save(temporary, format="jpeg", quality=88, optimize=True)
        else:  # 256 colours are plenty for lines and make files a third as large
            image.quantize(256).save(temporary, format="png", optimize=True)
