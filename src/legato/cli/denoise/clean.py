"""``legato denoise clean``, or ``legato denoise IMAGE``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from legato.console import options
from legato.console.talking import progress_bar, reporting_errors, say

if TYPE_CHECKING:
    import torch

    from legato.nn import AnalysisDenoiser


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

        from legato.console.options import device_of
        from legato.errors import InputError
        from legato.nn import AnalysisDenoiser
        from legato.studies.denoise.clean import require_sigma
        from legato.studies.denoise.shipped import shipped_denoiser

        level = None if sigma is None else require_sigma(sigma)
        where = torch.device(device_of(device))
        denoiser = shipped_denoiser() if model is None else AnalysisDenoiser.load(model)
        _require_suitable(denoiser, model)
        targets = _targets(images, output)
        problems = 0
        with progress_bar() as shown:
            task = shown.add_task("denoising", total=len(images))
            for path, target in zip(images, targets, strict=True):
                try:
                    say(_one(path, target, level, denoiser, force, where))
                except (InputError, OSError, torch.OutOfMemoryError) as error:
                    problems += 1
                    message = str(error) if str(path) in str(error) else f"{path}: {error}"
                    shown.console.print(f"[bold red]error[/] {escape(message)}", soft_wrap=True)
                shown.advance(task)
        if len(images) > 1:
            say(f"{len(images) - problems} of {len(images)} images")
        if problems:
            raise typer.Exit(1)


def _one(
    path: Path, target: Path | None, level: float | None, denoiser: AnalysisDenoiser, force: bool,
    where: torch.device,
) -> str:  # fmt: skip
    """Denoise one picture; returns what there is to say about it."""
    from legato.console.pictures import read_picture, require_suffix, write_picture
    from legato.errors import InputError
    from legato.studies.denoise import clean as cleaning
    from legato.studies.denoise.settings import HIGHEST

    picture = read_picture(path)
    if target is None:
        target = path.with_name(f"{path.stem}-clean{picture.suffix}")
    elif target.is_dir():
        target = target / f"{path.stem}{picture.suffix}"
    require_suffix(picture, target)
    if target.exists() and target.samefile(path):
        raise InputError(f"{target} is the picture itself. Choose another --output.")
    if target.exists() and not force:
        raise InputError(f"{target} exists. Give --force to replace it, or another --output.")
    told = level is not None
    sigma = level if level is not None else cleaning.estimate_sigma(picture.channels)
    found = cleaning.clean(picture.channels, sigma, denoiser, where)
    try:
        write_picture(picture.with_channels(found), target)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error}). Choose another --output."
        ) from error
    notes = list(picture.notes)
    if sigma == 0:
        notes.append("no noise, nothing changed")
    elif 255 * sigma > HIGHEST:
        notes.append(f"more noise than the filters were trained for, {HIGHEST:g}")
    source = "given" if told else "estimated"
    return "; ".join([f"{path}: σ = {255 * sigma:.1f} of 255, {source} → {target}", *notes])


def _targets(images: list[Path], output: Path | None) -> list[Path | None]:
    """Where each result goes; None for beside its image."""
    from legato.errors import InputError

    if output is None or (len(images) == 1 and not output.is_dir()):
        return [output] * len(images)
    if len(images) > 1:
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
                f"--output must be a folder for several images, and {output} cannot be one "
                f"({error})."
            ) from error
    return [output] * len(images)


def _require_suitable(denoiser: AnalysisDenoiser, model: Path | None) -> None:
    from legato.errors import InputError

    if not denoiser.conditioned or denoiser.channels != 1:
        raise InputError(
            f"The filters in {model} are for {denoiser.channels} channel(s) and "
            f"{'every σ' if denoiser.conditioned else 'one σ only'}; needed are filters for one "
            "channel that are told σ, such as all/filters.safetensors of `legato denoise table`."
        )
