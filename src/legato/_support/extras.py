"""What to install where a package of an extra is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from legato.errors import MissingExtraError

# Packages whose name for pip is not the one they are imported by.
_NAMES_FOR_PIP = {"PIL": "pillow", "sklearn": "scikit-learn"}


def how_to_install(extra: str) -> str:
    """The command that adds an extra to legato, as it was installed: by name, or from a folder.

    pip writes into ``direct_url.json`` what it installed from, if not from an index (PEP 610).
    """
    folder, editable = _origin()
    if folder is None:
        return f"pip install 'legato[{extra}]'"
    here = "." if folder == Path.cwd() else str(folder)
    return f"pip install {'-e ' if editable else ''}'{here}[{extra}]'"


def _origin() -> tuple[Path | None, bool]:
    """The folder that legato was installed from, where there is one, and whether it is in use."""
    try:
        told = json.loads(metadata.distribution("legato").read_text("direct_url.json") or "{}")
        folder = Path(url2pathname(urlsplit(told["url"]).path))
        editable = bool(told["dir_info"].get("editable"))
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, AttributeError):
        return None, False
    return (folder, editable) if (folder / "pyproject.toml").exists() else (None, False)


@contextmanager
def needs_extra(who: str, extra: str) -> Iterator[None]:
    """Within it, a missing package becomes an error that names the extra which brings it."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "legato"):
            raise  # a mistake in legato, which no extra repairs
        raise MissingExtraError(
            f"{who} needs {_NAMES_FOR_PIP.get(package, package)}: {how_to_install(extra)}",
            name=error.name,
        ) from error
