"""The commands of ``legato``."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from legato import __version__
from legato.cli.plots import save_plot
from legato.cli.render import render
from legato.cli.segment import segment
from legato.console.loading import LoadError, load
from legato.console.talking import fail
from legato.diagnostics import diagnose
from legato.errors import LegatoError
from legato.running import Stop
from legato.studies.denoise.command import denoise
from legato.studies.explore.command import explore
from legato.studies.toy.command import toy

app = typer.Typer(
    help="Learning through nonsmooth optimisation.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"legato {__version__}")
        raise typer.Exit


@app.callback()
def legato(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Which legato?"),
    ] = False,
) -> None:
    """Learning through nonsmooth optimisation."""


@app.command()
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FACTORY",
            help="A function of a dtype that returns (problem, algorithm, loss) or (problem, "
            "algorithm, loss, x0) in it; loss is a function of the solution. Without an argument, "
            "the problem is measured as it is.",
        ),
    ],
    iterations: Annotated[int, typer.Option(help="Iterations of the solve in question.")] = 100,
    tol: Annotated[float | None, typer.Option(help="Residual at which that solve stops.")] = None,
    reference: Annotated[int, typer.Option(help="Most iterations of the reference.")] = 5000,
    accuracy: Annotated[float, typer.Option(help="Relative error that counts as right.")] = 1e-3,
    plot: Annotated[Path | None, typer.Option(help="Also draw error against time here.")] = None,
) -> None:
    """Say which gradient to use for your problem, and whether to trust it."""
    try:
        found = diagnose(
            load(target),
            stop=Stop(iterations, tol),
            reference=Stop(reference, tol=1e-12),
            tol=accuracy,
        )
    except LoadError as error:
        fail(str(error))
    except LegatoError as error:
        fail(f"{type(error).__name__}: {error}")
    except Exception as error:  # the user's own callables may raise anything
        where = traceback.extract_tb(error.__traceback__)[-1]
        fail(
            f"Diagnosing {target} raised {type(error).__name__}: {error} "
            f"({where.filename}:{where.lineno})"
        )
    render(found, Console())
    if plot is not None:
        try:
            save_plot(found, plot)
        except (ImportError, OSError, ValueError) as error:
            fail(f"The picture could not be written to {plot}: {error}")
        Console().print(f"Picture: {plot}")


app.command()(toy)
app.command()(explore)
app.add_typer(segment, name="segment")
app.add_typer(denoise, name="denoise")
