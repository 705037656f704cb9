"""``legato segment train``."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legato.console.options import Device, Quick
from legato.console.talking import progress_bar, reporting_errors, say
from legato.studies.segment import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from legato.studies.segment.data import Dataset, Split
    from legato.studies.segment.model import Segmenter
    from legato.studies.segment.settings import Precision


def train(
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.Classes = "surfaces",
    names: options.Names = None,
    split: options.SplitFile = None,
    network: options.Network = "small",
    weights: options.VggWeights = None,
    layer: options.Layer = "none",
    neighbours: options.Neighbours = None,
    iterations: options.Iterations = None,
    average: options.Average = False,
    start: options.Start = None,
    loss: options.Loss = "log",
    optimiser: options.Optimiser = "adam",
    epochs: options.Epochs = None,
    batch: options.BatchSize = 5,
    lr: options.Rate = None,
    seed: options.Seed = 0,
    precision: options.Precision = None,
    device: Device = "auto",
    devices: options.Devices = 1,
    nodes: options.Nodes = 1,
    workers: options.Workers = 0,
    tensorboard: options.TensorBoard = False,
    quick: Quick = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run (default: out/segment/NETWORK-LAYER)."),
    ] = None,
) -> None:
    """Train a network, with or without the global layer after it.

    Writes model.safetensors (what the other commands take), results.json
    (accuracy and IoU on training and test images), figures, log.csv, split.json,
    and last.ckpt after every epoch: the same command in the same folder goes on
    after an interruption, and ends with the same numbers as if there had been
    none.
    """
    with reporting_errors("Interrupted. The same command goes on from the last whole epoch."):
        import torch

        from legato.console.options import device_of, listed
        from legato.console.runs import RunFolder, require_same
        from legato.studies.segment import choices, training
        from legato.studies.segment.checkpoints import require_resumable
        from legato.studies.segment.epochs import EpochBar
        from legato.studies.segment.model import save_model
        from legato.studies.segment.settings import (
            MACHINERY,
            LayerSettings,
            Loss,
            ModelSettings,
            Optimiser,
        )

        kind = choices.kind_of(network)
        usual = choices.usual_recipe(kind, Optimiser(optimiser), quick)
        recipe = replace(
            usual,
            epochs=usual.epochs if epochs is None else epochs,
            lr=usual.lr if lr is None else lr,
            precision=choices.precision_of(precision, device),
            accelerator={"auto": "auto", "cpu": "cpu"}.get(device, "gpu"),
            batch=batch, loss=Loss(loss), seed=seed, devices=devices, nodes=nodes,
            workers=workers, tensorboard=tensorboard,
        )  # fmt: skip
        count = iterations or (choices.QUICK_ITERATIONS if quick else LayerSettings.iterations)
        described_layer = choices.layer_of(layer, neighbours, count, average)
        source = choices.source_of(
            data, images, masks, classes=classes, quick=quick, names=listed(names)
        )
        found = source.open()
        described = ModelSettings(tuple(found.class_names), kind, described_layer)
        folder = out or Path("out/segment") / f"{kind}-{layer}"
        settings = {
            "model": asdict(described),
            "recipe": asdict(recipe),
            "data": asdict(source),
            "network": network,
            "start": None if start is None else str(start),
        }
        where = device_of(device)
        require_same(folder, settings, [f"recipe.{name}" for name in MACHINERY])
        parts = choices.open_split(found, split, folder / "split.json")
        leads = _leads()
        if leads and _finished(folder):
            return
        torch.manual_seed(seed)
        model = choices.new_model(described, network, "random" if start is not None else weights)
        if start is not None:
            _take_network(model, start, choices.own_network(network if ":" in network else None))
        if (folder / "last.ckpt").exists():
            require_resumable(folder / "last.ckpt", described, recipe)
        run = RunFolder(folder)  # not before all else is known to be right
        if leads:
            run.begin(settings, where)
            parts.save(folder / "split.json")
        training.train(
            model, described, recipe, found.subset(parts.train), folder,
            validation=found.subset(parts.test), validate_every=max(1, recipe.epochs // 20),
            callbacks=[EpochBar()],
        )  # fmt: skip
        if not leads:  # one process is enough to write
            return
        save_model(model, described, folder / "model.safetensors")
        labels: dict[str, Any] = {}
        results = _scores(model, found, parts, where, recipe.precision, labels)
        _draw(run.figure, folder / "log.csv", found.subset(parts.test), labels)
        written = run.finish(results, where)
        _say_scores(results)
        say(f"Model:    {folder / 'model.safetensors'}")
        say(f"Numbers:  {written}")
        say(f"Pictures: {folder / 'figures'}")


def _finished(folder: Path) -> bool:
    """Whether the folder holds this very run, finished; says so."""
    from legato.console.runs import results_of

    results = results_of(folder)
    if results is None or not (folder / "model.safetensors").exists():
        return False
    say(
        f"This training is finished; {folder} holds it. Delete the folder to train again, or train "
        f"on from its network with --start {folder / 'model.safetensors'} and another --out."
    )
    _say_scores(results)
    return True


def _take_network(model: Segmenter, start: Path, own: Callable[[int], nn.Module] | None) -> None:
    from legato.errors import CheckpointError, InputError
    from legato.studies.segment.model import load_model
    from legato.studies.segment.networks import take_tensors

    other, _ = load_model(start, own)
    try:
        take_tensors(model.network, other.network.state_dict())
    except InputError as error:
        raise CheckpointError(
            f"The network in {start} is another than the one to train ({error})."
        ) from error


def _scores(
    model: Segmenter, data: Dataset, parts: Split, device: str, precision: Precision,
    labels: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Scores on training and test images; ``labels`` collects what was found in the latter."""
    from legato.studies.segment.evaluation import evaluate

    found: dict[str, Any] = {}
    with progress_bar() as shown:
        for name, part, kept in (("train", parts.train, None), ("test", parts.test, labels)):
            task = shown.add_task(f"scoring {name}", total=1)
            subset = data.subset(part)
            found[name] = asdict(
                evaluate(model, subset, len(data.class_names), device, precision, kept)
            )
            shown.advance(task)
    return found


def _draw(figure: Callable[[str], Path], log: Path, test: Dataset, labels: dict[str, Any]) -> None:
    from legato.studies.segment.epochs import read_log
    from legato.studies.segment.figures import Column, draw_course, draw_panels, spread_out

    draw_course(figure("course.png"), read_log(log))
    draw_panels(
        figure("predictions.jpg"),
        [test[index] for index in spread_out(test, labels, None, 6)],
        [Column("prediction", labels)],
        test.class_names,
        test.palette,
    )


def _say_scores(results: dict[str, Any]) -> None:
    for name in ("train", "test"):
        score = results[name]
        say(f"{name:<5}  accuracy {score['accuracy']:.2f} %   mean IoU {score['iou']:.2f} %")


def _leads() -> bool:
    """Whether this is the process that writes and talks, of those that Lightning started."""
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "GROUP_RANK")
    return all(int(os.environ.get(name) or 0) == 0 for name in ranks)
