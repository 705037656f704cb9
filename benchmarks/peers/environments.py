"""One virtual environment a library, with the exact versions of its requirements file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements"
FOLDER = HERE.parents[1] / "out" / "peers"
OWN = ("legato", "unrolled")
"""Contestants that run in this environment."""


class NotInstalledError(RuntimeError):
    """An environment that could not be made, with the reason."""


def libraries() -> list[str]:
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def python_of(library: str) -> Path:
    """The interpreter of a library's environment, which is made if need be."""
    if library in OWN:
        return Path(sys.executable)
    wanted = REQUIREMENTS / f"{library}.txt"
    folder = FOLDER / library
    stamp, python = folder / ".requirements", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return python
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    install = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    # Every dependency is listed with its exact version, so nothing is resolved: an open range
    # would replace torch's build for the CPU by gigabytes.
    lines = [line.split("#")[0].strip() for line in wanted.read_text().splitlines()]
    exact = [line for line in lines if line]
    first = [line for line in exact if line.startswith(("torch==", "numpy=="))]
    if first:
        _run([*install, *first])
    _run([*install, "--no-deps", *(line for line in exact if line not in first)])
    stamp.write_text(wanted.read_text())
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError("the installation took more than 15 minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise NotInstalledError("; ".join(lines[:2]) or f"pip ended with {done.returncode}")
