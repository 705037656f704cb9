"""Where a page is served."""

from __future__ import annotations

import ipaddress
import socket


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
