"""``legato segment evaluate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from legato.console.options import Device
from legato.console.talking import reporting_errors, say
from legato.studies.segment import options

_TIMED = 20  # images whose time is taken


def evaluate(
    model: options.ModelFile,
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.KnownClasses = None,
    split: options.SplitFile = None,
    network: options.OwnNetwork = None,
    precision: options.Precision = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON here too.")
    ] = None,
) -> None:
    """Measure a model: accuracy, mean IoU, IoU of each class, milliseconds an image,
    as JSON.

    On the test images of the split that lies beside the model; on all where there
    is none.
    """
    with reporting_errors():
        from legato._support.files import write_text
        from legato.console.options import device_of
        from legato.console.provenance import provenance
        from legato.errors import InputError
        from legato.studies.segment import evaluation
        from legato.studies.segment.choices import ImageOptions, own_network, precision_of
        from legato.studies.segment.data import collate
        from legato.studies.segment.model import load_model

        if classes is not None and data is None:
            raise InputError("--classes is for --data: other images come with their own classes.")
        where = device_of(device)
        loaded, settings = load_model(model, own_network(network))
        asked = ImageOptions(data, images, masks, split)
        found, which = asked.open(model.parent, settings.classes, classes)
        kind = precision_of(precision, device)
        score = evaluation.evaluate(loaded, found, len(settings.classes), where, kind)
        timed = [collate([found[index]]) for index in range(min(_TIMED, len(found)))]
        predict = evaluation.predictor(loaded, where, kind)
        result = {
            "model": str(model),
            "on": which,
            **asdict(score),
            "iou_per_class": dict(zip(settings.classes, score.iou_per_class, strict=True)),
            "milliseconds_per_image": evaluation.milliseconds(predict, timed, where),
            "precision": kind,
            **provenance(where),
        }
        text = json.dumps(result, indent=1, ensure_ascii=False)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, text + "\n")
        say(text)
