"""The figures of a run, each drawn into a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from legato.console.figures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    saved_figure,
)
from legato.studies.toy.example import KINK, SMOOTH, Toy
from legato.studies.toy.methods import BACK_ITERATED, FORWARD, METHODS
from legato.studies.toy.nonunique import STEP, StepCurve
from legato.studies.toy.report import minus, printed_like
from legato.studies.toy.study import BACKS, SetResults, ToyResults

Array = NDArray[Any]

# A colour and a marker a method: told apart without colour too; neighbours in kind are near in hue.
COLOURS = dict(zip(METHODS, ("#666666", ORANGE, VERMILION, BLUE, SKY, GREEN), strict=True))
MARKERS = dict(zip(METHODS, "sv^oDP", strict=True))
CLARKE = "#F6DCEA"
ACCENT = PURPLE

# Methods with the same forward iterations share a curve.
_SHARED = {
    "Smoothed-impl": "Smoothed-impl",
    "Proj.GD": "Proj.GD, Proj.GD2",
    "Bregman-FB": "Bregman-FB, -FB2, -FB-impl",
}
_ROUNDING = 1e-16
"""Below this, differences along the iterations are rounding."""
_EXACT = 1e-17
"""Where an error of exactly 0 is drawn on a logarithmic axis."""


def figures(results: ToyResults) -> dict[str, Callable[[Path], None]]:
    """The name of every figure of a run, with the function that draws it into a file."""
    of_a_set = {
        "1_loss": draw_loss,
        "2_tangents": draw_tangents,
        "3_convergence": draw_convergence,
        "4_gradients": draw_errors,
        "5_kink": draw_kink,
    }
    found: dict[str, Callable[[Path], None]] = {
        f"{name}_{letter}": partial(draw, results.sets[letter])
        for letter in results.sets
        for name, draw in of_a_set.items()
    }
    return found | {"6_nonunique": partial(draw_nonunique, results.nonunique)}


def draw_loss(found: SetResults, path: Path) -> None:
    """Left the loss with its optimum, right the solution map."""
    toy, curve = found.toy, found.landscape
    truth = toy.solution(toy.theta_star)
    with saved_figure(path, 9.2, 3.7, f"{_heading(toy)}: a loss with a kink at θ = 0") as figure:
        left, right = figure.subplots(1, 2)
        left.plot(curve.theta, curve.loss, color=INK)
        star: Any = {"marker": "*", "ms": 14, "ls": "", "clip_on": False, "zorder": 5}
        left.plot(toy.theta_star, 0, color=ACCENT, label=f"θ* = {toy.theta_star:g}", **star)
        if not math.isclose(toy.twin(), toy.theta_star):
            label = f"1/(λθ*) = {toy.twin():g}: the same x*"
            left.plot(toy.twin(), 0, color="white", mec=ACCENT, label=label, **star)
        left.set(title="loss  ½(x*(θ) − g)²", xlabel="θ", ylim=(0, None))
        left.legend(loc="upper right")
        right.plot(curve.theta, curve.x, color=INK)
        right.axhline(truth, color=ACCENT, ls="--", lw=1.2, label=f"g = x*(θ*) = {truth:.4g}")
        right.set(title="solution map  x*(θ) = max(0, λθb/(1 + λθ²))", xlabel="θ")
        right.set_ylim(-0.04 * truth, 1.1 * max(curve.x))
        right.legend(loc="lower right")
        for axes in (left, right):
            axes.axvline(KINK, color="#999999", lw=1, ls=":")


def draw_tangents(found: SetResults, path: Path) -> None:
    """Left the tangent where there is one, right all that Clarke's subdifferential offers."""
    toy, curve = found.toy, found.landscape
    width = 1 / math.sqrt(toy.lam)  # x* rises and falls over that length
    theta, loss = np.array(curve.theta), np.array(curve.loss)
    inside = (theta >= -0.5 * width) & (theta <= 1.3 * width)
    theta, loss = theta[inside], loss[inside]
    top = float(loss.max())
    with saved_figure(path, 9.2, 3.7, f"{_heading(toy)}: tangents to the loss") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        slope = toy.derivative(SMOOTH)
        height = float(np.interp(SMOOTH, theta, loss))
        left.plot(theta, height + slope * (theta - SMOOTH), color=ACCENT, label="tangent")
        left.plot(SMOOTH, height, "o", color=ACCENT, ms=6, zorder=4)
        left.set_title(minus(f"θ = {SMOOTH:g}: one tangent, slope {slope:.8f}"))
        lo, hi = toy.clarke()
        start = float(np.interp(KINK, theta, loss))
        right.fill_between(
            theta, start + lo * theta, start + hi * theta, color=CLARKE, lw=0, zorder=0.5
        )
        for slope in np.linspace(lo, hi, 5):
            right.plot(theta, start + slope * theta, color=ACCENT, lw=0.9)
        right.plot(KINK, start, "o", color=ACCENT, ms=6, zorder=4)
        right.set_title(minus(f"θ = 0: Clarke’s subdifferential, slopes in [{lo:.4g}, {hi:.4g}]"))
        remark = "the kink is concave: no line\nsupports the curve from below"
        _note(right, 0.97, 0.96, remark, ha="right", va="top")
        for axes in (left, right):
            axes.plot(theta, loss, color=INK, zorder=3, label="loss")
            axes.set(xlabel="θ", ylim=(-0.12 * top, 1.45 * top), xlim=(theta[0], theta[-1]))
        left.legend(loc="upper right")


