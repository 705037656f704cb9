"""The command line: the only place of the package that talks to a person."""

from __future__ import annotations

import sys

from legato._support.extras import needs_extra
from legato.errors import MissingExtraError


def main() -> None:
    """Run ``legato``; say what to install where its own dependencies are missing."""
    try:
        with needs_extra("The command line", "cli"):
            from legato.cli.app import app
    except MissingExtraError as error:
        sys.exit(str(error))
    app()
