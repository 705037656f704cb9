"""``legato segment train``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legato.cli.segment import options
from legato.console.talking import reporting_errors, say

if TYPE_CHECKING:
    from legato.console.runs import RunFolder
    from legato.studies.segment.data import Dataset, Split
    from legato.studies.segment.global_layer import Segmenter

# What may change when a run is taken up again: where it computes, not what.
_FREE = tuple(
    f"recipe.{name}"
    for name in ("workers", "devices", "nodes", "accelerator", "tensorboard", "save_every")
)


def train(
    data: options.Data = None,
    images: options.Images = None,
    masks: options.Masks = None,
    classes: options.Classes = "surfaces",
    names: options.Names = None,
    split: options.SplitFile = None,
    network: options.Network = "small",
    weights: options.Weights = None,
    layer: options.Layer = "none",
    neighbours: options.Neighbours = None,
    iterations: options.Iterations = None,
    start: options.Start = None,
    loss: options.Loss = "log",
    optimiser: options.Optimiser = "adam",
    epochs: options.Epochs = None,
    batch: options.BatchSize = 5,
    lr: options.Rate = None,
    seed: options.Seed = 0,
    precision: options.Precision = None,
    device: options.Device = "auto",
    devices: options.Devices = 1,
    nodes: options.Nodes = 1,
    workers: options.Workers = 0,
    tensorboard: options.TensorBoard = False,
    quick: options.Quick = False,
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
        from legato.cli.segment.choices import (
            QUICK_ITERATIONS,
            kind_of,
            layer_of,
            new_model,
            own_network,
            recipe_of,
        )
        from legato.cli.segment.data_source import open_split, source_of
        from legato.console.options import device_of, listed
        from legato.console.runs import RunFolder, require_same
        from legato.studies.segment.checkpoints import require_resumable
        from legato.studies.segment.settings import LayerSettings, ModelSettings

        recipe = recipe_of(
            network, quick=quick, epochs=epochs, lr=lr, optimiser=optimiser, precision=precision,
            device=device, batch=batch, loss=loss, seed=seed, devices=devices, nodes=nodes,
            workers=workers, tensorboard=tensorboard,
        )  # fmt: skip
        usual = QUICK_ITERATIONS if quick else LayerSettings.iterations
        described_layer = layer_of(layer, neighbours, iterations or usual)
        source = source_of(
            data, images, masks, classes=classes, quick=quick,
            names=listed(names),
        )  # fmt: skip
        found = source.open()
        described = ModelSettings(tuple(found.class_names), kind_of(network), described_layer)
        folder = out or Path("out/segment") / f"{kind_of(network)}-{layer}"
        settings = {
            "model": asdict(described),
            "recipe": asdict(recipe),
            "data": asdict(source),
            "network": network,
            "start": None if start is None else str(start),
        }
        where = device_of(device)
        require_same(folder, settings, _FREE)
        parts = open_split(found, split, folder / "split.json")
        leads = _leads()
        if leads and _finished(folder):
            return

        import torch

        torch.manual_seed(seed)
        model = new_model(described, network, "random" if start is not None else weights)
        if start is not None:
            _take_network(model, start, own_network(network if ":" in network else None))
        if (folder / "last.ckpt").exists():
            require_resumable(folder / "last.ckpt", described, recipe)
        run = RunFolder(folder)  # not before all else is known to be right
        if leads:
            run.begin(settings, where)
            parts.save(run.path / "split.json")
        _run(run, model, described, recipe, found, parts, where, leads)


def _run(
    run: RunFolder, model: Segmenter, described: Any, recipe: Any, data: Dataset, parts: Split,
    device: str, leads: bool,
) -> None:  # fmt: skip
    from legato.cli.segment.epoch_bar import EpochBar
    from legato.studies.segment.model_files import save_model
    from legato.studies.segment.training import train as fit

    test = data.subset(parts.test)
    fit(
        model, described, recipe, data.subset(parts.train), run.path, validation=test,
        validate_every=max(1, recipe.epochs // 20), callbacks=[EpochBar()],
    )  # fmt: skip
    if not leads:  # one process is enough to write
        return
    save_model(model, described, run.path / "model.safetensors")
    labels: dict[str, Any] = {}
    results = _scores(model, data, parts, device, recipe.precision, labels)
    _draw(run, data, parts, labels)
    written = run.finish(results, device)
    _say_scores(results)
    say(f"Model:    {run.path / 'model.safetensors'}")
    say(f"Numbers:  {written}")
    say(f"Pictures: {run.path / 'figures'}")


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


def _take_network(model: Segmenter, start: Path, own: Any) -> None:
    from legato.errors import CheckpointError, InputError
    from legato.studies.segment.model_files import load_model, take_tensors

    other, _ = load_model(start, own)
    try:
        take_tensors(model.network, other.network.state_dict())
    except InputError as error:
        raise CheckpointError(
            f"The network in {start} is another than the one to train ({error})."
        ) from error


def _scores(
    model: Segmenter, data: Dataset, parts: Split, device: str, precision: str,
    labels: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    from legato.console.talking import progress_bar
    from legato.studies.segment.evaluation import evaluate

    found: dict[str, Any] = {}
    with progress_bar() as shown:
        task = shown.add_task("scoring", total=2)
        for name, part in (("train", parts.train), ("test", parts.test)):
            score = evaluate(
                model, data.subset(part), len(data.class_names), device, precision,
                labels if name == "test" else None,
            )  # fmt: skip
            found[name] = asdict(score)
            shown.advance(task)
    return found


def _draw(run: RunFolder, data: Dataset, parts: Split, labels: dict[str, Any]) -> None:
    from legato.cli.segment.course_figure import draw_course
    from legato.cli.segment.panels_figure import Column, draw_panels, spread_out
    from legato.studies.segment.epoch_log import read_log

    draw_course(run.figure("course.png"), read_log(run.path / "log.csv"))
    test = data.subset(parts.test)
    chosen = spread_out(test, labels, None, 6)
    draw_panels(
        run.figure("predictions.jpg"),
        [test[index] for index in chosen],
        [Column("prediction", labels)],
        data.class_names,
        data.palette,
    )


def _say_scores(results: dict[str, Any]) -> None:
    for name in ("train", "test"):
        score = results[name]
        say(f"{name:<5}  accuracy {score['accuracy']:.2f} %   mean IoU {score['iou']:.2f} %")


def _leads() -> bool:
    """Whether this is the process that writes and talks, of those that Lightning started."""
    ranks = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "GROUP_RANK")
    return all(int(os.environ.get(name) or 0) == 0 for name in ranks)
