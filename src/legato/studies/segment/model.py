"""From settings to a model."""

from __future__ import annotations

from torch import nn

from legato.errors import InputError
from legato.studies.segment.global_layer import (
    GlobalLayer,
    ImageContrast,
    LearnedEdges,
    Segmenter,
    UniformWeights,
)
from legato.studies.segment.networks import FCN32, SmallNet
from legato.studies.segment.settings import LayerSettings, ModelSettings


def build(settings: ModelSettings) -> Segmenter:
    """The model that the settings describe, freshly initialised."""
    network = {"small": SmallNet, "fcn32": FCN32}[settings.network](len(settings.classes))
    return attach(network, settings.layer, len(settings.classes))


def attach(network: nn.Module, layer: LayerSettings | None, classes: int) -> Segmenter:
    """Any network with the layer that the settings describe after it."""
    if layer is None:
        return Segmenter(network)
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
    )


def _weights(layer: LayerSettings, network: nn.Module, classes: int) -> nn.Module:
    if layer.weights == "uniform":
        return UniformWeights()
    if layer.weights == "contrast":
        return ImageContrast(layer.neighbours)
    channels = getattr(network, "channels", None)
    if channels is None:
        raise InputError(
            f"Learned weights need features, but {type(network).__name__} does not say how many "
            "channels its feature maps have. Return Scores(logits, features) from it and name "
            "their channels in an attribute `channels`, or use contrast weights."
        )
    return LearnedEdges(channels, classes if layer.per_class else 1, layer.neighbours)
