"""``legato explore``: where the page is served, and what is switched off before it is."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from typing import Annotated

import typer
from rich.console import Console

from legato._support.extras import how_to_install
from legato.console.talking import console, fail, say


def explore(
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port to listen on; a free one if it is taken, or 0."),
    ] = 7860,
    browser: Annotated[
        bool, typer.Option("--browser", help="Also open the page in your browser.")
    ] = False,
) -> None:
    """Open a local page: segment a picture, learn to denoise it, compare gradients.

    Segmentation: drop a picture, move smoothness, contrast, iterations and
    labels, and see what colours alone say beside the Potts layer, its energy
    and its gap. Denoising: move the noise and the weight of total variation,
    or let a button learn the weight. Gradients: move θ and the forward and
    backward iterations of the six gradients of `legato toy`.

    Nothing leaves this machine: the page needs no network, sends no
    statistics, and listens on this machine only unless --host says otherwise.
    Pictures are kept until Ctrl-C ends the command.
    """
    _stay_at_home()
    try:
        chosen = free_port(host, port)
        if not is_loopback(host):
            Console(stderr=True).print(
                f"[bold yellow]warning[/] {host} can be reached from other machines: whoever "
                "reaches this one may use the page and upload pictures, without a password. "
                "Leave --host out to keep the page to yourself.",
                soft_wrap=True,
            )
        if port not in (0, chosen):
            say(f"Port {port} is taken; using {chosen}.")
        say("Preparing the page …")
        _serve(host, chosen, browser)
    except KeyboardInterrupt:
        console.print()  # the shell's ^C stands alone on its line
    except OSError as error:
        fail(f"The page cannot be served at {shown_address(host, port)}: {error}")


def _serve(host: str, port: int, browser: bool) -> None:
    """Serve until interrupted; uploaded and computed pictures live in a folder that goes then."""
    with tempfile.TemporaryDirectory(prefix="legato-explore-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # read when gradio is imported
        try:
            # Here, so that the rest of the command line neither needs nor waits for them.
            from legato.studies.explore.page import serve
        except ImportError as error:
            missing = (error.name or "a package").partition(".")[0]
            fail(f"The page needs {missing}: {how_to_install('explore')}")
        address = shown_address(host, port)
        serve(host, port, browser=browser, ready=lambda: say(f"Ready: {address}  (Ctrl-C ends)"))


def _stay_at_home() -> None:
    """Statistics and version checks off, before anything that would make them is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["OTEL_SDK_DISABLED"] = "true"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port(host: str, wanted: int) -> int:
    """The wanted port, or any free one where it is taken; OSError where the host is not ours."""
    try:
        return _bound(host, wanted)
    except OSError as error:
        if isinstance(error, socket.gaierror | PermissionError):
            raise
    return _bound(host, 0)


def shown_address(host: str, port: int) -> str:
    """The address as one types it into a browser."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _bound(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as listener:
        # As the server will: a port whose last connection has just ended counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        port_found: int = listener.getsockname()[1]
        return port_found
