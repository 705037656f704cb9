"""Batches for training and validation, the same whatever the number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from functools import partial
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Sampler

from legato.studies.segment.data import Augment, Augmented, Dataset, collate
from legato.studies.segment.settings import Recipe


class EpochSampler(Sampler[tuple[int, int]]):
    """A permutation per epoch, as pairs (epoch, index), dealt out to the processes in turn.

    The pair carries the epoch to workers that outlive it; dealing in turn gives a batch of 2 × 3
    on two processes the same six images as a batch of 6 on one.
    """

    def __init__(self, data: Sized, seed: int, rank: int = 0, world: int = 1) -> None:
        self.data, self.seed, self.rank, self.world = data, seed, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:  # called by Lightning
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.data) // self.world)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = torch.Generator().manual_seed(7919 * self.seed + self.epoch)
        order = torch.randperm(len(self.data), generator=generator).tolist()
        order += order[: len(self) * self.world - len(order)]  # as many for each process
        return iter((self.epoch, index) for index in order[self.rank :: self.world])


class SegmentationData(L.LightningDataModule):
    """Loaders of a training set, augmented, and of a validation set at its own sizes."""

    def __init__(self, train: Dataset, validation: Dataset | None, recipe: Recipe) -> None:
        super().__init__()
        augment = Augment(0.5, recipe.scale, recipe.crop, recipe.colour)
        self.train = Augmented(train, augment, recipe.seed)
        self.validation = validation
        self.recipe = recipe

    def _loader(self, data: Any, batch: int, sampler: Any, multiple: int = 1) -> DataLoader[Any]:
        workers = self.recipe.workers
        return DataLoader(
            data,
            batch_size=batch,
            sampler=sampler,
            collate_fn=partial(collate, multiple=multiple),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        sampler = EpochSampler(
            self.train, self.recipe.seed, self.trainer.global_rank, self.trainer.world_size
        )
        # Few sizes: a GPU library looks for its fastest convolution anew for each of them. A CPU
        # has no such search, and would only compute more padding.
        multiple = 80 if self.trainer.strategy.root_device.type == "cuda" else 1
        return self._loader(self.train, self.recipe.batch, sampler, multiple)

    def val_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        assert self.validation is not None
        rank, world = self.trainer.global_rank, self.trainer.world_size
        # Each image once: a sampler that repeats images to fill up would bias the metrics.
        return self._loader(self.validation, 1, range(rank, len(self.validation), world))
