"""One folder, one run: what a folder holds must have been asked for in the same words."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from legato.errors import InputError


def require_same(folder: Path, settings: dict[str, Any], free: Collection[str] = ()) -> None:
    """Raise InputError if the folder holds a run with other settings.

    ``free`` names, as ``part.name`` or ``name``, what may differ between two calls.
    """
    path = folder / "settings.json"
    if not path.exists():
        return
    old = _flat(_read(path))
    new = _flat(json.loads(json.dumps(settings)))  # through JSON, as what is in the file went
    differing = [
        f"{key} was {old.get(key)!r} and is now {new.get(key)!r}"
        for key in {**old, **new}
        if old.get(key) != new.get(key) and key not in free
    ]
    if differing:
        raise InputError(
            f"The folder {folder} holds another run: {'; '.join(differing)}. Choose another with "
            "--out, or delete it."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no settings of a run ({error!r}). Choose another folder with --out."
        ) from error


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
