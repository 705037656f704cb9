"""``legato denoise table``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from legato.cli.denoise.table_text import rich_table
from legato.console import options
from legato.console.talking import console, reporting_errors, say


def table(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Holds train, BSD68 and Set12. Without any data, legato draws pictures.",
        ),
    ] = None,
    sigmas: Annotated[
        str, typer.Option(metavar="A,B,…", help="Noise levels, white being 255.")
    ] = "15,25,50",
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Compute only these: noise levels, `all` (filters for every level), `compare` "
            "(gradients and optimisers). What --out holds already is not computed again.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = 2000,
    peers: Annotated[
        list[Path] | None,
        typer.Option(help="A file of experiments/denoise/peers.py, to be shown beside."),
    ] = None,
    device: options.Device = "auto",
    quick: options.Quick = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/denoise"),
) -> None:
    """Learn denoisers of growing ambition, and measure them.

    One weight for total variation, by hypergradient and on a grid; a weight for
    each pixel from a network; filters with one weight each; filters with weights
    for each pixel.
    """
    with reporting_errors("Interrupted. The same command takes up after the parts that are done."):
        import torch

        from legato.console.options import device_of
        from legato.console.runs import RunFolder, results_of
        from legato.studies.denoise.image_sets import drawn_sets, read_sets
        from legato.studies.denoise.settings import StudySettings
        from legato.studies.denoise.table import (
            TableSettings,
            collect,
            part_folder,
            quick_table,
            run_part,
        )
        from legato.studies.denoise.training import Recipe

        where = torch.device(device_of(device))
        torch.backends.cudnn.allow_tf32 = False  # the solver's convolutions in full float32
        settings = TableSettings(
            _numbers(sigmas), StudySettings(recipe=Recipe(steps=steps, batch=16))
        )
        if quick:
            settings = quick_table(settings)
        wanted = settings.parts if parts is None else tuple(parts.split(","))
        folder = RunFolder(out)
        there = {
            part
            for part in settings.parts
            if (results_of(part_folder(out, part)) or {}).get("complete")
        }
        for part in there:
            _require_same(settings, part, out)
        folder.begin(settings, where)
        sets = drawn_sets() if data is None else read_sets(data)
        for part in wanted:
            if part in there:
                say(f"[{part}] is there already")
                continue
            run_part(part, settings, sets, out, where, say)
        results = collect(settings, out, peers or ())
        written = folder.finish(results, where)
        for part, rows in results["table"].items():
            console.print(rich_table(part, rows, results["gain"].get(part, {})))
        say(f"Numbers: {written}")
        for path in _draw(folder, settings, sets):
            say(f"Picture: {path}")


def _numbers(text: str) -> tuple[float, ...]:
    from legato.errors import InputError

    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"--sigmas is a list of numbers such as 15,25,50, not {text!r}.") from None


def _require_same(settings: Any, part: str, out: Path) -> None:
    """Refuse a part that was computed with other settings."""
    import json
    from dataclasses import asdict

    from legato.errors import InputError
    from legato.studies.denoise.table import part_folder

    file = part_folder(out, part) / "settings.json"
    stored = json.loads(file.read_text(encoding="utf-8"))["settings"]
    asked = json.loads(json.dumps(asdict(settings)))
    for one in (stored, asked):
        one.pop("sigmas")  # which levels there are beside this one does not matter to it
    if stored != asked:
        raise InputError(
            f"{file.parent} was computed with other settings. Choose another --out, or delete it."
        )


def _draw(folder: Any, settings: Any, sets: Any) -> list[Path]:
    from legato.cli.denoise.figures import draw_all

    return draw_all(folder, settings, sets)
