"""What is told of a training, epoch by epoch: a table on disk, a bar on the terminal."""

from __future__ import annotations

import csv
import io
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.progress import Progress

from legato._support.files import write_text
from legato.console.talking import console, progress_bar, say
from legato.errors import CheckpointWarning

_COLUMNS = ("epoch", "loss", "accuracy", "iou", "lr", "seconds")


class EpochLog(Callback):
    """Writes ``log.csv``: the loss of each epoch, and the scores where it was validated.

    A resumed training keeps the lines of the epochs it builds on and replaces the others, so the
    table reads as if nothing had happened; Lightning's own logger would begin a new one.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.csv"
        self.rows: list[dict[str, str]] = []
        self._start = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.rows = [r for r in read_log(self.path) if int(r["epoch"]) < trainer.current_epoch]

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        values: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "seconds": round(time.perf_counter() - self._start, 3),
        }
        for name in ("loss", "accuracy", "iou"):
            if name in trainer.callback_metrics:
                values[name] = float(trainer.callback_metrics[name])
        self.rows.append({name: str(values.get(name, "")) for name in _COLUMNS})
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        try:
            write_text(self.path, text.getvalue())
        except OSError as error:  # a full disk is no reason to lose a training
            warnings.warn(
                f"The log {self.path} could not be written ({error}). The training goes on.",
                CheckpointWarning,
                stacklevel=2,
            )


def read_log(path: Path) -> list[dict[str, str]]:
    """The lines of a log; none if there is no readable one."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError):
        return []
    return [row for row in rows if (row.get("epoch") or "").isdecimal()]


class EpochBar(Callback):
    """One bar over all steps, with the latest loss and scores; in a pipe, a line an epoch."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._start = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._bar = progress_bar()
        self._bar.start()
        steps = int(trainer.estimated_stepping_batches)
        self._bar.add_task("training", total=steps, completed=trainer.global_step)

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
        if self._bar.disable or not console.is_terminal:
            seconds = time.perf_counter() - self._start
            say("  ".join([*words, f"{seconds:.0f} s"]))

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
