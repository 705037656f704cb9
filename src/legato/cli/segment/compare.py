"""``legato segment compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legato.cli.segment import options
from legato.console.talking import progress_bar, reporting_errors, say

if TYPE_CHECKING:
    from torch import Tensor

    from legato.studies.segment.data import Dataset


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
    device: options.Device = "auto",
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
        from legato.cli.segment.panels_figure import Column, draw_panels, spread_out
        from legato.errors import InputError

        if len(sources) not in (1, 2):
            raise InputError(f"compare takes two models or one folder, not {len(sources)} paths.")
        if out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
            raise InputError(f"--out names a picture, .jpg or .png, not {out}.")
        if len(sources) == 1:
            found, maps, weights = _from_folder(sources[0], data, images, masks, classes, split)
        else:
            found, maps, weights = _from_models(
                sources, data, images, masks, split, network, precision, device
            )
        chosen = spread_out(found, maps[1], maps[0], count)
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_panels(
            out,
            [found[index] for index in chosen],
            [Column("CNN", maps[0]), Column("CNN + global", maps[1])],
            found.class_names,
            found.palette,
            weights=weights,
        )
        _say_difference(found, maps)
        say(f"Picture: {out}")


def _from_models(
    sources: list[Path], data: Path | None, images: Path | None, masks: Path | None,
    split: Path | None, network: str | None, precision: str | None, device: str,
) -> tuple[Dataset, list[dict[str, Tensor]], dict[str, Tensor] | None]:  # fmt: skip
    from legato.cli.segment.choices import own_network, precision_of
    from legato.cli.segment.data_source import open_for_model
    from legato.console.options import device_of
    from legato.errors import InputError
    from legato.studies.segment.evaluation import evaluate
    from legato.studies.segment.model_files import load_model
    from legato.studies.segment.weight_pictures import weight_pictures

    where, kind = device_of(device), precision_of(precision, device)
    models = [load_model(path, own_network(network)) for path in sources]
    classes = models[0][1].classes
    if models[1][1].classes != classes:
        raise InputError(
            f"The two models tell different classes apart: {', '.join(classes)}, and "
            f"{', '.join(models[1][1].classes)}."
        )
    if models[0][1].layer is not None and models[1][1].layer is None:
        raise InputError(
            f"{sources[0]} has the layer and {sources[1]} has none: give the model without it "
            "first, so that the columns have the right names."
        )
    found, which = open_for_model(sources[0].parent, classes, data, images, masks, split)
    say(f"On {which}.")
    maps: list[dict[str, Tensor]] = [{}, {}]
    with progress_bar() as shown:
        task = shown.add_task("segmenting", total=2)
        for (model, _), kept in zip(models, maps, strict=True):
            evaluate(model, found, len(classes), where, kind, kept)
            shown.advance(task)
    layer = models[1][1].layer
    weights = None
    if layer is not None and layer.weights != "uniform":
        weights = weight_pictures(models[1][0], found, where)
    return found, maps, weights


def _from_folder(
    folder: Path, data: Path | None, images: Path | None, masks: Path | None, classes: str,
    split: Path | None,
) -> tuple[Dataset, list[dict[str, Tensor]], dict[str, Tensor] | None]:  # fmt: skip
    from legato.cli.segment.data_source import open_for_model
    from legato.errors import InputError

    maps = [_label_maps(folder / f"labels-{name}.pt") for name in ("control", "global")]
    found, _ = open_for_model(folder.parent, None, data, images, masks, split, kind=classes)
    wanted = [name for name in found.names if all(name in one for one in maps)]
    if not wanted:
        raise InputError(
            f"The label maps in {folder} are of other images than the data set's. Give the data "
            "they were made from with --data."
        )
    weights = folder / "weights.pt"
    return found.subset(wanted), maps, _label_maps(weights) if weights.exists() else None


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


def _say_difference(found: Dataset, maps: list[dict[str, Tensor]]) -> None:
    from legato.studies.segment.evaluation import score_labels

    scores = [score_labels(one, found) for one in maps]
    for name, score in zip(("CNN", "CNN + global"), scores, strict=True):
        say(f"{name:<13} accuracy {score.accuracy:.2f} %   mean IoU {score.iou:.2f} %")
    gain = [scores[1].accuracy - scores[0].accuracy, scores[1].iou - scores[0].iou]
    say(f"{'gain':<13} accuracy {gain[0]:+.2f}     mean IoU {gain[1]:+.2f}")
