"""The command."""

from __future__ import annotations

import os
import tempfile
from typing import Annotated

import typer
from rich.console import Console

from legato.cli.explore.address import free_port, is_loopback, shown_address
from legato.console.talking import fail

PORT = 7860


def explore(
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port to listen on; a free one if it is taken, or 0."),
    ] = PORT,
    browser: Annotated[
        bool, typer.Option("--browser", help="Also open the page in your browser.")
    ] = False,
) -> None:
    """Open a local page: segment a picture, compare the toy's gradients.

    Drop a picture, move smoothness, contrast, iterations and labels, and see
    what colours alone say beside the Potts layer, its energy and its gap. On
    the second tab move θ and the forward and backward iterations of the six
    gradients of `legato toy`.

    Nothing leaves this machine: the page needs no network, sends no
    statistics, and listens on this machine only unless --host says otherwise.
    Pictures are kept until Ctrl-C ends the command.
    """
    console, warn = Console(), Console(stderr=True)
    _stay_at_home()
    try:
        chosen = free_port(host, port)
        if not is_loopback(host):
            warn.print(
                f"[bold yellow]warning[/] {host} can be reached from other machines: whoever "
                "reaches this one may use the page and upload pictures, without a password. "
                "Leave --host out to keep the page to yourself.",
                soft_wrap=True,
            )  # fmt: skip
        if port not in (0, chosen):
            console.print(f"Port {port} is taken; using {chosen}.", highlight=False)
        console.print("Preparing the page …")
        _serve(host, chosen, browser, console)
    except KeyboardInterrupt:
        console.print()  # the shell's ^C stands alone on its line
    except OSError as error:
        fail(f"The page cannot be served at {shown_address(host, port)}: {error}")


def _serve(host: str, port: int, browser: bool, console: Console) -> None:
    """Serve until interrupted; uploaded and computed pictures live in a folder that goes then."""
    with tempfile.TemporaryDirectory(prefix="legato-explore-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # read when gradio is imported
        try:
            # Here, so that the rest of the command line neither needs nor waits for them.
            from legato.cli.explore.serving import serve
        except ImportError as error:
            missing = (error.name or "a package").partition(".")[0]
            fail(f"The page needs {missing}: pip install 'legato[explore]'")
        serve(
            host,
            port,
            browser=browser,
            ready=lambda address: console.print(
                f"Ready: {address}  (Ctrl-C ends)", highlight=False, soft_wrap=True
            ),
        )


def _stay_at_home() -> None:
    """Statistics and version checks off, before anything that would make them is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["OTEL_SDK_DISABLED"] = "true"
