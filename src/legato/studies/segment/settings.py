"""Everything a training depends on, as data that can be written beside its results."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from legato.errors import InputError

CUSTOM = "custom"
"""A network of the user's, which the settings name but cannot build."""
NETWORKS = ("small", "fcn32", CUSTOM)
WEIGHTS = ("uniform", "contrast", "learned")
LOSSES = ("log", "paper")
OPTIMISERS = ("adam", "sgd")
PRECISIONS = ("32", "bf16-mixed")


@dataclass(frozen=True)
class LayerSettings:
    """The global layer: where its weights come from and how it is solved."""

    weights: str = "contrast"
    per_class: bool = True  # learned weights: one for each class
    neighbours: int = 4
    iterations: int = 100
    balance: float = 5.0
    average: bool = False
    last: int | None = None  # differentiate the last K iterations only

    def __post_init__(self) -> None:
        _require("weights", self.weights, WEIGHTS)
        if self.neighbours not in (4, 8):
            raise InputError(f"neighbours must be 4 or 8, not {self.neighbours!r}.")
        if self.iterations < 1:
            raise InputError(f"iterations must be at least 1, not {self.iterations}.")
        if self.last is not None and self.last < 1:
            raise InputError(f"last must be at least 1 iteration, not {self.last}.")


@dataclass(frozen=True)
class ModelSettings:
    """A network, and the layer after it if there is one."""

    classes: tuple[str, ...]
    network: str = "small"
    layer: LayerSettings | None = None
    refine: bool = False  # add scores from fine features to the network's

    def __post_init__(self) -> None:
        _require("network", self.network, NETWORKS)
        if len(self.classes) < 2:
            raise InputError(f"A segmentation needs at least 2 classes, not {self.classes!r}.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> ModelSettings:
        """The settings of :meth:`to_dict`; what is missing or unknown raises InputError."""
        try:
            layer = stored["layer"]
            return cls(
                classes=tuple(stored["classes"]),
                network=stored["network"],
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
    optimiser: str = "adam"
    weight_decay: float = 0.0
    loss: str = "log"
    freeze_network: bool = False  # train the layer alone
    scale: tuple[float, float] = (0.8, 1.25)  # range of random magnifications
    crop: tuple[int, int] | None = None  # height and width of random windows
    colour: float = 0.2  # strength of random changes of brightness, contrast, saturation
    seed: int = 0
    workers: int = 0
    precision: str = "32"  # of the network; the solver computes in float32 always
    devices: int = 1
    nodes: int = 1
    accelerator: str = "auto"
    tensorboard: bool = False
    save_every: int = 1  # epochs between checkpoints

    def __post_init__(self) -> None:
        _require("loss", self.loss, LOSSES)
        _require("optimiser", self.optimiser, OPTIMISERS)
        _require("precision", self.precision, PRECISIONS)
        for name in ("epochs", "batch", "devices", "nodes", "save_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("lr", "layer_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.workers < 0:
            raise InputError(f"workers must be at least 0, not {self.workers}.")


def _require(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
