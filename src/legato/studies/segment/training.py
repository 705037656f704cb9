"""Training with Lightning: resumable, reproducible, on one device or many."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from legato.errors import InputError, NonFiniteLossError
from legato.nn import SoftmaxLoss
from legato.studies.segment.checkpoints import (
    AtomicCheckpoints,
    LastEpoch,
    describe,
    require_resumable,
)
from legato.studies.segment.data import IGNORE, Batch, Dataset
from legato.studies.segment.epochs import EpochLog
from legato.studies.segment.loaders import SegmentationData
from legato.studies.segment.model import Segmenter
from legato.studies.segment.settings import Loss, ModelSettings, Optimiser, Recipe


class Training(L.LightningModule):
    """A model with its loss, optimiser and metrics."""

    def __init__(self, model: Segmenter, settings: ModelSettings, recipe: Recipe) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.recipe = recipe
        count = len(settings.classes)
        self.accuracy = MulticlassAccuracy(count, average="micro", ignore_index=IGNORE)
        self.iou = MulticlassJaccardIndex(count, average="macro", ignore_index=IGNORE)
        self.loss = loss_of(model, recipe.loss)
        if recipe.freeze_network:
            model.network.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        # Dropout of an epoch depends on the seed and the epoch alone: a resumed run repeats it.
        torch.manual_seed(100_003 * self.recipe.seed + 1009 * self.current_epoch + self.global_rank)
        if self.recipe.freeze_network:
            self.model.network.eval()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        try:
            found = self.model(batch.image, batch.inside)
        except InputError as error:  # the solver refuses NaN, where it can look without waiting
            if self._finite():
                raise
            raise self._diverged() from error
        total = self.loss(found, batch.labels)
        # The mean over the labelled pixels of all processes, so that their number does not matter.
        count = (batch.labels != IGNORE).sum().to(total)
        if self.trainer.world_size > 1:
            count = self.trainer.strategy.reduce(count.clone(), reduce_op="mean")
        loss = total / count.clamp(min=1)
        self.log(
            "loss",
            loss.detach(),
            on_step=False,
            on_epoch=True,
            sync_dist=True,
            batch_size=len(batch.names),
        )
        return loss

    def on_train_epoch_end(self) -> None:
        # Lightning calls this before it saves: a checkpoint never holds NaN. Once an epoch, since
        # looking at a value makes a GPU wait.
        loss = self.trainer.callback_metrics.get("loss")
        if (loss is not None and not bool(torch.isfinite(loss))) or not self._finite():
            raise self._diverged()

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.model.parameters())

    def _diverged(self) -> NonFiniteLossError:
        return NonFiniteLossError(
            "The training diverged: its loss or its weights became NaN or infinite in epoch "
            f"{self.current_epoch}. Lower the learning rate; the checkpoint of the epoch before, "
            "if there is one, is untouched."
        )

    def validation_step(self, batch: Batch, index: int) -> None:
        labels = self.model(batch.image, batch.inside).argmax(1)
        self.accuracy.update(labels, batch.labels)
        self.iou.update(labels, batch.labels)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(
            {"accuracy": self.accuracy.compute(), "iou": self.iou.compute()}, sync_dist=True
        )
        self.accuracy.reset()
        self.iou.reset()

    def configure_optimizers(self) -> Any:
        recipe = self.recipe
        groups = parameter_groups(self.model, recipe)
        if recipe.optimiser == Optimiser.SGD:
            optimiser: torch.optim.Optimizer = torch.optim.SGD(groups, momentum=0.9)
        else:
            optimiser = torch.optim.AdamW(groups, fused=self.device.type == "cuda")
        steps = int(self.trainer.estimated_stepping_batches)
        warm = max(1, steps // 50)

        def factor(step: int) -> float:  # a short warm-up, then the usual polynomial decay
            return min(1.0, (step + 1) / warm) * (1 - step / (steps + 1)) ** 0.9

        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(describe(self.settings, self.recipe))


def parameter_groups(model: Segmenter, recipe: Recipe) -> list[dict[str, Any]]:
    """The network with its own rate; what was added to it with faster ones, the scalars fastest."""
    groups = [
        {
            "params": [p for p in model.network.parameters() if p.requires_grad],
            "lr": recipe.lr,
            "weight_decay": recipe.weight_decay,
        }
    ]
    new = [p for part in (model.refine, model.layer) if part is not None for p in part.parameters()]
    scalars, others = [p for p in new if p.ndim == 0], [p for p in new if p.ndim > 0]
    groups += [
        {"params": scalars, "lr": recipe.layer_lr, "weight_decay": 0.0},
        {"params": others, "lr": recipe.layer_lr / 10, "weight_decay": recipe.weight_decay},
    ]
    return [group for group in groups if group["params"]]


def loss_of(model: Segmenter, kind: Loss) -> nn.NLLLoss:
    """The chosen loss, summed over labelled pixels so that those of all processes weigh alike.

    Without a global layer both are the network's cross-entropy: with W = 0 the layer is a softmax.
    """
    paper = kind == Loss.PAPER and model.layer is not None
    return (SoftmaxLoss if paper else nn.NLLLoss)(ignore_index=IGNORE, reduction="sum")


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
        require_resumable(resume, settings, recipe, set(module.state_dict()))
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
