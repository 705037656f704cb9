"""How the site is built; `docs/build.py` calls Sphinx with it."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "_ext"))

import cards  # noqa: E402  (the path to the extensions comes first)

import legato  # noqa: E402

QUICK = os.environ.get("LEGATO_DOCS_QUICK") == "1"  # the gallery's scripts are shown, not run

project = "legato"
author = "The legato developers"
copyright = author
version = release = legato.__version__

extensions = [
    "cards",
    "mathml",
    "public",
    "results",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_copybutton",
    "myst_parser",
]

# --- pages ----------------------------------------------------------------------------------------
exclude_patterns = ["_build"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_inline", "attrs_block"]
myst_heading_anchors = 3
nitpicky = True
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions
pygments_style = "friendly"

# --- the API --------------------------------------------------------------------------------------
autosummary_generate = False  # tables of names; the entries themselves are on the same page
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
nitpick_ignore_regex = [
    (r"py:.*", r"torch\..*|Tensor|Var|Any|Optimizer|legato\.functions\.prox"),
]

# --- the gallery ----------------------------------------------------------------------------------
extensions.append("sphinx_gallery.gen_gallery")
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"plot_.*\.py$",
    "plot_gallery": "False" if QUICK else "True",
    "abort_on_example_error": True,
    "capture_repr": (),  # a page prints what it wants to be read
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "image_scrapers": (cards.scrape, "matplotlib"),  # the second closes the figure
    "image_srcset": ["2x"],
    "subsection_order": cards.section_order,
    "within_subsection_order": cards.page_order,
    "write_computation_times": False,
}
if QUICK:
    # Scripts that are not run have no picture; what sphinx-gallery says of that is no news.
    warnings.filterwarnings("ignore", module="sphinx_gallery")

# --- looks ----------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "legato"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_favicon = "_static/mark.svg"
html_theme_options = {
    "logo": {"text": "legato", "image_light": "_static/mark.svg", "image_dark": "_static/mark.svg"},
    "navbar_start": ["navbar-logo", "version"],
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "secondary_sidebar_items": {"index": [], "**": ["page-toc"]},
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "friendly",
    "pygments_dark_style": "nord-darker",
    "back_to_top_button": False,
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": [], "start": [], "**": ["sidebar-nav-bs"]}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
