"""Everything a training depends on, as data that can be written beside its results."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from legato.errors import InputError


class _Choice(StrEnum):
    """One of a few words; another one raises InputError and is told which there are."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InputError(f"{cls.__name__.lower()} must be one of {', '.join(cls)}, not {value!r}.")


class Network(_Choice):
    """The network: the paper's small one, VGG-32s, or the user's, which settings cannot build."""

    SMALL = "small"
    VGG32 = "vgg32"
    CUSTOM = "custom"


class Weights(_Choice):
    """Where the global layer's weights come from."""

    UNIFORM = "uniform"
    CONTRAST = "contrast"
    LEARNED = "learned"


class Loss(_Choice):
    """−log u, or the paper's softmax loss on u."""

    LOG = "log"
    PAPER = "paper"


class Optimiser(_Choice):
    """What takes the steps of the training."""

    ADAM = "adam"
    SGD = "sgd"


class Precision(_Choice):
    """Of the network, by Lightning's names; the solver computes in float32 always."""

    FULL = "32"
    MIXED = "bf16-mixed"


def _require_positive(settings: Any, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1, not {getattr(settings, name)}.")


@dataclass(frozen=True)
class LayerSettings:
    """The global layer: where its weights come from and how it is solved."""

    weights: Weights = Weights.CONTRAST
    per_class: bool = True  # learned weights: one for each class
    neighbours: int = 4
    iterations: int = 100
    balance: float = 5.0
    average: bool = False
    last: int | None = None  # differentiate the last K iterations only

    def __post_init__(self) -> None:
        Weights(self.weights)
        if self.neighbours not in (4, 8):
            raise InputError(f"neighbours must be 4 or 8, not {self.neighbours!r}.")
        _require_positive(self, "iterations")
        if self.last is not None:
            _require_positive(self, "last")


@dataclass(frozen=True)
class ModelSettings:
    """A network, and the layer after it if there is one."""

    classes: tuple[str, ...]
    network: Network = Network.SMALL
    layer: LayerSettings | None = None
    refine: bool = False  # add scores from fine features to the network's

    def __post_init__(self) -> None:
        Network(self.network)
        if len(self.classes) < 2:
            raise InputError(f"A segmentation needs at least 2 classes, not {self.classes!r}.")

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> ModelSettings:
        """The settings that ``asdict`` made; what is missing or unknown raises InputError."""
        try:
            layer = stored["layer"]
            return cls(
                classes=tuple(stored["classes"]),
                network=Network(stored["network"]),
                layer=None if layer is None else LayerSettings(**layer),
                refine=stored["refine"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"These are not the settings of a model of this version ({error!r}); expected "
                f"{[f.name for f in fields(cls)]}, found {sorted(stored)}."
            ) from error


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    epochs: int = 20
    batch: int = 5
    lr: float = 1e-3
    layer_lr: float = 1e-2  # of the global layer's parameters
    optimiser: Optimiser = Optimiser.ADAM
    weight_decay: float = 0.0
    loss: Loss = Loss.LOG
    freeze_network: bool = False  # train the layer alone
    scale: tuple[float, float] = (0.8, 1.25)  # range of random magnifications
    crop: tuple[int, int] | None = None  # height and width of random windows
    colour: float = 0.2  # strength of random changes of brightness, contrast, saturation
    seed: int = 0
    workers: int = 0
    precision: Precision = Precision.FULL
    devices: int = 1
    nodes: int = 1
    accelerator: str = "auto"
    tensorboard: bool = False
    save_every: int = 1  # epochs between checkpoints

    def __post_init__(self) -> None:
        Loss(self.loss)
        Optimiser(self.optimiser)
        Precision(self.precision)
        _require_positive(self, "epochs", "batch", "devices", "nodes", "save_every")
        for name in ("lr", "layer_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.workers < 0:
            raise InputError(f"workers must be at least 0, not {self.workers}.")


MACHINERY = ("workers", "devices", "nodes", "accelerator", "tensorboard", "save_every")
"""The parts of a recipe that say where and how to compute, not what: a run may change them."""

RECIPES = {
    Network.SMALL: Recipe(epochs=30, lr=3e-3),
    Network.VGG32: Recipe(
        epochs=20, lr=1e-4, weight_decay=1e-4, scale=(0.75, 1.33), crop=(240, 320), colour=0.3
    ),
    Network.CUSTOM: Recipe(epochs=20, lr=1e-3),
}
"""What suits each network."""
