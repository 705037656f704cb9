"""What the data room raises and warns with."""

from __future__ import annotations

from legato.errors import InputError, LegatoWarning


class DataError(InputError):
    """A data set, an image or a label file is missing, damaged or contradicts itself."""


class DataWarning(LegatoWarning):
    """A data set can be used, yet not quite as one would expect."""


def some(names: list[str], most: int = 5) -> str:
    """The first few of many names, for a message."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
