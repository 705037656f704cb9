"""``python -m legato`` and the command ``legato``: the command line, if its packages are there."""

from __future__ import annotations

import sys

from legato._support.extras import needs_extra
from legato.errors import MissingExtraError


def main() -> None:
    """Run ``legato``; say what to install where its own dependencies are missing."""
    try:
        with needs_extra("The command line", "cli"):
            from legato.cli import app
    except MissingExtraError as error:
        sys.exit(str(error))
    app()


if __name__ == "__main__":
    main()
