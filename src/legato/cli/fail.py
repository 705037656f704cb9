"""How a command ends when something is wrong."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape


def fail(message: object) -> NoReturn:
    """Say what is wrong on the error stream, in full whatever its width, and exit with 1."""
    Console(stderr=True).print(f"[bold red]error[/] {escape(str(message))}", soft_wrap=True)
    raise typer.Exit(1)
