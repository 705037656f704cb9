"""Writing results that can be traced: numbers with commit, versions, device and date."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from legato.console.provenance import provenance

__all__ = ["provenance", "record"]


def record(path: Path, results: dict[str, Any], device: str = "cpu") -> None:
    """Write results with their provenance, and how busy the machine was beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    load = {"load_average": [round(load, 1) for load in os.getloadavg()]}
    path.write_text(json.dumps(provenance(device) | load | results, indent=1) + "\n")
