"""The gallery's cards: a picture that can be read at their size, and the page's first sentence.

sphinx-gallery shrinks the whole figure of a page and hides the sentence in a tooltip. Here a
scraper saves the panels that say most while the figure is still a figure, and once the pages are
written these pictures take the places of the shrunken ones and the sentences become text.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

SECTIONS = ("first_steps", "imaging", "statistics", "which_gradient", "extend")
WIDTH = 560  # pixels, twice those of a card

# The panels on a page's card, by their place in the figure; the first, where nothing else is said.
PANELS = {
    "plot_denoise_tv": (2, 3),
    "plot_potts": (2, 3),
    "plot_spatial_weight": (1, 2, 3),
    "plot_learned_filters": (2, 3, 4),
    "plot_nnls_deconvolution": (0, 1, 2),
    "plot_unmixing": (2, 3),
    "plot_many_penalties": (2,),
    "plot_sparse_coding": (1,),
    "plot_boundary": (1,),
    "plot_forward_reverse": (1,),
}


def section_order(folder: str) -> int:
    return SECTIONS.index(Path(folder).name)


def page_order(name: str) -> tuple[bool, str]:
    """The page to begin with, then the others by name."""
    return name != "plot_first_solution.py", name


def scrape(block: Any, variables: dict[str, Any], settings: dict[str, Any], **_: Any) -> str:
    """Save the card's picture of the open figure; the page itself gets nothing from here."""
    import matplotlib.pyplot as plt
    from matplotlib.transforms import Bbox

    if plt.get_fignums():
        figure, page = plt.gcf(), Path(variables["target_file"])
        figure.canvas.draw()
        panels = [figure.axes[number] for number in PANELS.get(page.stem, (0,))]
        pixels = Bbox.union([panel.get_tightbbox() for panel in panels])
        inches = pixels.transformed(figure.dpi_scale_trans.inverted()).padded(0.06)
        place = page.parent / "cards" / f"{page.stem}.png"
        place.parent.mkdir(exist_ok=True)
        figure.savefig(place, dpi=WIDTH / inches.width, bbox_inches=inches)
    return ""


def finish(app: Any) -> None:
    """Put pictures and sentences where sphinx-gallery has left thumbnails and tooltips."""
    gallery = Path(app.srcdir) / "gallery"
    for card in gallery.glob("*/cards/*.png"):
        thumbnail = card.parents[1] / "images" / "thumb" / f"sphx_glr_{card.stem}_thumb.png"
        if thumbnail.exists():
            shutil.copyfile(card, thumbnail)
    tooltip = re.compile(
        r'(sphx-glr-thumbcontainer") tooltip="([^"]*)"(>.*?thumbnail-title">.*?</div>)', re.DOTALL
    )
    for index in gallery.rglob("index.rst"):
        text = index.read_text(encoding="utf-8")
        written = tooltip.sub(r'\1\3\n      <div class="card-sentence">\2</div>', text)
        index.write_text(written, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", finish, priority=900)  # after sphinx-gallery, at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
