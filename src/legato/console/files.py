"""Files that come from outside: read with clear words where something is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from legato.errors import InputError, LegatoWarning


class DataError(InputError):
    """A data set, an image or a label file is missing, damaged or contradicts itself."""


class DataWarning(LegatoWarning):
    """A data set can be used, yet not quite as one would expect."""


def read_bytes(path: str | Path) -> bytes:
    """The contents of a file that ought to be an image."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"There is no image {path}. Check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not an image. Name the images in it.") from None
    except OSError as error:
        raise DataError(f"The image {path} cannot be read ({error}). Check the file.") from error


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names, for a message."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
