"""The page: a title and two tabs."""

from __future__ import annotations

import gradio

from legato.cli.explore.gradients_tab import gradients_tab
from legato.cli.explore.segmentation_tab import segmentation_tab

_TITLE = """# legato explore
Learning through nonsmooth optimisation, by hand: move a slider and see what the solver and its
gradients do. Everything is computed on this machine."""


def build_page() -> gradio.Blocks:
    """The page with both tabs filled in, so that it opens with something to see."""
    with gradio.Blocks(title="legato explore", analytics_enabled=False) as page:
        gradio.Markdown(_TITLE, elem_id="title")
        with gradio.Tab("Segmentation"):
            segmentation_tab()
        with gradio.Tab("Gradients"):
            gradients_tab()
    return page
