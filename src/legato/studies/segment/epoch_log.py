"""The course of a training as a table: one line an epoch."""

from __future__ import annotations

import csv
import io
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from legato._support.files import write_text
from legato.errors import CheckpointWarning

COLUMNS = ("epoch", "loss", "accuracy", "iou", "lr", "seconds")


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
        self.rows.append({name: str(values.get(name, "")) for name in COLUMNS})
        self._write()

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
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
