"""Pictures into files."""

from __future__ import annotations

from pathlib import Path

from legato.diagnostics import Diagnosis


def save_plot(diagnosis: Diagnosis, path: Path) -> None:
    """Draw a diagnosis into an image file; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    diagnosis.plot(figure.add_subplot())
    figure.savefig(path, dpi=150)
