"""The command line: collects the commands of the studies, adds the doctor and the referee."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from legato import __version__
from legato.console.help import plain
from legato.console.loading import LoadError, load
from legato.console.talking import fail, reporting_errors, say
from legato.errors import LegatoError

if TYPE_CHECKING:
    from legato.diagnostics import Diagnosis


class Study(NamedTuple):
    """Where a study's command is, and its line on the first help page."""

    module: str
    help: str

    def load(self, name: str) -> Any:
        """The command ``name`` of the module: a function, or a Typer application of several."""
        with reporting_errors():  # a package that comes with an extra may be missing
            found = getattr(importlib.import_module(self.module), name)
        holder = typer.Typer()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name)
        else:
            holder.command(name)(found)
            holder.callback()(lambda: None)  # with a callback one command stays a group of one
        return plain(typer.main.get_group(holder).commands[name])


STUDIES = {
    "toy": Study(
        "legato.studies.toy.command",
        "Differentiate a solution map with a kink in six ways: which to trust?",
    ),
    "explore": Study(
        "legato.studies.explore.command",
        "Open a local page: segment a picture, learn to denoise it, compare gradients.",
    ),
    "segment": Study(
        "legato.studies.segment.command",
        "Segment images with a network and, after it, the paper's global layer.",
    ),
    "denoise": Study(
        "legato.studies.denoise.command",
        "Take the noise out of pictures with learned filters: `legato denoise IMAGE`.",
    ),
    "reconstruct": Study(
        "legato.studies.reconstruct.command",
        "A picture from a blurred one, from k-space or from a sinogram, by total variation.",
    ),
}


class _Commands(TyperGroup):
    """A group that imports a study's command when it is called, not when it is listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *STUDIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in STUDIES:
            return TyperCommand(cmd_name, help=STUDIES[cmd_name].help)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in STUDIES:
            return args[0], STUDIES[args[0]].load(args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **more: Any) -> Any:
        return super(_Commands, plain(self)).main(*args, **more)


app = typer.Typer(
    cls=_Commands,
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
    with reporting_errors("Interrupted; nothing was measured to its end."):
        from legato.console.diagnosis import show
        from legato.diagnostics import diagnose
        from legato.running import Stop

        try:
            found = diagnose(
                load(target),
                stop=Stop(iterations, tol),
                reference=Stop(reference, tol=1e-12),
                tol=accuracy,
            )
        except LoadError as error:
            fail(error)
        except LegatoError as error:
            fail(f"{type(error).__name__}: {error}")
        except Exception as error:  # the user's own callables may raise anything
            where = traceback.extract_tb(error.__traceback__)[-1]
            fail(
                f"Diagnosing {target} raised {type(error).__name__}: {error} "
                f"({where.filename}:{where.lineno})"
            )
    show(found)
    if plot is not None:
        try:
            _draw(found, plot)
        except (ImportError, OSError, ValueError) as error:
            fail(f"The picture could not be written to {plot}: {error}")
        say(f"Picture: {plot}")


@app.command()
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:LAYER",
            help="A function of tensors, a module, or a class of modules that needs no arguments.",
        ),
    ],
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.py:NAME",
            help="What to call it with: a tensor, a tuple, or a function that returns them. "
            "Without a file it is in that of the layer, where 'inputs' is looked for first.",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="4,10", help="Normal numbers of this shape; once for each input."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the inputs made by --shape.")] = "float64",
    batch: Annotated[
        bool | None,
        typer.Option(
            "--batch/--no-batch", help="Is the first axis a batch? Found out if not said."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Relative accuracy that the layer promises.")
    ] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of inputs, directions and random numbers.")] = 0,
) -> None:
    """Say whether a differentiable layer can be trusted: 0 sound, 1 wrong, 2 not decided.

    Its gradient is held against differences that look out for kinks; batches, repeated calls,
    dtypes, memory layouts, NaN and more have laws of their own.
    """
    with reporting_errors("Interrupted; nothing was decided."):
        from legato.console.referee import inputs_for, layer_of, show
        from legato.testing import check_layer

        layer = layer_of(target)
        given = inputs_for(target, inputs, shape or [], dtype, seed)
        try:
            found = check_layer(layer, given, batch=batch, tolerance=tolerance, seed=seed)
        except RecursionError as error:  # of a layer that calls itself
            fail(f"Checking {target} raised {type(error).__name__}: {error}")
    show(found)
    raise typer.Exit({"sound": 0, "wrong": 1, "not decided": 2}[found.state])


def _draw(diagnosis: Diagnosis, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    diagnosis.plot(figure.add_subplot())
    figure.savefig(path, dpi=150)
