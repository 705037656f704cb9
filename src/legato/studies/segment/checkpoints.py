"""The state of a training on disk, whole at every moment."""

from __future__ import annotations

import errno
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from legato._support.files import replacing
from legato.console.runs import differences
from legato.errors import CheckpointError, CheckpointWarning
from legato.studies.segment.settings import MACHINERY, ModelSettings, Recipe

_MODEL, _RECIPE = "legato_model", "legato_recipe"


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoint files that are replaced as a whole; one that cannot be written warns."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                torch.save(checkpoint, temporary)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            warnings.warn(
                f"The checkpoint {target} could not be written ({error}). The training goes on, "
                "and the last good checkpoint, if there was one, is untouched."
                + (" The disk is full." if full else ""),
                CheckpointWarning,
                stacklevel=2,
            )


class LastEpoch(Checkpoint):
    """``last.ckpt``, replaced every so many epochs and after the last.

    Lightning's own callback would also delete the checkpoint that an older run, perhaps in a folder
    that was copied since, remembers as its best.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self.path = folder / "last.ckpt"
        self.every = every

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        done = trainer.current_epoch + 1
        if done % self.every == 0 or done == trainer.max_epochs:
            trainer.save_checkpoint(self.path)


def describe(settings: ModelSettings, recipe: Recipe) -> dict[str, Any]:
    """What a checkpoint says of the training it belongs to, in plain words and numbers."""
    found = {_MODEL: asdict(settings), _RECIPE: asdict(recipe)}
    return dict(json.loads(json.dumps(found)))  # without our own types, which no reader trusts


def require_resumable(
    path: Path, settings: ModelSettings, recipe: Recipe, names: set[str] | None = None
) -> None:
    """Raise CheckpointError unless the file is a checkpoint of this very training.

    ``names`` are those of the tensors that the training will look for in it.
    """
    try:
        # Tensors and plain values only: a file from elsewhere cannot run code. Mapped, not read.
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        model, made, tensors = stored[_MODEL], stored[_RECIPE], set(stored["state_dict"])
    except Exception as error:  # a damaged archive raises whatever its reader stumbles on
        raise CheckpointError(
            f"The checkpoint {path} cannot be read ({type(error).__name__}: {error}): it is "
            "damaged, or not a checkpoint of `legato segment train`. Delete it to start over."
        ) from error
    another = differences(model, settings)
    differing = another + differences(made, recipe, MACHINERY)
    if differing:
        what = "another model" if another else "another recipe"
        raise CheckpointError(
            f"The checkpoint {path} belongs to {what}: {'; '.join(differing)}. Choose another "
            "output folder, repeat the settings of that run to go on with it, or delete the "
            "checkpoint to start over."
        )
    if names is not None and names != tensors:
        raise CheckpointError(
            f"The checkpoint {path} was written by another version of legato: "
            f"{len(names ^ tensors)} of its tensors have other names. Delete it to start over, or "
            "go on with the version that wrote it."
        )
