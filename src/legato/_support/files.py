"""Files that are replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well.

    A crash, a full disk or a kill in the middle leaves the old file untouched. Several writers of
    one path, be they threads, processes or machines, do not disturb each other: the last one stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # some writers make files for their owner only
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _umask() -> int:
    """The permissions that new files do not get; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
