"""The second tab: noise, the weight of total variation, and a button that learns it."""

from __future__ import annotations

from typing import Any

import gradio
from matplotlib.axes import Axes
from torch import Tensor

from legato.console.figures import BLUE, VERMILION
from legato.errors import LegatoError
from legato.studies.explore.controls import DenoisingControls
from legato.studies.explore.denoising import (
    LEARNING_STEPS,
    Denoising,
    curve,
    denoise_picture,
    learn_weight,
)
from legato.studies.explore.pictures import SUFFIXES, example_pictures
from legato.studies.explore.widgets import (
    INK,
    curves,
    dropped,
    eight_bits,
    logarithmic,
    only_words,
    picture,
    plot,
    slider,
    when_idle,
)

_LEAD = """Noise is added to a picture and taken out by **total variation**: the closest image u
with few and short edges, min over u of ½‖u − y‖² + λ‖∇u‖₂,₁. How good u is depends on λ alone, and
the layer knows the derivative. **Learn λ** follows it uphill."""


def denoising_tab() -> None:
    """Lay the tab out and wire it up."""
    start, scenes = DenoisingControls(), list(example_pictures())
    first = show(None, scenes[0], start.noise, start.weight)
    gradio.Markdown(_LEAD, elem_classes="lead")
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280, elem_classes="controls"):
            file = gradio.File(
                label="Drop a picture, or click", file_types=list(SUFFIXES), height=150,
                elem_id="clean-file",
            )  # fmt: skip
            scene = gradio.Radio(
                scenes, value=scenes[0], label="Or a synthetic scene", elem_id="clean-scene"
            )
            noise = slider(start, "noise", 1, "Noise σ", "Its standard deviation, white being 255.")
            weight = slider(
                start, "weight", 0.001, "Weight λ",
                "The price of an edge: 0 keeps all noise, much leaves no detail.",
            )  # fmt: skip
            button = gradio.Button("Learn λ", variant="primary", elem_id="learn")
        with gradio.Column(scale=5, min_width=320):
            said = gradio.HTML(first[0], elem_classes="said", elem_id="denoising-said")
            with gradio.Row():
                noisy = picture("With noise", first[1], "noisy")
                clean = picture("Total variation", first[2], "denoised")
            quality = plot(first[3], "quality")
    inputs, outputs = [file, scene, noise, weight], [said, noisy, clean, quality]
    how = when_idle(said)
    gradio.on([noise.change, weight.input], show, inputs, outputs, **how)
    gradio.on([file.upload, file.clear, scene.input], show, inputs, outputs, **how)
    button.click(learn, inputs, [weight, *outputs], **how)


def show(
    file: str | None, scene: str | None, noise: float, weight: float,
    path: list[tuple[float, float]] | None = None,
) -> list[Any]:  # fmt: skip
    """A sentence, two pictures and a curve; where something is wrong, words only."""
    try:
        controls = DenoisingControls(float(noise), float(weight))
        image = _image(file, scene)
        found = denoise_picture(image, controls)
        seen = curve(image, controls.noise)
    except (LegatoError, MemoryError) as error:
        return only_words(str(error) or "The picture does not fit into memory.", 3)
    return [
        _sentence(found, controls, path),
        eight_bits(found.noisy),
        eight_bits(found.denoised),
        _quality_curve(found, controls, seen, path or []),
    ]


def learn(file: str | None, scene: str | None, noise: float, weight: float) -> list[Any]:
    """The learned λ for its slider, and what it gives."""
    try:
        controls = DenoisingControls(float(noise), float(weight))
        path = learn_weight(_image(file, scene), controls)
    except (LegatoError, MemoryError) as error:
        message = str(error) or "The picture does not fit into memory."
        return [gradio.skip(), *only_words(message, 3)]
    best = max(path, key=lambda step: step[1])[0]
    return [round(best, 4), *show(file, scene, noise, best, path)]


def _image(file: str | None, scene: str | None) -> Tensor:
    return dropped(file) if file else example_pictures()[scene or next(iter(example_pictures()))]


def _sentence(
    found: Denoising, controls: DenoisingControls, path: list[tuple[float, float]] | None
) -> str:
    if abs(found.slope) * controls.weight < 0.05:
        advice = "λ is about right."
    else:
        advice = f"{'More' if found.slope > 0 else 'Less'} weight would be better."
    learned = ""
    if path:
        learned = (
            f"Learned in {LEARNING_STEPS} steps from λ = {path[0][0]:.3g} ({path[0][1]:.2f} dB). "
        )
    said = (
        f"{learned}PSNR: <b>{found.noisy_psnr:.2f}</b> dB with noise, <b>{found.psnr:.2f}</b> dB "
        f"at λ = <b>{controls.weight:.3g}</b>. dPSNR/dλ = <b>{found.slope:+.3g}</b> dB, by "
        f"unrolling. {advice}"
    )
    return said.replace("+-", "−").replace("-", "−")


def _quality_curve(
    found: Denoising,
    controls: DenoisingControls,
    seen: list[tuple[float, float]],
    path: list[tuple[float, float]],
) -> str:
    """PSNR over λ, the tangent that the layer's derivative gives, and the steps of learning."""

    def draw(axes: Axes) -> None:
        here = [(controls.weight, found.psnr)] if controls.weight > 0 else []
        known = sorted({*seen, *path, *here})  # so that every point lies on the curve
        axes.plot(*zip(*known, strict=True), color=INK, lw=1.6, label="PSNR")
        if path:
            axes.plot(*zip(*path, strict=True), color=VERMILION, marker="o", ms=4, ls="",
                      label="steps of learning")  # fmt: skip
        if controls.weight > 0:
            at = [controls.weight * factor for factor in (0.8, 1, 1.25)]
            line = [found.psnr + found.slope * (weight - controls.weight) for weight in at]
            axes.plot(at, line, color=BLUE, lw=2, label="its tangent here")
            axes.plot([controls.weight], [found.psnr], "o", color=BLUE, ms=5)
        scores = [score for _, score in seen]
        axes.set_ylim(min(scores) - 1, max(scores) + 1.5)
        logarithmic(axes, x=True)
        axes.set(xlabel="λ", title="PSNR in dB")
        axes.legend(loc="upper left")

    return curves(
        draw,
        f"PSNR over λ; {found.psnr:.2f} dB at λ = {controls.weight:.3g}.",
        "The tangent is the derivative of a hundred iterations, not a difference of two pictures.",
    )
