"""``legato segment download``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from legato.console.talking import reporting_errors, say


def download(
    folder: Annotated[Path, typer.Argument(help="Where iccv09Data.tar.gz goes.")] = Path("data"),
    url: Annotated[str | None, typer.Option(help="Another address of the archive.")] = None,
) -> None:
    """Fetch the Stanford Background data set (14 MB), and check that all of it
    arrived.

    From its makers' server; cite Gould, Fulton, Koller, ICCV 2009. A download
    that fails or is interrupted leaves nothing behind.
    """
    with reporting_errors("Interrupted; nothing was kept."):
        from legato.studies.segment.data import download as fetch
        from legato.studies.segment.data.download import URL

        errors = Console(stderr=True)
        shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        with shown:
            task = shown.add_task("downloading", total=None)

            def progress(arrived: int, total: int | None) -> None:
                shown.update(task, completed=arrived, total=total)

            path = fetch(folder, url or URL, progress)
        say(f"Data set: {path}")
        say(f"Next: legato segment train --data {path}")
