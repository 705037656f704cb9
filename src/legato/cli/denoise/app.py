"""The group of commands, in which an image's name is a command of its own."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from legato.cli.denoise.clean import clean
from legato.cli.denoise.table import table


class ImagesOrCommands(TyperGroup):
    """``legato denoise IMAGE`` is short for ``legato denoise clean IMAGE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["clean", *args]
        return super().parse_args(ctx, args)


denoise = typer.Typer(
    cls=ImagesOrCommands,
    help="Take the noise out of pictures with learned filters: `legato denoise IMAGE`.",
    epilog="`legato denoise photo.png` writes photo-clean.png beside it. `legato denoise clean "
    "--help` lists what can be chosen; an image that is called like a command is ./table.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
denoise.command(epilog="Example: `legato denoise photo.png --sigma 25 --output quiet.png`")(clean)
denoise.command(
    epilog="Example: `legato denoise table --quick`. Several processes can share the work: start "
    "each with its own --parts and the same --out, then once without to collect."
)(table)