def draw_convergence(found: SetResults, path: Path) -> None:
    """Top: the energy. Bottom: the gradient. Left θ = 0.3, right θ = 0."""
    title = f"{_heading(found.toy)}: linear at θ = 0.3, sublinear at θ = 0"
    with saved_figure(path, 9.6, 7.4, title) as figure:
        ((energy, kink_energy), (gradient, kink_gradient)) = figure.subplots(2, 2)
        _energies(energy, found, SMOOTH)
        energy.set_xlim(0, 80)
        energy.legend(loc="center right")
        energy.set_title(f"θ = {SMOOTH:g}: energy  E(xⁿ) − min E")
        _energies(kink_energy, found, KINK)
        _rate(kink_energy, found)
        _distances(gradient, found)
        _accumulating(kink_gradient, found)


def _energies(axes: Axes, found: SetResults, theta: float) -> None:
    for method, gaps in found.energies[theta].items():
        n = np.arange(1, len(gaps) + 1)
        values = np.array(gaps)
        visible = values > _ROUNDING
        if visible.sum() > 1:
            axes.semilogy(n[visible], values[visible], color=COLOURS[method], label=_SHARED[method])
    axes.set_xlabel("forward iterations n")


def _rate(axes: Axes, found: SetResults) -> None:
    n = np.arange(1, FORWARD + 1)
    rate = 1 / (2 * (found.toy.bregman_step * n) ** 2)
    axes.loglog(n, rate, "k:", lw=1.2, label="1/(2α²n²), i.e. x ≈ 1/(αn)")
    axes.set_title("θ = 0: energy, on two logarithmic axes")
    axes.legend(loc="upper right")
    _note(axes, 0.03, 0.05, "Proj.GD, Proj.GD2: at the minimum after one step", va="bottom")


def _accumulation(found: SetResults, theta: float, method: str) -> tuple[Array, Array]:
    """Back-iterations, and the gradient they have gathered."""
    estimates = found.estimates[theta][method]
    return np.array(list(estimates)), np.array([e.gradient for e in estimates.values()])


def _distances(axes: Axes, found: SetResults) -> None:
    for method in BACK_ITERATED:
        backs, values = _accumulation(found, SMOOTH, method)
        distance = np.abs(values - values[-1])
        visible = distance > _ROUNDING
        points = {"ls": "", "marker": MARKERS[method], "mfc": "none", "ms": 5}
        style: Any = points if method.endswith("2") else {"ls": "-"}
        axes.semilogy(
            backs[visible], distance[visible], color=COLOURS[method], label=method, **style
        )
    axes.set(xlabel="back-iterations K", xlim=(0, 80))
    axes.set_title(f"θ = {SMOOTH:g}: distance of the gradient to its value at K = {FORWARD}")
    axes.legend(loc="upper right")


def _accumulating(axes: Axes, found: SetResults) -> None:
    lo, hi = found.toy.clarke()
    axes.axhspan(lo, hi, color=CLARKE, lw=0, zorder=0, label="Clarke subdifferential")
    for method in ("Bregman-FB", "Bregman-FB2"):
        axes.plot(
            *_accumulation(found, KINK, method), color=COLOURS[method], marker=MARKERS[method],
            ms=3.5, lw=1.4, label=method,
        )  # fmt: skip
        limit = found.limits[method]
        axes.axhline(limit, color=COLOURS[method], ls="--", lw=1.1)
        shift, anchor = (-3, "top") if method == "Bregman-FB" else (3, "bottom")
        axes.annotate(
            f"limit {limit / found.toy.slope_at_kink():.3f}·λb(x(0) − g)", (0.02 * FORWARD, limit),
            xytext=(0, shift), textcoords="offset points", va=anchor, fontsize=8.5, color="#333333",
        )  # fmt: skip
    projected = _accumulation(found, KINK, "Proj.GD")
    axes.plot(*projected, color=COLOURS["Proj.GD"], label=_SHARED["Proj.GD"], clip_on=False)
    span = hi - lo
    axes.set(xlabel="back-iterations K", ylim=(lo - 0.28 * span, hi + 0.05 * span))
    axes.set_xlim(0, FORWARD)
    axes.set_title("θ = 0: the gradient itself; FB2 does not follow FB")
    axes.legend(loc="lower center", ncols=2)


