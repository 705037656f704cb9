"""Where, when and with what a result was obtained."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import legato

_PACKAGES = ("lightning", "numba", "numpy", "torchmetrics", "triton")


def provenance(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Date, commit, device and versions, to be written beside every number.

    A machine that holds a copy of the source without its history is told the commit by the
    environment variable LEGATO_COMMIT; elsewhere git is asked.
    """
    commit = os.environ.get("LEGATO_COMMIT")
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = platform.processor() or platform.machine()
    versions = {
        "legato": legato.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    changes = _git("status", "--porcelain", "--", ".", ":!*.json", ":!*.png")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or _git("rev-parse", "HEAD"),
        "uncommitted_changes": None if commit or changes is None else bool(changes),
        "device": name,
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def _git(*args: str) -> str | None:
    """What git says of the source tree this file lies in; None outside of one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # installed somewhere inside another project's repository
        return None
    try:
        done = subprocess.run(
            ["git", *args], capture_output=True, text=True, check=True, cwd=root, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
