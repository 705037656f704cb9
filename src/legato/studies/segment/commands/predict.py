"""``legato segment predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from legato.console.options import Device
from legato.console.talking import console, progress_bar, reporting_errors, say
from legato.studies.segment import options

if TYPE_CHECKING:
    from torch import Tensor

    from legato.studies.segment.data.palettes import Palette


def predict(
    model: options.ModelFile,
    images: Annotated[list[Path], typer.Argument(help="Image files of any size and format.")],
    network: options.OwnNetwork = None,
    precision: options.Precision = None,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path(
        "out/segment/predicted"
    ),
) -> None:
    """Segment images of yours.

    Writes NAME-labels.png, whose values are the classes and whose palette shows
    them, and NAME-overlay.png for each. An image that cannot be read is named,
    the others are still done, and the exit code is 1 in the end.
    """
    with reporting_errors():
        import torch

        from legato.console.options import device_of
        from legato.console.pictures import read_image
        from legato.console.runs import RunFolder
        from legato.errors import InputError
        from legato.studies.segment.choices import own_network, precision_of
        from legato.studies.segment.data.palettes import palette_of
        from legato.studies.segment.evaluation import predictor
        from legato.studies.segment.model import load_model

        where = device_of(device)
        loaded, settings = load_model(model, own_network(network))
        find = predictor(loaded, where, precision_of(precision, device))
        palette = palette_of(settings.classes)
        folder = RunFolder(out).path
        names = _names(images)
        problems = 0
        with progress_bar() as shown:
            task = shown.add_task("segmenting", total=len(images))
            for path in images:
                try:
                    image = read_image(path)
                    labels = find(image[None].to(where).float() / 255)[0].cpu()
                    _write(folder / names[path], image, labels.to(torch.uint8), palette)
                except (InputError, torch.OutOfMemoryError) as error:
                    problems += 1
                    shown.console.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
                shown.advance(task)
        say(f"{len(images) - problems} of {len(images)} images: {folder}")
        for name, (red, green, blue) in zip(settings.classes, palette, strict=True):
            console.print(f"[rgb({red},{green},{blue})]■[/] {escape(name)}")
        if problems:
            raise typer.Exit(1)


def _names(images: list[Path]) -> dict[Path, str]:
    """A name for the results of each image; those that share one get a number."""
    names: dict[Path, str] = {}
    for path in images:
        name, count = path.stem, 1
        while name in names.values() and path not in names:
            count += 1
            name = f"{path.stem}-{count}"
        names.setdefault(path, name)
    return names


def _write(stem: Path, image: Tensor, labels: Tensor, palette: Palette) -> None:
    from PIL import Image

    from legato._support.files import replacing
    from legato.studies.segment.figures import overlay

    coded = Image.fromarray(labels.numpy()).convert("P")
    coded.putpalette([level for colour in palette for level in colour])
    shown = Image.fromarray(overlay(image, labels, palette))
    for picture, kind in ((coded, "labels"), (shown, "overlay")):
        with replacing(stem.with_name(f"{stem.name}-{kind}.png")) as temporary:
            picture.save(temporary, format="png")
