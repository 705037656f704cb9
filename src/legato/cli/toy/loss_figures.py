"""The loss, the solution map, and tangents to the loss."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from legato.cli.toy.numbers import minus
from legato.cli.toy.style import ACCENT, CLARKE, CLARKE_EDGE, CURVE, note, title_of
from legato.console.figures import saved_figure
from legato.studies.toy import SetResults, Toy
from legato.studies.toy.example import KINK, SMOOTH


def heading(toy: Toy) -> str:
    """The set and its values."""
    return title_of(toy.name, {"λ": toy.lam, "b": toy.b, "θ*": toy.theta_star})


def draw_loss(found: SetResults, path: Path) -> None:
    """Left the loss with its optimum, right the solution map."""
    toy, curve = found.toy, found.landscape
    truth = toy.solution(toy.theta_star)
    with saved_figure(path, 9.2, 3.7, f"{heading(toy)}: a loss with a kink at θ = 0") as figure:
        left, right = figure.subplots(1, 2)
        left.plot(curve.theta, curve.loss, color=CURVE)
        star = {"marker": "*", "ms": 14, "ls": "", "clip_on": False, "zorder": 5}
        left.plot(toy.theta_star, 0, color=ACCENT, label=f"θ* = {toy.theta_star:g}", **star)
        if not math.isclose(toy.twin(), toy.theta_star):
            left.plot(
                toy.twin(),
                0,
                color="white",
                mec=ACCENT,
                label=f"1/(λθ*) = {toy.twin():g}: the same x*",
                **star,
            )
        left.set(title="loss  ½(x*(θ) − g)²", xlabel="θ", ylim=(0, None))
        left.legend(loc="upper right")
        right.plot(curve.theta, curve.x, color=CURVE)
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
    with saved_figure(path, 9.2, 3.7, f"{heading(toy)}: tangents to the loss") as figure:
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
            right.plot(theta, start + slope * theta, color=CLARKE_EDGE, lw=0.9)
        right.plot(KINK, start, "o", color=ACCENT, ms=6, zorder=4)
        right.set_title(minus(f"θ = 0: Clarke’s subdifferential, slopes in [{lo:.4g}, {hi:.4g}]"))
        note(
            right, 0.97, 0.96, "the kink is concave: no line\nsupports the curve from below",
            ha="right", va="top",
        )  # fmt: skip
        for axes in (left, right):
            axes.plot(theta, loss, color=CURVE, zorder=3, label="loss")
            axes.set(xlabel="θ", ylim=(-0.12 * top, 1.45 * top), xlim=(theta[0], theta[-1]))
        left.legend(loc="upper right")
