"""A data set that was read and checked, kept in one file."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from legato._support.files import replacing
from legato.console.files import DataWarning

Encoded = dict[str, tuple[bytes, bytes]]
"""For each name the image file as it came, and the labels as a PNG."""

_FORMAT = 1
_HEADER = "legato.json"
_UNUSABLE = (  # all that zipfile meets damage with
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def cache_folder() -> Path:
    """Where caches go unless told: LEGATO_CACHE, or ``legato`` in the user's cache folder."""
    if own := os.environ.get("LEGATO_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "legato"
    try:
        return Path.home() / ".cache" / "legato"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "legato"


def cached(
    *, folder: Path, source: Path, kind: str, fingerprint: str, build: Callable[[], Encoded]
) -> Encoded:
    """What ``build`` returns, from a file in ``folder`` where that file fits the fingerprint.

    A file that is stale, truncated or damaged is built anew; where none can be written, the data
    set is used without one.
    """
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
    path = folder / f"{kind}-{place}.zip"
    header = json.dumps({"format": _FORMAT, "kind": kind, "fingerprint": fingerprint})
    content = _read(path, header)
    if content is None:
        content = build()
        try:
            _write(path, header, content)
        except OSError as error:
            warnings.warn(
                f"The data set cannot be cached in {folder} ({error}), so every start reads it "
                "anew, which takes seconds. Set LEGATO_CACHE to a folder that can be written.",
                DataWarning,
                stacklevel=3,
            )
    return content


def _read(path: Path, header: str) -> Encoded | None:
    """The contents, or None if there is no file or it cannot be used."""
    try:
        with zipfile.ZipFile(path) as file:
            if file.read(_HEADER).decode() != header:
                return None
            members = file.namelist()[1:]  # the labels of an image follow it
            return {
                image.removeprefix("images/"): (file.read(image), file.read(labels))
                for image, labels in zip(members[::2], members[1::2], strict=True)
            }
    except _UNUSABLE:
        return None


def _write(path: Path, header: str, content: Encoded) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        file.writestr(_HEADER, header)
        for name, (image, labels) in content.items():
            file.writestr(f"images/{name}", image)
            file.writestr(f"labels/{name}", labels)
