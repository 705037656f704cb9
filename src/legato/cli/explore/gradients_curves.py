"""The loss with its tangents, and what more back-iterations bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.axes import Axes

from legato.cli.explore.svg import INK, curves, logarithmic
from legato.studies.explore import GradientView
from legato.studies.explore.gradients import Row
from legato.studies.toy.figures import ACCENT, COLOURS, MARKERS

_BACK = "backward iterations K"
_FLOOR = 1e-17
"""Errors below are drawn here: a logarithmic axis has no zero."""


def loss_curve(view: GradientView) -> str:
    """L(x*(θ)), and a tangent for each method."""
    theta, loss = view.controls.theta, view.landscape.loss
    height = float(view.toy.loss(torch.tensor(view.toy.solution(theta), dtype=torch.float64)))
    span = max(loss) - min(loss)

    def draw(axes: Axes) -> None:
        axes.plot(view.landscape.theta, loss, color=INK, lw=1.6)
        for row in view.rows:
            if row.gradient is not None:
                at = (theta - 0.22, theta + 0.22)
                line = [height + row.gradient * (t - theta) for t in at]
                axes.plot(at, line, color=COLOURS[row.method], label=row.method, lw=1.5)
        axes.plot([theta], [height], "o", color=INK, ms=5)
        axes.set_ylim(min(loss) - 0.12 * span, max(loss) + 0.12 * span)
        axes.set_xlim(view.landscape.theta[0], view.landscape.theta[-1])
        axes.set(xlabel="θ", title="Loss and tangents")
        axes.legend(loc="upper right", fontsize=8)

    return curves(
        draw,
        f"The loss over θ with tangents of all methods at θ = {theta:g}.",
        "A good gradient lies along the curve; at the kink, between its two sides.",
    )


def back_curve(view: GradientView) -> str:
    """What more back-iterations bring: errors, and at the kink the gradients themselves."""
    return _gradients(view) if view.at_kink else _errors(view)


def _errors(view: GradientView) -> str:
    def draw(axes: Axes) -> None:
        _along(axes, view, lambda row: None if row.error is None else max(row.error, _FLOOR))
        logarithmic(axes, x=True, y=True)
        axes.set(xlabel=_BACK, title="Distance from the truth")

    return curves(
        draw,
        "Errors of all methods over the number of backward iterations.",
        "Dotted: your K. Dashed: methods without back-iterations. The bottom is exact.",
    )


def _gradients(view: GradientView) -> str:
    def draw(axes: Axes) -> None:
        axes.axhspan(*view.truth, color=ACCENT, alpha=0.16, lw=0)
        _along(axes, view, lambda row: row.gradient)
        logarithmic(axes, x=True)
        axes.set(xlabel=_BACK, title="dL/dθ at the kink")

    return curves(
        draw,
        "Gradients of all methods at the kink over the number of backward iterations.",
        "Shaded: the Clarke subdifferential. Dotted: your K. Dashed: no back-iterations.",
    )


def _along(axes: Axes, view: GradientView, height: Callable[[Row], float | None]) -> None:
    """A curve over K for each method; a line where K plays no part."""
    for row in view.rows:
        style: Any = {"color": COLOURS[row.method], "lw": 1.5}
        if row.method in view.along:
            heights = [height(one) for one in view.along[row.method]]
            points = [(k, y) for k, y in zip(view.backs, heights, strict=True) if y is not None]
            axes.plot(
                [k for k, _ in points], [y for _, y in points], **style,
                marker=MARKERS[row.method], ms=4, fillstyle="none",
            )  # fmt: skip
        elif (y := height(row)) is not None:
            axes.axhline(y, **style, ls="--")
    axes.axvline(view.controls.used_back, color=INK, lw=0.8, ls=":")
