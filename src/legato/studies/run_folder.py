"""One folder a run: its settings, its results, its pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch

from legato._support.files import write_text
from legato.errors import InputError
from legato.studies.provenance import provenance


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
        if is_dataclass(settings) and not isinstance(settings, type):
            settings = asdict(settings)
        self._write("settings.json", {"settings": settings} | provenance(device))

    def finish(self, results: Mapping[str, Any], device: str | torch.device = "cpu") -> Path:
        """Write the numbers, with their provenance; returns the file."""
        return self._write("results.json", provenance(device) | dict(results))

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
    path = folder / "results.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise _damaged(path, f"it holds a {type(found).__name__}, no results")
    return found


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
