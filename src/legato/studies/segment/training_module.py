"""What Lightning trains: a model with its loss, optimiser and metrics."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from legato.errors import InputError, NonFiniteLossError
from legato.studies.segment.checkpoints import describe
from legato.studies.segment.data import IGNORE, Batch
from legato.studies.segment.global_layer import Segmenter
from legato.studies.segment.pixel_loss import pixel_loss
from legato.studies.segment.settings import ModelSettings, Recipe


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
        total = pixel_loss(found, batch.labels, self.recipe.loss)
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
        labels = self.model(batch.image, batch.inside).labels
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
        if recipe.optimiser == "sgd":
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
