"""The first tab: a picture, its sliders, and what comes out."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import gradio
from torch import Tensor

from legato.cli.explore.segmentation_curves import energy_curve, gap_curve
from legato.cli.explore.segmentation_pictures import label_picture, photograph, weight_picture
from legato.errors import LegatoError
from legato.studies.explore import (
    LONGEST_SIDE,
    MAX_BYTES,
    MAX_PIXELS,
    RANGES,
    SUFFIXES,
    Controls,
    Segmentation,
    example_pictures,
    read_picture,
    segment_picture,
)

_LEAD = """Every pixel asks for one label. **Colours alone** give it the nearest of a few typical
colours. The **Potts layer** also charges for outlines, less where the picture has an edge:
min over u of ⟨c, u⟩ + ‖W∇u‖₁."""
_LIMITS = (
    f"PNG, JPEG, WebP, TIFF or BMP, up to {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 10**6} million"
    f" pixels; computed with at most {LONGEST_SIDE} on the longer side. It stays on this machine."
)  # fmt: skip
_MEANS, _PLAIN = "of the picture", "far apart"

Results = list[Any]


def segmentation_tab() -> None:
    """Lay the tab out and wire it up."""
    start, scenes = Controls(), list(example_pictures())
    first = _show(
        None, scenes[0], start.labels, start.smoothness, start.contrast, start.iterations, _MEANS
    )
    gradio.Markdown(_LEAD, elem_classes="lead")
    with gradio.Row():
        with gradio.Column(scale=2, min_width=280, elem_classes="controls"):
            file = gradio.File(
                label="Drop a picture, or click", file_types=list(SUFFIXES), height=150,
                elem_id="picture-file",
            )  # fmt: skip
            gradio.HTML(f'<span class="small">{_LIMITS}</span>')
            scene = gradio.Radio(
                scenes, value=scenes[0], label="Or a synthetic scene", elem_id="scene"
            )
            sliders = [
                _slider("smoothness", start, 0.1, "Smoothness β",
                        "The price of an outline: 0 leaves colours alone, more gives fewer, "
                        "larger regions."),
                _slider("contrast", start, 0.5, "Contrast κ",
                        "How much cheaper an outline is on an edge of the picture; at 0 it costs "
                        "the same everywhere."),
                _slider("iterations", start, 1, "Iterations",
                        "Steps of the primal–dual algorithm; the curves show what more would "
                        "bring."),
                _slider("labels", start, 1, "Labels", "How many typical colours are looked for."),
            ]  # fmt: skip
            colours = gradio.Radio(
                [_MEANS, _PLAIN], value=_MEANS, label="Colours",
                info="How labels are painted: in the mean colour of their pixels, or easy to tell "
                "apart.",
            )  # fmt: skip
        with gradio.Column(scale=5, min_width=320):
            said = gradio.HTML(first[0], elem_classes="said", elem_id="segmentation-said")
            with gradio.Row():
                cheap = _picture("Colours alone", first[2], "cost-only")
                potts = _picture("Potts layer", first[3], "potts")
            with gradio.Row():
                shown = _picture("Picture", first[1], "picture-shown")
                weights = _picture("Weights W (dark: cheap outline)", first[4], "weights")
            with gradio.Row():
                with gradio.Column(min_width=300):
                    energy = gradio.HTML(first[5], elem_classes="plot", elem_id="energy")
                with gradio.Column(min_width=300):
                    gap = gradio.HTML(first[6], elem_classes="plot", elem_id="gap")
    smoothness, contrast, iterations, labels = sliders
    inputs = [file, scene, labels, smoothness, contrast, iterations, colours]
    outputs = [said, shown, cheap, potts, weights, energy, gap]
    how: Any = {
        "trigger_mode": "always_last", "show_progress": "minimal", "show_progress_on": said,
        "concurrency_id": "compute", "concurrency_limit": 1, "api_visibility": "private",
    }  # fmt: skip
    gradio.on(
        [slider.change for slider in sliders] + [colours.input], _show, inputs, outputs, **how
    )
    # A dropped picture and a scene take each other's place.
    file.upload(_show_upload, inputs, [scene, *outputs], **how)
    gradio.on([scene.input, file.clear], _show_scene, inputs, [file, scene, *outputs], **how)


def _show(
    file: str | None, scene: str | None, labels: float, smoothness: float, contrast: float,
    iterations: float, colours: str,
) -> Results:  # fmt: skip
    """A sentence, four pictures and two curves; where something is wrong, words only."""
    try:
        controls = Controls(int(labels), float(smoothness), float(contrast), int(iterations))
        image = (
            _dropped(file) if file else example_pictures()[scene or next(iter(example_pictures()))]
        )
        found = segment_picture(image, controls)
    except (LegatoError, MemoryError) as error:
        said = html.escape(str(error) or "The picture does not fit into memory.")
        return [f'<span class="wrong" role="alert">{said}</span>', *[gradio.skip()] * 6]
    means = image if colours == _MEANS else None
    return [
        _sentence(found),
        photograph(image),
        label_picture(found.cost_only, controls.labels, means),
        label_picture(found.potts, controls.labels, means),
        weight_picture(found.weights),
        energy_curve(found),
        gap_curve(found),
    ]


def _show_upload(file: str | None, scene: str | None, *controls: Any) -> Results:
    return [None, *_show(file, scene, *controls)]


def _show_scene(file: str | None, scene: str | None, *controls: Any) -> Results:
    scene = scene or next(iter(example_pictures()))
    return [None, scene, *_show(None, scene, *controls)]


@lru_cache(maxsize=2)
def _dropped(file: str) -> Tensor:
    """Read once, not at every move of a slider; a path is that of one upload and never reused."""
    return read_picture(file)


def _sentence(found: Segmentation) -> str:
    before, after = found.cost_only_length, found.potts_length
    change = f" ({100 * (after - before) / before:+.0f} %)".replace("-", "−") if before else ""
    return (
        f"Outlines: <b>{before}</b> borders between pixels by colours alone, <b>{after}</b> with "
        f"the layer{change}. Energy per pixel: <b>{found.cost_only_energy:.3f}</b> → "
        f"<b>{found.energy[-1]:.3f}</b>, after <b>{found.iterations[-1]}</b> iterations at most "
        f"<b>{max(found.gap[-1], 0):.2g}</b> above the smallest there is."
    )


def _slider(name: str, start: Controls, step: float, label: str, info: str) -> gradio.Slider:
    least, most = RANGES[name]
    return gradio.Slider(
        least, most, getattr(start, name), step=step, label=label, info=info, elem_id=name,
        buttons=["reset"],
    )  # fmt: skip


def _picture(label: str, value: Any, name: str) -> gradio.Image:
    return gradio.Image(
        value, label=label, format="png", interactive=False, elem_id=name, elem_classes="crisp",
        min_width=200, buttons=["fullscreen", "download"], alt_text=label,
    )  # fmt: skip
