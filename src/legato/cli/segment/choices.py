"""From options to settings, with what suits each network where nothing was said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.console.loading import call_factory
from legato.console.options import device_of
from legato.errors import InputError
from legato.studies.segment.settings import CUSTOM, LayerSettings, ModelSettings, Recipe

if TYPE_CHECKING:
    from torch import nn

RECIPES = {
    "small": Recipe(epochs=30, lr=3e-3),
    "fcn32": Recipe(
        epochs=20, lr=1e-4, weight_decay=1e-4, scale=(0.75, 1.33), crop=(240, 320), colour=0.3
    ),
    CUSTOM: Recipe(epochs=20, lr=1e-3),
}
QUICK_EPOCHS = {"small": 12, "fcn32": 1, CUSTOM: 6}
SGD_FACTOR = 30.0  # plain gradients are not rescaled, so they need larger steps
QUICK_ITERATIONS = 30


def kind_of(network: str) -> str:
    """``small``, ``fcn32`` or ``custom``."""
    return CUSTOM if ":" in network else network


def layer_of(kind: str, neighbours: int | None, iterations: int) -> LayerSettings | None:
    """The layer that ``--layer`` names, with the neighbours and balance that suit its weights."""
    if kind == "none":
        return None
    if kind == "learned":
        return LayerSettings(kind, neighbours=neighbours or 8, iterations=iterations, balance=1.0)
    if kind not in ("uniform", "contrast"):
        raise InputError(f"--layer is none, uniform, contrast or learned, not {kind!r}.")
    return LayerSettings(kind, neighbours=neighbours or 4, iterations=iterations)


def recipe_of(
    network: str, *, quick: bool, epochs: int | None, lr: float | None, optimiser: str,
    precision: str | None, device: str, **others: Any,
) -> Recipe:  # fmt: skip
    """How this network is trained, where the options do not say otherwise."""
    kind = kind_of(network)
    if kind not in RECIPES:
        raise InputError(f"--network is small, fcn32 or FILE.py:factory, not {network!r}.")
    usual = RECIPES[kind]
    factor = SGD_FACTOR if optimiser == "sgd" else 1.0
    passes = QUICK_EPOCHS[kind] if quick else usual.epochs
    return replace(
        usual,
        epochs=passes if epochs is None else epochs,
        lr=usual.lr * factor if lr is None else lr,
        layer_lr=usual.layer_lr * factor,
        optimiser=optimiser,
        precision=precision_of(precision, device),
        accelerator={"auto": "auto", "cpu": "cpu"}.get(device, "gpu"),
        **others,
    )


def precision_of(precision: str | None, device: str) -> str:
    """Half precision for the network where the hardware was made for it."""
    if precision is None:
        return "bf16-mixed" if device_of(device).startswith("cuda") else "32"
    return precision


def own_network(target: str | None) -> Callable[[int], nn.Module] | None:
    """The maker of a network of the user's own; None where ``target`` is None."""
    if target is None:
        return None
    if ":" not in target:
        raise InputError(f"--network is FILE.py:factory here, not {target!r}: models of legato's "
                         "own networks know theirs.")  # fmt: skip

    def make(classes: int) -> nn.Module:
        from torch import nn

        from legato.studies.segment.model import require_logits

        network = call_factory(target, classes)
        if not isinstance(network, nn.Module):
            raise InputError(f"{target} made a {type(network).__name__}, not an nn.Module.")
        require_logits(network, classes)
        return network

    return make


def new_model(described: ModelSettings, network: str, weights: str | None) -> Any:
    """A model of these settings, with VGG-16's convolutions where they belong."""
    from legato.studies.segment.model import attach, build
    from legato.studies.segment.networks import FCN32

    if described.network == CUSTOM:
        make = own_network(network)
        assert make is not None
        classes = len(described.classes)
        return attach(make(classes), described.layer, classes)
    model = build(described)
    if isinstance(model.network, FCN32):
        if weights != "random":
            model.network.load_features(vgg_file(weights))
    elif weights not in (None, "random"):
        raise InputError(f"--weights is for fcn32; {described.network} starts from nothing.")
    return model


def vgg_file(weights: str | None) -> Path | None:
    """The file of ``--weights``; None for torchvision."""
    return None if weights in (None, "torchvision") else Path(str(weights))
