"""The second tab: six gradients of the toy at any θ."""

from __future__ import annotations

import html
from typing import Any

import gradio

from legato.cli.explore.gradients_curves import back_curve, loss_curve
from legato.cli.explore.gradients_table import gradients_table
from legato.errors import LegatoError
from legato.studies.explore import LIMITS, GradientControls, GradientView, see_gradients
from legato.studies.toy.example import SETS

_LEAD = """The toy learns θ of a non-negative least-squares problem in one variable. Its solution,
x*(θ) = max(0, λθb/(1 + λθ²)), has a **kink at θ = 0**. Six ways to differentiate the loss
L = ½(x*(θ) − g)² through the solver: which to trust, and when?"""


def gradients_tab() -> None:
    """Lay the tab out and wire it up."""
    start = GradientControls()
    first = _show(start.values, start.theta, start.forward, start.back)
    gradio.Markdown(_LEAD, elem_classes="lead")
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280, elem_classes="controls"):
            values = gradio.Radio(
                [(_named(name), name) for name in SETS], value=start.values, label="Values",
                info="A is gentle, B moves fast and far.", elem_id="values",
            )  # fmt: skip
            sliders = [
                _slider("theta", start, 0.01, "θ",
                        "Where the loss is differentiated; 0 is the kink, 0.3 the paper's smooth "
                        "point."),
                _slider("forward", start, 1, "Forward iterations N",
                        "Steps of the solver: too few, and every gradient is taken at a wrong x."),
                _slider("back", start, 1, "Backward iterations K",
                        "How many of them are differentiated; no more than were made. "
                        "The -impl methods solve a linear system instead."),
            ]  # fmt: skip
        with gradio.Column(scale=5, min_width=320):
            said = gradio.HTML(first[0], elem_classes="said", elem_id="gradients-said")
            with gradio.Row():
                with gradio.Column(min_width=300):
                    loss = gradio.HTML(first[1], elem_classes="plot", elem_id="loss")
                with gradio.Column(min_width=300):
                    error = gradio.HTML(first[2], elem_classes="plot", elem_id="error")
            table = gradio.HTML(first[3], elem_classes="methods", elem_id="methods")
    gradio.on(
        [values.input, *(slider.change for slider in sliders)], _show, [values, *sliders],
        [said, loss, error, table], trigger_mode="always_last", show_progress="minimal",
        show_progress_on=said, concurrency_id="compute", concurrency_limit=1,
        api_visibility="private",
    )  # fmt: skip


def _show(values: str, theta: float, forward: float, back: float) -> list[Any]:
    """A sentence, two curves and a table; where something is wrong, words only."""
    try:
        # Sliders add up steps in binary: 0.3 has to be 0.3, and the kink exactly 0.
        controls = GradientControls(values, round(float(theta), 2) + 0.0, int(forward), int(back))
        view = see_gradients(controls)
    except LegatoError as error:
        said = f'<span class="wrong" role="alert">{html.escape(str(error))}</span>'
        return [said, *[gradio.skip()] * 3]
    return [_sentence(view), loss_curve(view), back_curve(view), gradients_table(view)]


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
    fewer = (
        f" Only {controls.forward} iterations were made: {controls.used_back} are differentiated."
        if controls.back > controls.forward
        else ""
    )
    return (truth + fewer).replace("-", "−")


def _slider(
    name: str, start: GradientControls, step: float, label: str, info: str
) -> gradio.Slider:
    least, most = LIMITS[name]
    return gradio.Slider(
        least, most, getattr(start, name), step=step, label=label, info=info, elem_id=name,
        buttons=["reset"],
    )  # fmt: skip


def _named(name: str) -> str:
    toy = SETS[name]
    return f"{name}: λ = {toy.lam:g}, b = {toy.b:g}, θ* = {toy.theta_star:g}"
