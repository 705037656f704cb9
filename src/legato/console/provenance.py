"""Where, when and with what a result was obtained."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import legato

_PACKAGES = ("lightning", "numba", "numpy", "torchmetrics", "triton")
_NUMBERS = {"family": "cpu family", "model": "model"}


def provenance(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Date, commit, device and versions, to be written beside every number.

    A machine that holds a copy of the source without its history is told the commit by the
    environment variable LEGATO_COMMIT; elsewhere git is asked.
    """
    commit = os.environ.get("LEGATO_COMMIT")
    gpu = torch.device(device).type == "cuda"
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
        "device": torch.cuda.get_device_name(device) if gpu else processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def processor(described: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU by its model, which for a virtual machine's may be told by its numbers alone."""
    try:
        lines = described.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    known = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    if "model name" not in known:
        return platform.processor() or platform.machine()
    numbers = [f"{part} {known[key]}" for part, key in _NUMBERS.items() if key in known]
    return ", ".join([known["model name"], *numbers])


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
