"""``legato segment table``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legato.console.options import Device, Quick
from legato.console.talking import console, counted_lines, reporting_errors, say
from legato.studies.segment import options

if TYPE_CHECKING:
    from legato.studies.segment.table import TableSettings

QUICK_VARIANTS = ("control", "global", "contrast")
# Seeds and variants may be added to a folder; what was computed there stays.
_FREE = ("table.seeds", "table.variants", "table.recipe.workers", "table.recipe.accelerator")


def table(
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.Classes = "surfaces",
    names: options.Names = None,
    split: options.SplitFile = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="small|vgg32", help="What to train (default: vgg32; with --quick small)."
        ),
    ] = None,
    weights: options.VggWeights = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Repetitions (default: 0,1,2; with --quick 0,1)."),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Rows of the table, or `all` (default: all; with --quick three)."
        ),
    ] = None,
    precision: options.Precision = None,
    device: Device = "auto",
    workers: options.Workers = 0,
    quick: Quick = False,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("out/segment/table"),
) -> None:
    """Reproduce the paper's table: a network with and without the layer, over
    several seeds.

    Each seed trains the network, then goes on from there once for every row: the
    honest control is the network trained on as long as the others, without the
    layer. What a folder already holds is not computed again. Writes results.json,
    table.md and a figure.
    """
    with reporting_errors("Interrupted. The same command goes on from here."):
        from legato._support.files import write_text
        from legato.console.options import device_of, listed
        from legato.console.runs import RunFolder, require_same
        from legato.errors import InputError
        from legato.studies.segment.choices import open_split, precision_of, source_of, vgg_file
        from legato.studies.segment.figures import draw_table, markdown, rich_table
        from legato.studies.segment.table import collect, run_seed

        if weights == "random":
            raise InputError("The table starts from VGG-16's weights: give --weights FILE.")
        where = device_of(device)
        settings = _settings(network, seeds, variants, quick)
        recipe = replace(
            settings.recipe,
            precision=precision_of(precision, device),
            workers=workers,
            accelerator="gpu" if where.startswith("cuda") else "cpu",
        )
        settings = replace(settings, recipe=recipe)
        source = source_of(data, images, masks, classes=classes, quick=quick, names=listed(names))
        found = source.open()
        asked = {"data": asdict(source), "table": asdict(settings)}
        require_same(out, asked, _FREE)
        parts = open_split(found, split, out / "split.json")
        run = RunFolder(out)
        run.begin(asked, where)
        parts.save(out / "split.json")
        total = len(settings.seeds) * (1 + len(settings.variants))
        with counted_lines("rows", total) as report:
            for seed in settings.seeds:
                run_seed(seed, settings, found, parts, out, where, vgg_file(weights), report)
        rows = collect(out, settings)
        written = run.finish({"settings": asdict(settings), "rows": rows}, where)
        write_text(out / "table.md", markdown(rows))
        picture = run.figure("table.png")
        draw_table(picture, rows)
        console.print(rich_table(rows))
        say(f"Numbers: {written}")
        say(f"Table:   {out / 'table.md'}")
        say(f"Picture: {picture}")


def _settings(
    network: str | None, seeds: str | None, variants: str | None, quick: bool
) -> TableSettings:
    from legato.console.options import listed, whole_numbers
    from legato.errors import InputError
    from legato.studies.segment.settings import RECIPES, Network
    from legato.studies.segment.table import VARIANTS, TableSettings

    name = network or ("small" if quick else "vgg32")
    if name not in ("small", "vgg32"):
        raise InputError(f"--network is small or vgg32 here, not {name!r}.")
    chosen = listed(None if variants == "all" else variants)
    if chosen is None:
        chosen = list(QUICK_VARIANTS if quick and variants is None else VARIANTS)
    kind = Network(name)
    recipe = replace(RECIPES[kind], save_every=5)
    repeated = whole_numbers("--seeds", seeds or ("0,1" if quick else "0,1,2"))
    settings = TableSettings(kind, repeated, tuple(chosen), recipe=recipe)
    if kind == Network.SMALL:
        settings = replace(settings, lr=recipe.lr, extra_lr=recipe.lr / 3)
    if quick:
        settings = replace(
            settings, first_epochs=15, extra_epochs=8, iterations=30, test_iterations=(15, 30, 60)
        )
    return settings
