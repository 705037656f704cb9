"""The number of iterations as a smoothing, on min over [0, 1] of θx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps

from legato.cli.toy.style import note
from legato.console.figures import saved_figure
from legato.studies.toy.nonunique import STEP, StepCurve


def draw_nonunique(curves: Sequence[StepCurve], path: Path) -> None:
    """The solution after n steps, the loss seen through it, and the slope left to descend."""
    colours = colormaps["viridis"](np.linspace(0.9, 0.0, len(curves)))
    title = "min over [0, 1] of θx: the number of entropic steps is the smoothing"
    with saved_figure(path, 10.0, 3.9, title) as figure:
        solution, loss, slope = figure.subplots(1, 3, sharex=True)
        for curve, colour in zip(curves, colours, strict=True):
            look = {"color": colour, "label": f"n = {curve.iterations}"}
            solution.plot(curve.theta, curve.x, **look)
            loss.plot(curve.theta, curve.loss, **look)
            slope.semilogy(curve.theta, np.abs(curve.slope), **look)
        edge = max(curves[0].theta)
        exact = {"color": "black", "ls": ":", "lw": 1.4, "label": "n → ∞"}
        solution.plot([-edge, 0, 0, edge], [1, 1, 0, 0], **exact)
        loss.plot([-edge, 0, 0, edge], [0, 0, 1, 1], **exact)
        solution.set_title(f"xⁿ = x⁰/(x⁰ + (1 − x⁰)e^(nαθ)),  α = {STEP:g}")
        loss.set_title("loss (xⁿ − 1)²")
        slope.set_title("|d loss/dθ|: what there is to descend")
        slope.set_ylim(1e-6, 1e3)
        note(slope, 0.5, 0.97, "steep at 0, nothing elsewhere:\nn too large", ha="center", va="top")
        for axes in (solution, loss, slope):
            axes.set_xlabel("θ")
        handles, labels = solution.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
