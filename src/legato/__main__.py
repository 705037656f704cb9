"""``python -m legato`` and the command ``legato``: the command line, if its packages are there."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from legato._support.extras import needs_extra
from legato.errors import MissingExtraError

INTERRUPTED = 130
"""The exit code of a command that was ended by Ctrl-C, as shells have it."""


def main() -> None:
    """Run ``legato``; say what to install where its own dependencies are missing.

    Ctrl-C ends it without a traceback from the first import on. A package that is interrupted
    while it is imported may raise anything, so it is remembered that somebody pressed it.
    """
    pressed = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, remember)
    try:
        with needs_extra("The command line", "cli"):
            from legato.cli import app
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except MissingExtraError as error:
        sys.exit(INTERRUPTED if pressed else str(error))
    except Exception:
        if not pressed:
            raise
        sys.exit(INTERRUPTED)
    finally:  # what is left to do is to leave, with the exit code that there is
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
