"""``legato segment download``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TransferSpeedColumn

from legato.console.talking import progress_bar, reporting_errors, say


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
        from legato.studies.segment import data
        from legato.studies.segment.data.download import URL

        with progress_bar(DownloadColumn(), TransferSpeedColumn()) as shown:
            task = shown.add_task("downloading", total=None)

            def progress(arrived: int, total: int | None) -> None:
                shown.update(task, completed=arrived, total=total)

            path = data.download(folder, url or URL, progress)
        say(f"Data set: {path}")
        say(f"Next: legato segment train --data {path}")
