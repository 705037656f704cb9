"""``python -m legato.cli`` is ``legato``."""

from legato.cli import main

main()
