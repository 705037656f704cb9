"""The command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from legato.cli.toy.report import report
from legato.console.runs import RunFolder
from legato.console.talking import fail
from legato.errors import LegatoError
from legato.studies.toy import SETS, Settings, ToyResults, run


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
    """
    console = Console()
    if _missing("matplotlib"):
        fail("The figures need matplotlib: pip install 'legato[studies]'")
    try:
        settings = Settings(_sets(chosen), quick, seed)
        folder = RunFolder(out)
        folder.begin(settings)
        results = _with_progress(console, settings, folder)
        written = folder.finish(results.record())
    except LegatoError as error:
        fail(error)
    except OSError as error:
        fail(f"The results could not be written to {out}: {error}")
    report(results, console)
    console.print(f"Numbers:  {written}", soft_wrap=True, highlight=False)
    console.print(f"Pictures: {folder.path / 'figures'}", soft_wrap=True, highlight=False)


def draw_figures(
    results: ToyResults, folder: RunFolder, advance: Callable[[str], None] = lambda what: None
) -> list[Path]:
    """Draw every figure of a run into its folder; needs matplotlib. Returns the files."""
    # Here, so that the rest of the command line works without matplotlib.
    from legato.cli.toy.figures import figures

    paths = []
    for name, draw in figures(results).items():
        advance(f"figure {name}")
        path = folder.figure(f"{name}.png")
        draw(path)
        paths.append(path)
    return paths


def _with_progress(console: Console, settings: Settings, folder: RunFolder) -> ToyResults:
    bar = Progress(BarColumn(20), TextColumn("{task.description}"), console=console, transient=True)
    with bar:
        from legato.cli.toy.figures import number_of_figures

        total = settings.stages + number_of_figures(settings)
        task = bar.add_task("", total=total, completed=-1)  # a stage is done when the next begins

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)

        results = run(settings, advance)
        draw_figures(results, folder, advance)
    return results


def _sets(chosen: str) -> tuple[str, ...]:
    return tuple(SETS) if chosen.lower() == "both" else (chosen.upper(),)


def _missing(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return True
    return False
