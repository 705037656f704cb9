"""The third tab: six gradients of the toy at any θ, as tangents, curves and a table."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import gradio
import torch
from matplotlib.axes import Axes

from legato.errors import LegatoError
from legato.studies.explore.controls import GradientControls
from legato.studies.explore.gradients import GradientView, Row, see_gradients
from legato.studies.explore.widgets import (
    INK,
    curves,
    logarithmic,
    only_words,
    plot,
    slider,
    when_idle,
)
from legato.studies.toy.example import SETS
from legato.studies.toy.figures import ACCENT, COLOURS, MARKERS
from legato.studies.toy.methods import METHODS

_LEAD = """The toy learns θ of a non-negative least-squares problem in one variable. Its solution,
x*(θ) = max(0, λθb/(1 + λθ²)), has a **kink at θ = 0**. Six ways to differentiate the loss
L = ½(x*(θ) − g)² through the solver: which to trust, and when?"""
_EXACT = 1e-17
"""Errors below are drawn here: a logarithmic axis has no zero."""


def gradients_tab() -> None:
    """Lay the tab out and wire it up."""
    start = GradientControls()
    first = show(start.values, start.theta, start.forward, start.back)
    gradio.Markdown(_LEAD, elem_classes="lead")
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280, elem_classes="controls"):
            values = gradio.Radio(
                [(f"{name}: λ = {toy.lam:g}, b = {toy.b:g}, θ* = {toy.theta_star:g}", name)
                 for name, toy in SETS.items()],
                value=start.values, label="Values", info="A is gentle, B moves fast and far.",
                elem_id="values",
            )  # fmt: skip
            sliders = [
                slider(start, "theta", 0.01, "θ",
                       "Where the loss is differentiated; 0 is the kink, 0.3 the paper's smooth "
                       "point."),
                slider(start, "forward", 1, "Forward iterations N",
                       "Steps of the solver: too few, and every gradient is taken at a wrong x."),
                slider(start, "back", 1, "Backward iterations K",
                       "How many of them are differentiated; no more than were made. "
                       "The -impl methods solve a linear system instead."),
            ]  # fmt: skip
        with gradio.Column(scale=5, min_width=320):
            said = gradio.HTML(first[0], elem_classes="said", elem_id="gradients-said")
            with gradio.Row():
                loss, error = plot(first[1], "loss"), plot(first[2], "error")
            table = gradio.HTML(first[3], elem_classes="methods", elem_id="methods")
    triggers = [values.input, *(one.change for one in sliders)]
    gradio.on(triggers, show, [values, *sliders], [said, loss, error, table], **when_idle(said))


def show(values: str, theta: float, forward: float, back: float) -> list[Any]:
    """A sentence, two curves and a table; where something is wrong, words only."""
    try:
        # Sliders add up steps in binary: 0.3 has to be 0.3, and the kink exactly 0.
        controls = GradientControls(values, round(float(theta), 2) + 0.0, int(forward), int(back))
        view = see_gradients(controls)
    except LegatoError as error:
        return only_words(str(error), 3)
    return [_sentence(view), _loss_curve(view), _back_curve(view), _table(view)]


def _sentence(view: GradientView) -> str:
    low, high = view.truth
    controls = view.controls
    if view.at_kink:
        truth = (
            f"At the kink there is no derivative: every number in <b>[{low:.4g}, {high:.4g}]</b>, "
            "the Clarke subdifferential, is a fair answer."
        )
    else:
        truth = f"The derivative at θ = <b>{controls.theta:g}</b> is <b>{low:.6g}</b>."
    if controls.back > controls.forward:
        truth += (
            f" Only {controls.forward} iterations were made: {controls.used_back} are "
            "differentiated."
        )
    return truth.replace("-", "−")


def _loss_curve(view: GradientView) -> str:
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


def _back_curve(view: GradientView) -> str:
    """What more back-iterations bring: errors, and at the kink the gradients themselves."""

    def draw_errors(axes: Axes) -> None:
        _along(axes, view, lambda row: None if row.error is None else max(row.error, _EXACT))
        logarithmic(axes, x=True, y=True)
        axes.set(xlabel="backward iterations K", title="Distance from the truth")

    def draw_gradients(axes: Axes) -> None:
        axes.axhspan(*view.truth, color=ACCENT, alpha=0.16, lw=0)
        _along(axes, view, lambda row: row.gradient)
        logarithmic(axes, x=True)
        axes.set(xlabel="backward iterations K", title="dL/dθ at the kink")

    if view.at_kink:
        return curves(
            draw_gradients,
            "Gradients of all methods at the kink over the number of backward iterations.",
            "Shaded: the Clarke subdifferential. Dotted: your K. Dashed: no back-iterations.",
        )
    return curves(
        draw_errors,
        "Errors of all methods over the number of backward iterations.",
        "Dotted: your K. Dashed: methods without back-iterations. The bottom is exact.",
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


def _table(view: GradientView) -> str:
    """What each method says, in numbers and in the library's own words."""
    away = "from the interval" if view.at_kink else "error"
    return (
        "<table><thead><tr><th>Method</th>"
        f'<th class="number">dL/dθ</th><th class="number">{away}</th></tr></thead>'
        f"<tbody>{''.join(map(_table_row, view.rows))}</tbody></table>"
    )


def _table_row(row: Row) -> str:
    def number(value: float | None, form: str) -> str:
        return "none" if value is None else format(value, form).replace("-", "−")

    dot = f'<span class="dot" style="background:{COLOURS[row.method]}"></span>'
    words = "".join(f'<div class="warned">{html.escape(said)}</div>' for said in row.words)
    return (
        f'<tr><td><span class="name">{dot}{row.method}</span>'
        f'<div class="small">{METHODS[row.method].words}</div>{words}</td>'
        f'<td class="number">{number(row.gradient, "+.6g")}</td>'
        f'<td class="number">{number(row.error, ".2g")}</td></tr>'
    )
