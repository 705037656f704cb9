"""``python -m legato`` and the command ``legato``: the command line, if its packages are there."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``legato``; say what to install where its own dependencies are missing."""
    try:
        from legato.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'legato[cli]'")
    app()


if __name__ == "__main__":
    main()
