"""What to install where a package of an extra is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from legato.errors import MissingExtraError

# Packages whose name for pip is not the one they are imported by.
_NAMES_FOR_PIP = {"PIL": "pillow", "sklearn": "scikit-learn"}


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
            f"{who} needs {_NAMES_FOR_PIP.get(package, package)}: pip install 'legato[{extra}]'",
            name=error.name,
        ) from error
