"""The first tab: a picture, its sliders, and what comes out as pictures and curves."""

from __future__ import annotations

from typing import Any

import gradio
import numpy
from matplotlib.axes import Axes
from torch import Tensor

from legato.console.figures import BLUE, VERMILION
from legato.errors import LegatoError
from legato.studies.explore.controls import SegmentationControls
from legato.studies.explore.pictures import (
    LONGEST_SIDE,
    MAX_BYTES,
    MAX_PIXELS,
    SUFFIXES,
    example_pictures,
)
from legato.studies.explore.segmentation import Segmentation, segment_picture
from legato.studies.explore.widgets import (
    INK,
    Pixels,
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

_LEAD = """Every pixel asks for one label. **Colours alone** give it the nearest of a few typical
colours. The **Potts layer** also charges for outlines, less where the picture has an edge:
min over u of ⟨c, u⟩ + ‖W∇u‖₁."""
_LIMITS = (
    f"PNG, JPEG, WebP, TIFF or BMP, up to {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 10**6} million"
    f" pixels; computed with at most {LONGEST_SIDE} on the longer side. It stays on this machine."
)
_MEANS, _PLAIN = "of the picture", "far apart"

# Of Okabe and Ito, told apart by colour-blind readers; dark labels first, as the labels are.
_PALETTE = (
    (0, 59, 92), (0, 114, 178), (0, 158, 115), (213, 94, 0),
    (204, 121, 167), (86, 180, 233), (230, 159, 0), (240, 228, 66),
)  # fmt: skip


def segmentation_tab() -> None:
    """Lay the tab out and wire it up."""
    start, scenes = SegmentationControls(), list(example_pictures())
    first = show(
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
                slider(start, "smoothness", 0.5, "Smoothness β",
                       "The price of an outline: 0 leaves colours alone, more gives fewer, "
                       "larger regions."),
                slider(start, "contrast", 0.5, "Contrast κ",
                       "How much cheaper an outline is on an edge of the picture; at 0 it costs "
                       "the same everywhere."),
                slider(start, "iterations", 1, "Iterations",
                       "Steps of the primal–dual algorithm; the curves show what more would "
                       "bring."),
                slider(start, "labels", 1, "Labels", "How many typical colours are looked for."),
            ]  # fmt: skip
            colours = gradio.Radio(
                [_MEANS, _PLAIN], value=_MEANS, label="Colours",
                info="How labels are painted: in the mean colour of their pixels, or easy to tell "
                "apart.",
            )  # fmt: skip
        with gradio.Column(scale=5, min_width=320):
            said = gradio.HTML(first[0], elem_classes="said", elem_id="segmentation-said")
            with gradio.Row():
                cheap = picture("Colours alone", first[2], "cost-only")
                potts = picture("Potts layer", first[3], "potts")
            with gradio.Row():
                shown = picture("Picture", first[1], "picture-shown")
                weights = picture("Weights W (dark: cheap outline)", first[4], "weights")
            with gradio.Row():
                energy, gap = plot(first[5], "energy"), plot(first[6], "gap")
    smoothness, contrast, iterations, labels = sliders
    inputs = [file, scene, labels, smoothness, contrast, iterations, colours]
    outputs = [said, shown, cheap, potts, weights, energy, gap]
    how = when_idle(said)
    gradio.on([one.change for one in sliders] + [colours.input], show, inputs, outputs, **how)
    # A dropped picture and a scene take each other's place.
    file.upload(_show_upload, inputs, [scene, *outputs], **how)
    gradio.on([scene.input, file.clear], _show_scene, inputs, [file, scene, *outputs], **how)


def show(
    file: str | None, scene: str | None, labels: float, smoothness: float, contrast: float,
    iterations: float, colours: str,
) -> list[Any]:  # fmt: skip
    """A sentence, four pictures and two curves; where something is wrong, words only."""
    try:
        controls = SegmentationControls(
            int(labels), float(smoothness), float(contrast), int(iterations)
        )
        image = dropped(file) if file else example_pictures()[scene or _first_scene()]
        found = segment_picture(image, controls)
    except (LegatoError, MemoryError) as error:
        return only_words(str(error) or "The picture does not fit into memory.", 6)
    means = image if colours == _MEANS else None
    weights = found.weights / found.weights.max().clamp(min=1e-12)
    return [
        _sentence(found),
        eight_bits(image),
        _label_picture(found.cost_only, controls.labels, means),
        _label_picture(found.potts, controls.labels, means),
        eight_bits(weights.expand(3, -1, -1)),
        _energy_curve(found),
        _gap_curve(found),
    ]


def _show_upload(file: str | None, scene: str | None, *controls: Any) -> list[Any]:
    return [None, *show(file, scene, *controls)]


def _show_scene(file: str | None, scene: str | None, *controls: Any) -> list[Any]:
    scene = scene or _first_scene()
    return [None, scene, *show(None, scene, *controls)]


def _first_scene() -> str:
    return next(iter(example_pictures()))


def _sentence(found: Segmentation) -> str:
    before, after = found.cost_only_length, found.potts_length
    change = f" ({100 * (after - before) / before:+.0f} %)".replace("-", "−") if before else ""
    return (
        f"Outlines: <b>{before}</b> borders between pixels by colours alone, <b>{after}</b> with "
        f"the layer{change}. Energy per pixel: <b>{found.cost_only_energy:.3f}</b> → "
        f"<b>{found.energy[-1]:.3f}</b>, after <b>{found.iterations[-1]}</b> iterations at most "
        f"<b>{max(found.gap[-1], 0):.2g}</b> above the smallest there is."
    )


def _label_picture(labels: Tensor, count: int, image: Tensor | None) -> Pixels:
    """Labels (H, W) as colours: of a palette, or their means in ``image``."""
    if image is None:
        places = [round(k * (len(_PALETTE) - 1) / (count - 1)) for k in range(count)]
        table = numpy.array([_PALETTE[place] for place in places], numpy.uint8)
        return table[labels.numpy()]
    painted = image.clone()
    for label in range(count):
        inside = labels == label
        if inside.any():
            painted[:, inside] = image[:, inside].mean(1, keepdim=True)
    return eight_bits(painted)


def _energy_curve(found: Segmentation) -> str:
    """The energy, the bound from below, and what colours alone would cost."""
    bound = [energy - gap for energy, gap in zip(found.energy, found.gap, strict=True)]

    def draw(axes: Axes) -> None:
        axes.fill_between(found.iterations, bound, found.energy, color=BLUE, alpha=0.15, lw=0)
        axes.plot(found.iterations, found.energy, color=BLUE, label="energy of the iterate")
        axes.plot(found.iterations, bound, color=BLUE, ls=":", label="bound from below")
        alone = found.cost_only_energy
        axes.axhline(alone, color=VERMILION, ls="--", lw=1.2, label="colours alone")
        # The first steps are far off: the view is for where things are decided.
        last = found.energy[-1]
        span = max(abs(alone - last), 0.05 * abs(last), 1e-6)
        axes.set_ylim(min(last, alone) - 1.5 * span, max(last, alone) + 2 * span)
        logarithmic(axes, x=True)
        axes.set(xlabel="iteration", title="Energy per pixel")
        axes.legend(loc="upper right")

    return curves(
        draw,
        f"Energy per pixel over the iterations, ending at {found.energy[-1]:.4g}.",
        "The smallest energy lies in the shade, whatever it is.",
    )


def _gap_curve(found: Segmentation) -> str:
    """The primal–dual gap."""
    seen = [(n, gap) for n, gap in zip(found.iterations, found.gap, strict=True) if gap > 0]

    def draw(axes: Axes) -> None:
        axes.plot([n for n, _ in seen], [gap for _, gap in seen], color=BLUE, marker="o", ms=3)
        logarithmic(axes, x=True, y=bool(seen))
        if not seen:
            axes.text(0.5, 0.5, "no gap left", ha="center", transform=axes.transAxes, color=INK)
        axes.set(xlabel="iteration", title="Primal–dual gap per pixel")

    return curves(
        draw,
        f"The gap over the iterations, ending at {found.gap[-1]:.2g}.",
        "By at most this much the energy is too large: a certificate, not an estimate.",
    )
