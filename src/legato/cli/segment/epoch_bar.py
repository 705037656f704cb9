"""Lightning's epochs as a bar on the terminal."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.progress import Progress

from legato.console.talking import progress_bar


class EpochBar(Callback):
    """One bar over all steps, with the latest loss and scores."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._bar = progress_bar()
        self._bar.start()
        self._bar.add_task(
            "training",
            total=int(trainer.estimated_stepping_batches),
            completed=trainer.global_step,
        )

    def on_train_batch_end(self, trainer: L.Trainer, *rest: object) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is None:
            return
        found = trainer.callback_metrics
        words = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"]
        if "loss" in found:
            words.append(f"loss {float(found['loss']):.3f}")
        if "iou" in found:
            words.append(f"IoU {100 * float(found['iou']):.1f}")
        self._bar.update(self._bar.task_ids[0], description="  ".join(words))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
