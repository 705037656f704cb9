"""A colour and a marker a method, told apart without colour too."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from legato.console.figures import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION

# Neighbours in kind are near in hue.
COLOURS = {
    "Smoothed-impl": "#666666",
    "Proj.GD": ORANGE,
    "Proj.GD2": VERMILION,
    "Bregman-FB": BLUE,
    "Bregman-FB2": SKY,
    "Bregman-FB-impl": GREEN,
}
MARKERS = {
    "Smoothed-impl": "s",
    "Proj.GD": "v",
    "Proj.GD2": "^",
    "Bregman-FB": "o",
    "Bregman-FB2": "D",
    "Bregman-FB-impl": "P",
}
CURVE = INK
CLARKE = "#F6DCEA"
CLARKE_EDGE = PURPLE
ACCENT = PURPLE


def note(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """A remark inside a plot, at a place given in parts of its width and height."""
    axes.text(x, y, text, transform=axes.transAxes, fontsize=8.5, color="#444444", **options)


def title_of(name: str, values: dict[str, float]) -> str:
    """“Set A: λ = 1, b = 1 …”, for the heading of a figure."""
    return f"Set {name} (" + ", ".join(f"{k} = {v:g}" for k, v in values.items()) + ")"
