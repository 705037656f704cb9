"""From settings to a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from legato.errors import InputError
from legato.studies.segment.fine_features import FineScores
from legato.studies.segment.global_layer import (
    GlobalLayer,
    ImageContrast,
    LearnedEdges,
    Segmenter,
    UniformWeights,
)
from legato.studies.segment.networks import FCN32, Scores, SmallNet
from legato.studies.segment.settings import CUSTOM, LayerSettings, ModelSettings


def build(settings: ModelSettings) -> Segmenter:
    """The model that the settings describe, freshly initialised."""
    if settings.network == CUSTOM:
        raise InputError("A network of your own cannot be built from settings: use attach.")
    network = {"small": SmallNet, "fcn32": FCN32}[settings.network](len(settings.classes))
    return attach(network, settings.layer, len(settings.classes), settings.refine)


def attach(
    network: nn.Module, layer: LayerSettings | None, classes: int, refine: bool = False
) -> Segmenter:
    """Any network with the layer that the settings describe after it."""
    finer = FineScores(_channels(network), classes) if refine else None
    if layer is None:
        return Segmenter(network, refine=finer)
    return Segmenter(
        network,
        GlobalLayer(
            _weights(layer, network, classes),
            iterations=layer.iterations,
            neighbours=layer.neighbours,
            balance=layer.balance,
            bounded=layer.weights == "learned",
            average=layer.average,
            last=layer.last,
        ),
        finer,
    )


def require_logits(network: nn.Module, classes: int) -> None:
    """Raise InputError unless the network maps images to logits of the classes, at any size."""
    was_training = network.training
    network.eval()  # a trial must not change the statistics of normalisation layers
    size = 45, 61
    try:
        with torch.no_grad():
            found = network(torch.full((1, 3, *size), 0.5))
    except Exception as error:  # a network of the user's may raise anything
        raise InputError(
            f"{type(network).__name__} raised {type(error).__name__} on an image of 1 × 3 × "
            f"{size[0]} × {size[1]}: {error}. A network maps images of any size, with values in "
            "[0, 1], to logits of that size."
        ) from error
    finally:
        network.train(was_training)
    logits = found.logits if isinstance(found, Scores) else found
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (1, classes, *size):
        raise InputError(
            f"{type(network).__name__} maps an image of 1 × 3 × {size[0]} × {size[1]} to {shape}; "
            f"logits of shape {(1, classes, *size)} are needed, one for each of the {classes} "
            "classes and every pixel."
        )


def _weights(layer: LayerSettings, network: nn.Module, classes: int) -> nn.Module:
    if layer.weights == "uniform":
        return UniformWeights()
    if layer.weights == "contrast":
        return ImageContrast(layer.neighbours)
    return LearnedEdges(_channels(network), classes if layer.per_class else 1, layer.neighbours)


def _channels(network: nn.Module) -> Sequence[int]:
    channels = getattr(network, "channels", None)
    if channels is None:
        raise InputError(
            f"Learned weights need features, but {type(network).__name__} does not say how many "
            "channels its feature maps have. Return Scores(logits, features) from it and name "
            "their channels in an attribute `channels`, or use contrast weights."
        )
    return channels
