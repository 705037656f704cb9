"""``legato segment iterations``."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from legato.console.options import Device, Quick
from legato.console.talking import counted_lines, reporting_errors, say
from legato.studies.segment import options


def iterations(
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.Classes = "surfaces",
    counts: Annotated[
        str | None, typer.Option(metavar="5,10,…", help="Numbers of inner iterations to try.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Outer iterations each.")] = None,
    number: Annotated[
        int | None, typer.Option("--count", min=1, help="Images to train on.")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 1e-3,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,…", help="One training each per point (default: ten)."),
    ] = None,
    balance: Annotated[
        float | None,
        typer.Option(min=0, help="Ratio r of the solver's steps (default: found by a search)."),
    ] = None,
    device: Device = "auto",
    quick: Quick = False,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("out/segment/iterations"),
) -> None:
    """Show what more iterations of the lower level buy, and what they cost.

    Trains the small network with the layer on a few images (the paper: 9 images,
    1000 steps of one image, Adam) for each number of inner iterations, with the
    last and with the averaged iterate; the trainings of all seeds run side by
    side. What a folder already holds is not computed again. Writes results.json
    and a figure: loss, accuracy, time of an outer iteration.
    """
    with reporting_errors("Interrupted. The same command goes on from here."):
        from legato.console.options import device_of, whole_numbers
        from legato.console.runs import RunFolder, require_same
        from legato.studies.segment.choices import source_of
        from legato.studies.segment.data import split
        from legato.studies.segment.figures import draw_iterations
        from legato.studies.segment.iterations import (
            BALANCES,
            QUICK,
            IterationSettings,
            kept,
            run_iterations,
            search_balance,
            searched,
        )

        where = device_of(device)
        usual = QUICK if quick else IterationSettings()
        settings = IterationSettings(
            counts=usual.counts if counts is None else whole_numbers("--counts", counts),
            images=number or usual.images,
            steps=steps or usual.steps,
            lr=lr,
            seeds=usual.seeds if seeds is None else whole_numbers("--seeds", seeds),
        )
        source = source_of(data, images, masks, classes=classes, quick=quick)
        found = source.open()
        found = found.subset(split(found.names, 0.2, seed=0).train)  # what `train` trains on
        asked = {"data": asdict(source), "iterations": asdict(settings), "balance": balance}
        require_same(out, asked, ("iterations.counts",))  # more of them may join a folder
        run, rows = RunFolder(out), out / "rows"
        run.begin(asked, where)
        rows.mkdir(exist_ok=True)
        search = None
        if balance is None:
            with counted_lines("search", len(BALANCES)) as report:
                tried = partial(search_balance, searched(settings), found, where, BALANCES, report)
                search = kept(rows / "search.json", tried)
            balance = float(search["balance"])
        settings = replace(settings, balance=balance)
        with counted_lines("training", len(settings.counts) * len(settings.averages)) as report:
            results = run_iterations(settings, found, where, rows, report)
        results["search"] = search
        picture = run.figure("iterations.png")
        draw_iterations(picture, results)
        say(f"Numbers: {run.finish(results, where)}")
        say(f"Picture: {picture}")
