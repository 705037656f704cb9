"""``legato denoise IMAGE`` and ``legato denoise table``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from typer.core import TyperGroup

from legato.console import options
from legato.console.talking import console, progress_bar, reporting_errors, say
from legato.errors import InputError

if TYPE_CHECKING:
    import torch

    from legato.nn import AnalysisDenoiser
    from legato.studies.denoise.models import MappedAnalysis


class ImagesOrCommands(TyperGroup):
    """``legato denoise IMAGE`` is short for ``legato denoise clean IMAGE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["clean", *args]
        return super().parse_args(ctx, args)


denoise = typer.Typer(
    cls=ImagesOrCommands,
    help="Take the noise out of pictures with learned filters: `legato denoise IMAGE`.",
    epilog="`legato denoise photo.png` writes photo-clean.png beside it. `legato denoise clean "
    "--help` lists what can be chosen; an image that is called like a command is ./table.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@denoise.command(epilog="Example: `legato denoise photo.png --sigma 25 --output quiet.png`")
def clean(
    images: Annotated[list[Path], typer.Argument(help="Image files of any size and format.")],
    sigma: Annotated[
        float | None,
        typer.Option(help="The noise's standard deviation, white being 255; else estimated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write: a file, or a folder for several images."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Filters of your own training instead of legato's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    device: options.Device = "auto",
) -> None:
    """Take the noise out of pictures.

    Writes NAME-clean.png beside each, with the mode and depth that it had. An
    image that cannot be done is named, the others are still done, and the exit
    code is 1 in the end.
    """
    with reporting_errors():
        import torch

        from legato.studies.denoise.clean import load_denoiser, require_sigma

        level = None if sigma is None else require_sigma(sigma)
        where = torch.device(options.device_of(device))
        denoiser = load_denoiser(model)
        _require_targets(images, output)
        problems = 0
        with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            task = bar.add_task("reading", total=None)

            def shown(path: Path) -> Callable[[int], Callable[[], None]]:
                def begin(total: int) -> Callable[[], None]:
                    bar.reset(task, total=total, description=path.name)
                    return lambda: bar.advance(task)

                return begin

            for path in images:
                try:
                    said = _clean_one(path, output, level, denoiser, force, where, shown(path))
                    say(said)
                except (InputError, OSError, torch.OutOfMemoryError) as error:
                    problems += 1
                    message = str(error) if str(path) in str(error) else f"{path}: {error}"
                    bar.console.print(f"[bold red]error[/] {escape(message)}", soft_wrap=True)
        if len(images) > 1:
            say(f"{len(images) - problems} of {len(images)} images")
        if problems:
            raise typer.Exit(1)


def _clean_one(
    path: Path, output: Path | None, level: float | None,
    denoiser: AnalysisDenoiser | MappedAnalysis, force: bool, where: torch.device,
    begin: Callable[[int], Callable[[], None]],
) -> str:  # fmt: skip
    """Denoise one picture; returns what there is to say about it.

    ``begin`` is told how many parts there are, and returns what is called after each.
    """
    from legato.console.pictures import read_picture, require_suffix, write_picture
    from legato.studies.denoise.clean import clean_channels, estimate_sigma, parts
    from legato.studies.denoise.settings import HIGHEST

    picture = read_picture(path)
    if output is None:
        target = path.with_name(f"{path.stem}-clean{picture.suffix}")
    else:
        target = output / f"{path.stem}{picture.suffix}" if output.is_dir() else output
    require_suffix(picture, target)
    if target.exists() and target.samefile(path):
        raise InputError(f"{target} is the picture itself. Choose another --output.")
    if target.exists() and not force:
        raise InputError(f"{target} exists. Give --force to replace it, or another --output.")
    sigma = estimate_sigma(picture.channels) if level is None else level
    advance = begin(parts(picture.channels))
    found = clean_channels(picture.channels, sigma, denoiser, where, advance)
    try:
        write_picture(picture.with_channels(found), target)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error}). Choose another --output."
        ) from error
    source = "estimated" if level is None else "given"
    said = [f"{path}: σ = {255 * sigma:.1f} of 255, {source} → {target}", *picture.notes]
    if sigma == 0:
        said.append("no noise, nothing changed")
    elif 255 * sigma > HIGHEST:
        said.append(f"more noise than the filters were trained for, {HIGHEST:g}")
    return "; ".join(said)


def _require_targets(images: list[Path], output: Path | None) -> None:
    """Refuse several images that cannot go into one folder; make the folder."""
    if output is None or len(images) == 1:
        return
    names = [path.stem for path in images]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"Several images are called {', '.join(twice)}: their results would overwrite "
            "each other in one folder. Leave --output out, or do them one by one."
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--output must be a folder for several images, and {output} cannot be one ({error})."
        ) from error


@denoise.command(
    epilog="Example: `legato denoise table --quick`. Several processes can share the work: start "
    "each with its own --parts and the same --out, then once without to collect."
)
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
    seconds: Annotated[
        float | None, typer.Option(help="Most seconds of each training, should steps take longer.")
    ] = None,
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

        from legato.console.runs import RunFolder, require_same
        from legato.studies.denoise.figures import draw_all
        from legato.studies.denoise.images import drawn_sets, read_sets
        from legato.studies.denoise.report import no_training, rich_table
        from legato.studies.denoise.settings import LevelSettings, TableSettings
        from legato.studies.denoise.table import collect, is_complete, part_folder, run_part
        from legato.studies.denoise.training import Recipe

        where = torch.device(options.device_of(device))
        # The solver's convolutions in full float32, by the fastest algorithm for fixed shapes.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        recipe = Recipe(steps=steps, batch=16, seconds=seconds)
        settings = TableSettings(_numbers(sigmas), LevelSettings(recipe=recipe))
        settings = settings.quick() if quick else settings
        folder = RunFolder(out)
        done = [part for part in settings.parts if is_complete(out, part)]
        for part in done:  # which levels there are beside it does not matter to a part
            require_same(part_folder(out, part), settings, free=("sigmas",))
        folder.begin(settings, where)
        sets = drawn_sets() if data is None else read_sets(data)
        for part in settings.parts if parts is None else parts.split(","):
            if part in done:
                say(f"[{part}] is there already")
            else:
                run_part(part, settings, sets, out, where, say)
        results = collect(settings, out, peers or ())
        written = folder.finish(results, where)
        for part, rows in results["table"].items():
            console.print(rich_table(part, rows, results["gain"].get(part, {})))
        few = no_training(settings.level.recipe.steps)
        if few is not None:
            console.print(f"[bold yellow]note[/] {escape(few)}")
        say(f"Numbers: {written}")
        for path in draw_all(folder, settings, sets):
            say(f"Picture: {path}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"--sigmas is a list of numbers such as 15,25,50, not {text!r}.") from None
