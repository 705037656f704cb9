"""The command line: the only place of the package that talks to a person."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``legato``; say what to install where its own dependencies are missing."""
    try:
        from legato.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'legato[cli]'")
    app()
