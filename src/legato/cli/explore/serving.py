"""The page on a port, until somebody ends it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from legato.cli.explore.address import shown_address
from legato.cli.explore.look import CSS, HEAD, theme
from legato.cli.explore.page import build_page
from legato.studies.explore import MAX_BYTES


def serve(host: str, port: int, *, browser: bool, ready: Callable[[str], None]) -> None:
    """Serve the page and call ``ready`` with its address, until KeyboardInterrupt is raised."""
    signal.signal(signal.SIGTERM, _interrupt)
    page = build_page()
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
            theme=theme(),
            css=CSS,
            head=HEAD,
        )
        ready(shown_address(host, port))
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
