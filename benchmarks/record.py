"""Writing results that can be traced: numbers with commit, versions, device and date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from legato.console.provenance import provenance

__all__ = ["provenance", "record"]


def record(path: Path, results: dict[str, Any], device: str = "cpu") -> None:
    """Write results with their provenance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(provenance(device) | results, indent=1) + "\n")