def draw_errors(found: SetResults, path: Path) -> None:
    """How far each method is from the analytic gradient at θ = 0.3, in six panels."""
    exact = found.toy.derivative(SMOOTH)
    title = f"{_heading(found.toy)}, θ = {SMOOTH:g}: error of dL/dθ = {minus(f'{exact:.8f}')}"
    with saved_figure(path, 10.0, 5.6, title) as figure:
        for axes, back in _panels(figure, "|estimate − analytic|"):
            for row, method in enumerate(METHODS):
                error = abs(found.estimates[SMOOTH][method][back].gradient - exact)
                text = printed_like(error, "1.0e0")
                _lollipop(axes, row, method, _EXACT, max(error, _EXACT), text)
            axes.set_xscale("log")
            axes.set_xlim(_EXACT, 1)
            axes.xaxis.set_major_locator(LogLocator(10.0, numticks=5))
            axes.xaxis.set_minor_locator(NullLocator())


def draw_kink(found: SetResults, path: Path) -> None:
    """Where each method's gradient lies in Clarke's subdifferential at θ = 0, in six panels."""
    lo, hi = found.toy.clarke()
    title = f"{_heading(found.toy)}, θ = 0: all within Clarke’s subdifferential, yet far apart"
    with saved_figure(path, 10.0, 6.0, title) as figure:
        for axes, back in _panels(figure, "estimate of dL/dθ"):
            axes.axvspan(lo, hi, color=CLARKE, lw=0, zorder=0, label="Clarke subdifferential")
            for method, text in (
                ("Bregman-FB", "½ λb(x(0) − g): limit of FB and FB-impl"),
                ("Bregman-FB2", "½(1 − e⁻²) λb(x(0) − g): limit of FB2"),
            ):
                limit = found.limits[method]
                axes.axvline(limit, color=COLOURS[method], ls="--", lw=1.2, label=text)
            for row, method in enumerate(METHODS):
                gradient = found.estimates[KINK][method][back].gradient
                _lollipop(axes, row, method, 0.0, gradient, minus(f"{gradient:#.3g}"))
            margin = 0.06 * (hi - lo)
            axes.set_xlim(lo - margin, hi + margin)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _panels(figure: Figure, quantity: str) -> Iterator[tuple[Axes, int]]:
    """One pair of axes for each number of back-iterations, the methods as rows."""
    grid = figure.subplots(2, 3, sharey=True, sharex=True)
    for axes, back in zip(grid.flat, BACKS, strict=True):
        axes.set_title(f"{back} of {FORWARD} back-iterations")
        axes.set_yticks(range(len(METHODS)), list(METHODS))
        axes.set_ylim(len(METHODS) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0, pad=9)  # room for markers at the edge
        axes.grid(False, axis="y")
        if back in BACKS[3:]:
            axes.set_xlabel(quantity)
        yield axes, back


def _lollipop(axes: Axes, row: int, method: str, start: float, end: float, text: str) -> None:
    """A line with the method's marker at its end, and the number beside the axes."""
    colour = COLOURS[method]
    axes.hlines(row, min(start, end), max(start, end), color=colour, lw=2)
    axes.plot(end, row, MARKERS[method], color=colour, ms=7, clip_on=False, zorder=3)
    axes.text(1.04, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def draw_nonunique(curves: Sequence[StepCurve], path: Path) -> None:
    """min over [0, 1] of θx after n steps, the loss seen through it, the slope left to descend."""
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
        remark = "steep at 0, nothing elsewhere:\nn too large"
        _note(slope, 0.5, 0.97, remark, ha="center", va="top")
        for axes in (solution, loss, slope):
            axes.set_xlabel("θ")
        handles, labels = solution.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _heading(toy: Toy) -> str:
    return f"Set {toy.name} (λ = {toy.lam:g}, b = {toy.b:g}, θ* = {toy.theta_star:g})"


def _note(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """A remark inside a plot, at a place given in parts of its width and height."""
    axes.text(x, y, text, transform=axes.transAxes, fontsize=8.5, color="#444444", **options)
