"""Writing results that can be traced: numbers with commit, versions, device and date."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import legato


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Where, when and with what a result was obtained."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
    else:
        name = platform.processor() or platform.machine()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "benchmarks")),
        "device": name,
        "versions": {
            "legato": legato.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def record(path: Path, results: dict[str, Any], device: str = "cpu") -> None:
    """Write results with their provenance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(provenance(device) | results, indent=1) + "\n")


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
