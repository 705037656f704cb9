"""One folder a run: its settings, its results, its pictures, and whether it is the same run."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch

from legato._support.files import write_text
from legato.console.provenance import provenance
from legato.errors import InputError

_SETTINGS, _RESULTS = "settings.json", "results.json"


class RunFolder:
    """A folder that a study writes into.

    ``settings.json`` (what was asked for, with seed, versions, commit and device) is written when
    the run starts, ``results.json`` when it ends, pictures as ``figures/NAME``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"The output folder {self.path} cannot be written ({error}). Choose another with "
                "--out."
            ) from error

    def begin(self, settings: Any, device: str | torch.device = "cpu") -> None:
        """Write what was asked for, and where it runs."""
        self._write(_SETTINGS, {"settings": _mapping(settings)} | provenance(device))

    def finish(self, results: Mapping[str, Any], device: str | torch.device = "cpu") -> Path:
        """Write the numbers, with their provenance; returns the file."""
        return self._write(_RESULTS, provenance(device) | dict(results))

    def figure(self, name: str) -> Path:
        """Where a picture of that name belongs."""
        folder = self.path / "figures"
        folder.mkdir(exist_ok=True)
        return folder / name

    def _write(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self.path / name
        write_text(path, json.dumps(_plain(content), indent=1, ensure_ascii=False) + "\n")
        return path


def results_of(folder: Path) -> dict[str, Any] | None:
    """What a finished run found; None where it is not finished."""
    path = folder / _RESULTS
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(path, f"it holds a {type(found).__name__}, no results")
    return found


def settings_of(folder: Path) -> dict[str, Any] | None:
    """What was asked of the run in a folder; None where there is none."""
    path = folder / _SETTINGS
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no settings of a run ({error!r}). Choose another folder with --out."
        ) from error


def require_same(folder: Path, settings: Any, free: Collection[str] = ()) -> None:
    """Raise InputError if the folder holds a run with other settings, a mapping or a dataclass.

    ``free`` names, as ``part.name`` or ``name``, what may differ between two calls.
    """
    stored = settings_of(folder)
    if stored is None:
        return
    differing = differences(stored, settings, free)
    if differing:
        raise InputError(
            f"The folder {folder} holds another run: {'; '.join(differing)}. Choose another with "
            "--out, or delete it."
        )


def differences(old: Any, new: Any, free: Collection[str] = ()) -> list[str]:
    """What two descriptions of a run, mappings or dataclasses, disagree on, in words."""
    before, now = (_flat(json.loads(json.dumps(_plain(_mapping(one))))) for one in (old, new))
    return [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in {**before, **now}
        if before.get(key) != now.get(key) and key not in free
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _mapping(settings: Any) -> Any:
    return (
        asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else settings
    )


def _damaged(path: Path, why: str) -> InputError:
    """Not computed anew without a word: it may be all that is left of hours of work."""
    return InputError(
        f"{path} cannot be read ({why}): it is damaged. Restore it, or delete it to have it "
        "computed again."
    )


def _plain(value: Any) -> Any:
    """Tensors as lists, paths as text, and no NaN, which JSON does not know."""
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return value
