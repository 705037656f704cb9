"""``legato segment compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from legato.console.options import Device
from legato.console.talking import progress_bar, reporting_errors, say
from legato.studies.segment import options

if TYPE_CHECKING:
    from torch import Tensor

    from legato.studies.segment.choices import ImageOptions
    from legato.studies.segment.data import Dataset


class _Found(NamedTuple):
    """Images, and by their names the labels without and with the layer, and its weights."""

    images: Dataset
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    weights: dict[str, Tensor] | None


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL_A MODEL_B",
            help="Two models, without the layer and with it; or one folder seed-N of a table, "
            "which holds the label maps of both.",
        ),
    ],
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.Classes = "surfaces",
    split: options.SplitFile = None,
    network: options.OwnNetwork = None,
    precision: options.Precision = None,
    device: Device = "auto",
    count: Annotated[int, typer.Option(min=1, help="Images to show.")] = 8,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture, .jpg or .png.")] = Path(
        "out/segment/compare.jpg"
    ),
) -> None:
    """Draw what the layer changes: input | CNN | CNN + global | truth, and the
    learned weights.

    The images lie across the whole range of gains, from the largest to the
    largest loss.
    """
    with reporting_errors():
        from legato.errors import InputError
        from legato.studies.segment.choices import ImageOptions
        from legato.studies.segment.figures import Column, draw_panels, spread_out

        if len(sources) not in (1, 2):
            raise InputError(f"compare takes two models or one folder, not {len(sources)} paths.")
        if out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            raise InputError(f"--out names a picture, .jpg or .png, not {out}.")
        asked = ImageOptions(data, images, masks, split)
        if len(sources) == 1:
            found = _from_folder(sources[0], asked, classes)
        else:
            found = _from_models(sources, asked, network, precision, device)
        chosen = spread_out(found.images, found.after, found.before, count)
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_panels(
            out,
            [found.images[index] for index in chosen],
            [Column("CNN", found.before), Column("CNN + global", found.after)],
            found.images.class_names,
            found.images.palette,
            weights=found.weights,
        )
        _say_difference(found)
        say(f"Picture: {out}")


def _from_models(
    sources: list[Path],
    asked: ImageOptions,
    network: str | None,
    precision: str | None,
    device: str,
) -> _Found:
    from legato.console.options import device_of
    from legato.errors import InputError
    from legato.studies.segment.choices import own_network, precision_of
    from legato.studies.segment.evaluation import evaluate, weight_pictures
    from legato.studies.segment.model import load_model
    from legato.studies.segment.settings import Weights

    where, kind = device_of(device), precision_of(precision, device)
    models, described = zip(
        *(load_model(path, own_network(network)) for path in sources), strict=True
    )
    classes, layer = described[0].classes, described[1].layer
    if described[1].classes != classes:
        raise InputError(
            f"The two models tell different classes apart: {', '.join(classes)}, and "
            f"{', '.join(described[1].classes)}."
        )
    if described[0].layer is not None and layer is None:
        raise InputError(
            f"{sources[0]} has the layer and {sources[1]} has none: give the model without it "
            "first, so that the columns have the right names."
        )
    images, which = asked.open(sources[0].parent, classes)
    say(f"On {which}.")
    maps: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    with progress_bar() as shown:
        task = shown.add_task("segmenting", total=2)
        for model, kept in zip(models, maps, strict=True):
            evaluate(model, images, len(classes), where, kind, kept)
            shown.advance(task)
    varies = layer is not None and layer.weights != Weights.UNIFORM
    return _Found(images, *maps, weight_pictures(models[1], images, where) if varies else None)


def _from_folder(folder: Path, asked: ImageOptions, classes: str) -> _Found:
    from legato.errors import InputError

    before, after = (_label_maps(folder / f"labels-{name}.pt") for name in ("control", "global"))
    images, _ = asked.open(folder.parent, None, kind=classes)
    wanted = [name for name in images.names if name in before and name in after]
    if not wanted:
        raise InputError(
            f"The label maps in {folder} are of other images than the data set's. Give the data "
            "they were made from with --data."
        )
    weights = folder / "weights.pt"
    shown = _label_maps(weights) if weights.exists() else None
    return _Found(images.subset(wanted), before, after, shown)


def _label_maps(path: Path) -> dict[str, Tensor]:
    """Maps by the name of their image, as `legato segment table` writes them."""
    import torch

    from legato.errors import InputError

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises whatever its reader stumbles on
        raise InputError(
            f"{path} holds no label maps ({type(error).__name__}: {error}). Give two models, or a "
            "folder seed-N that `legato segment table` wrote."
        ) from error
    return dict(stored)


def _say_difference(found: _Found) -> None:
    from legato.studies.segment.evaluation import score_labels

    before, after = (score_labels(maps, found.images) for maps in (found.before, found.after))
    for name, score in (("CNN", before), ("CNN + global", after)):
        say(f"{name:<13} accuracy {score.accuracy:.2f} %   mean IoU {score.iou:.2f} %")
    gain = after.accuracy - before.accuracy, after.iou - before.iou
    say(f"{'gain':<13} accuracy {gain[0]:+.2f}     mean IoU {gain[1]:+.2f}")
