"""``legato toy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from legato.console.talking import console, progress_bar, reporting_errors, say


def toy(
    out: Annotated[
        Path, typer.Option(help="Folder for figures/*.png, results.json and settings.json.")
    ] = Path("out/toy"),
    chosen: Annotated[
        str,
        typer.Option(
            "--set", metavar="A|B|both", help="The values of λ, b, θ*, x⁰, μ and of the steps."
        ),
    ] = "both",
    quick: Annotated[
        bool, typer.Option("--quick", help="The same figures from fewer points.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option(help="Draws the θ at which derivatives are checked; figures stay the same."),
    ] = 0,
) -> None:
    """Differentiate a solution map with a kink in six ways: which to trust?

    The paper's example learns θ of a non-negative least-squares problem in
    one variable. Its solution, x*(θ) = max(0, λθb/(1 + λθ²)), has a kink at
    θ = 0. All gradients are the library's own:

    Smoothed-impl      log barrier,      Implicit(CG())
    Proj.GD            projected steps,  Unroll(last=K)
    Proj.GD2           projected steps,  FixedPoint(K)
    Bregman-FB         entropic steps,   Unroll(last=K)
    Bregman-FB2        entropic steps,   FixedPoint(K)
    Bregman-FB-impl    entropic steps,   Implicit(GMRES())

    Prints the numbers beside those of the errata, and draws
    1 the loss and the solution map,
    2 tangents to the loss at θ = 0.3 and θ = 0,
    3 energies and gradients along the iterations,
    4 the errors of all methods after 5 to 200 back-iterations at θ = 0.3,
    5 the same at θ = 0, within the Clarke subdifferential,
    6 min over [0, 1] of θx: the number of iterations is the smoothing.

    Smoothing stands beside the other gradients of total variation and of a
    Potts model as well, with derivatives known by hand.
    """
    with reporting_errors():
        from legato.console.runs import RunFolder
        from legato.studies.toy.example import SETS
        from legato.studies.toy.figures import figures
        from legato.studies.toy.report import report
        from legato.studies.toy.study import Settings, run

        sets = tuple(SETS) if chosen.lower() == "both" else (chosen.upper(),)
        settings = Settings(sets, quick, seed)
        folder = RunFolder(out)
        folder.begin(settings)
        with progress_bar() as bar:
            task = bar.add_task("", total=settings.stages)
            results = run(settings, lambda what: bar.update(task, advance=1, description=what))
            drawings = figures(results)
            for name, draw in drawings.items():
                bar.update(task, total=settings.stages + len(drawings), advance=1, description=name)
                draw(folder.figure(f"{name}.png"))
        written = folder.finish(results.record())
    report(results, console)
    say(f"Numbers:  {written}")
    say(f"Pictures: {folder.path / 'figures'}")
