"""The page: a title and three tabs, its look, and how it is served until somebody ends it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import gradio

from legato.studies.explore.denoising_tab import denoising_tab
from legato.studies.explore.gradients_tab import gradients_tab
from legato.studies.explore.pictures import MAX_BYTES
from legato.studies.explore.segmentation_tab import segmentation_tab

_TITLE = """# legato explore
Learning through nonsmooth optimisation, by hand: move a slider and see what the solver and its
gradients do. Everything is computed on this machine."""
_HEAD = '<meta name="referrer" content="no-referrer">'
_CSS = """
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
#title h1 { font-weight: 650; letter-spacing: -0.02em; margin: 0.4rem 0 0.1rem; }
#title p { color: var(--body-text-color-subdued); max-width: 46rem; margin: 0; }
.lead p { max-width: 52rem; margin: 0.2rem 0 0.4rem; line-height: 1.55; }
.controls { gap: 10px !important; }
.said { line-height: 1.55; padding: 0.15rem 0; }
.said b { font-variant-numeric: tabular-nums; font-weight: 600; }
.said .wrong { border-left: 3px solid #D55E00; padding: 0.35rem 0.8rem; display: block; }
.crisp .image-container, .crisp .image-frame, .crisp .image-container > button {
  width: 100% !important; }
.crisp img { image-rendering: pixelated; width: 100% !important; height: auto !important;
  max-height: 460px; object-fit: contain !important; }
.crisp [data-testid="block-label"] { position: static; border: 0; background: none;
  padding: 0.35rem 0.6rem; font-weight: 600; }
.crisp [data-testid="block-label"] span { display: none; }
.plot svg { width: 100%; height: auto; display: block; }
.plot svg text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif !important; }
.plot figcaption, .small { color: var(--body-text-color-subdued); line-height: 1.45 !important;
  font-size: 0.84rem !important; }
.plot figcaption { padding: 0.2rem 0 0.6rem; }
.plot figure { margin: 0; max-width: 620px; }
.methods { overflow-x: auto; }
.methods table { border-collapse: collapse; width: 100%; font-size: 0.92rem; border: 0 !important; }
.methods table th, .methods table td, .methods table tr { border-width: 0 !important; }
.methods th { text-align: left; font-weight: 600; padding: 0.4rem 0.9rem 0.4rem 0;
  border-bottom: 1px solid var(--border-color-primary) !important; white-space: nowrap; }
.methods td { padding: 0.45rem 0.9rem 0.45rem 0; vertical-align: top;
  border-bottom: 1px solid var(--border-color-primary) !important; }
.methods .number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
.methods .name { white-space: nowrap; font-weight: 600; }
.methods td:last-child, .methods th:last-child { padding-right: 0.2rem; }
.methods .dot { display: inline-block; width: 0.65em; height: 0.65em; border-radius: 50%;
  margin-right: 0.5em; }
@media (max-width: 520px) { .methods table { font-size: 0.84rem; }
  .methods th, .methods td { padding-right: 0.5rem; } }
.methods .warned { color: var(--body-text-color-subdued); font-size: 0.86rem; }
"""


def serve(host: str, port: int, *, browser: bool, ready: Callable[[], None]) -> None:
    """Serve the page and call ``ready`` once it can be opened; ends with KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, _interrupt)
    page = _build_page()
    try:
        page.launch(
            server_name=host,
            server_port=port,
            inbrowser=browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            show_error=True,  # what goes wrong is said in the page
            max_file_size=MAX_BYTES,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            pwa=False,
            ssr_mode=False,
            theme=_theme(),
            css=_CSS,
            head=_HEAD,
        )
        ready()
        threading.Event().wait()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would only cut this off
        if page.is_running:
            # Browsers that still show the page would hold the server up for seconds; cutting them
            # off is what is wanted, and nothing it needs to report.
            page.server.force_exit = True
            logging.getLogger("uvicorn.error").disabled = True
        page.close(verbose=False)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _build_page() -> gradio.Blocks:
    """The page with all tabs filled in, so that it opens with something to see."""
    with gradio.Blocks(title="legato explore", analytics_enabled=False) as page:
        gradio.Markdown(_TITLE, elem_id="title")
        with gradio.Tab("Segmentation"):
            segmentation_tab()
        with gradio.Tab("Denoising"):
            denoising_tab()
        with gradio.Tab("Gradients"):
            gradients_tab()
    return page


def _theme() -> Any:
    """Neutral, with the system's fonts: nothing is fetched from elsewhere."""
    look = gradio.themes.Base(
        primary_hue="blue",
        neutral_hue="gray",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )
    # Explanations are there to be read: darker on light, lighter on dark than is usual.
    return look.set(
        block_shadow="none",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_title_text_color="*neutral_800",
        block_title_text_color_dark="*neutral_100",
        block_title_text_weight="600",
        block_label_text_color="*neutral_800",
        block_label_text_color_dark="*neutral_100",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
    )
