"""Training with Lightning: resumable, reproducible, on one device or many."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from legato.errors import InputError
from legato.studies.segment.checkpoints import AtomicCheckpoints, LastEpoch, require_resumable
from legato.studies.segment.data import Dataset
from legato.studies.segment.epoch_log import EpochLog
from legato.studies.segment.global_layer import Segmenter
from legato.studies.segment.loaders import SegmentationData
from legato.studies.segment.pixel_loss import pixel_loss
from legato.studies.segment.settings import ModelSettings, Recipe
from legato.studies.segment.training_module import Training

__all__ = ["Training", "pixel_loss", "train"]


def train(
    model: Segmenter,
    settings: ModelSettings,
    recipe: Recipe,
    data: Dataset,
    folder: Path,
    *,
    validation: Dataset | None = None,
    validate_every: int = 1,
    callbacks: list[Callback] | None = None,
    log: bool = True,
) -> Training:
    """Train, or take up an interrupted training of the same folder, and save after each epoch."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    module = Training(model, settings, recipe)
    checkpoint = folder / "last.ckpt"
    resume = checkpoint if checkpoint.exists() else None
    if resume is not None:
        require_resumable(resume, settings, recipe)
    with _quiet(), _interruptible():
        trainer = _trainer(
            recipe, folder, callbacks or [], log, validation is not None, validate_every
        )
        trainer.fit(
            module,
            datamodule=SegmentationData(data, validation, recipe),
            ckpt_path=None if resume is None else str(resume),
            weights_only=True if resume is not None else None,
        )
    return module


def _trainer(
    recipe: Recipe,
    folder: Path,
    callbacks: list[Callback],
    log: bool,
    validates: bool,
    validate_every: int,
) -> L.Trainer:
    many = recipe.devices * recipe.nodes > 1
    logger = _tensorboard(folder) if log and recipe.tensorboard else False
    try:
        return L.Trainer(
            accelerator=recipe.accelerator,
            devices=recipe.devices,
            num_nodes=recipe.nodes,
            strategy="ddp" if many else "auto",
            precision=recipe.precision,  # type: ignore[arg-type]
            max_epochs=recipe.epochs,
            callbacks=[
                *([EpochLog(folder)] if log else []),
                *callbacks,
                LastEpoch(folder, recipe.save_every),
            ],
            logger=logger,
            plugins=[AtomicCheckpoints()],
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            limit_val_batches=None if validates else 0,
            check_val_every_n_epoch=validate_every,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=10,
            default_root_dir=folder,
        )
    except (ValueError, RuntimeError, L.fabric.utilities.exceptions.MisconfigurationException) as e:
        raise InputError(
            f"This machine cannot train with accelerator={recipe.accelerator!r}, devices="
            f"{recipe.devices}, nodes={recipe.nodes}, precision={recipe.precision!r}: {e}"
        ) from e


def _tensorboard(folder: Path) -> TensorBoardLogger:
    try:
        return TensorBoardLogger(folder, name="tensorboard", version="")
    except ModuleNotFoundError as error:
        raise InputError(
            "Logs for TensorBoard need a package of that name: pip install tensorboard, or train "
            "without them; log.csv has the same numbers."
        ) from error


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt, and SIGTERM, which batch systems send, ends with 143.

    Lightning turns the first into an exit and ignores the next one; the second it makes an exit
    with code 0, after which a script would go on as if the training had finished.
    """
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if isinstance(error, SIGTERMException):
            raise SystemExit(128 + signal.SIGTERM) from error
        raise
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's advice on workers and loggers, which the settings decide."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
        warnings.filterwarnings("ignore", message=".*number of training batches.*")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        loggers = [logging.getLogger(f"lightning.{name}") for name in ("pytorch", "fabric")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
