"""A network with the global layer after it: built from settings, kept in single files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from legato._support.files import replacing
from legato.errors import CheckpointError, InputError
from legato.gradients import Unroll
from legato.nn import ContrastWeights, GlobalLayer, LearnedEdges, UniformWeights
from legato.studies.segment.networks import (
    VGG32,
    FineScores,
    Scores,
    SmallNet,
    take_tensors,
)
from legato.studies.segment.settings import LayerSettings, ModelSettings, Network, Weights

_KEY = "legato_segmenter"


class Segmenter(nn.Module):
    """A network, with or without the global layer after it: images to log-probabilities.

    ``network`` is any module that maps images (B, 3, H, W) in [0, 1] to logits (B, L, H, W), or to
    :class:`Scores`; ``refine`` adds to its logits what its fine features say.
    """

    def __init__(
        self,
        network: nn.Module,
        layer: GlobalLayer | None = None,
        refine: FineScores | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.refine = refine
        self.layer = layer

    def scores(self, image: Tensor) -> Scores:
        """What the network says, refined where that was asked for."""
        scores = self.network(image)
        if not isinstance(scores, Scores):
            scores = Scores(scores)
        if scores.logits.shape[-2:] != image.shape[-2:]:
            raise InputError(
                f"The network returned logits of size {tuple(scores.logits.shape[-2:])} for images "
                f"of size {tuple(image.shape[-2:])}; upsample them in the network."
            )
        if self.refine is None:
            return scores
        finer = scores.logits.float() + self.refine(image, scores.features)
        return Scores(finer, scores.features)

    def forward(self, image: Tensor, inside: Tensor | None = None) -> Tensor:
        logits, features = self.scores(image)
        if self.layer is None:
            return logits.float().log_softmax(1)
        return self.layer(logits, image, features, inside)


def build(settings: ModelSettings, network: Callable[[int], nn.Module] | None = None) -> Segmenter:
    """The model that the settings describe, freshly initialised.

    A network of the user's own is made by ``network(number of classes)``.
    """
    classes, layer = len(settings.classes), settings.layer
    if (settings.network == Network.CUSTOM) != (network is not None):
        raise InputError(
            "its network is your own: give it again with --network FILE.py:factory"
            if network is None
            else f"its network is {str(settings.network)!r}: leave --network out"
        )
    make = network or {Network.SMALL: SmallNet, Network.VGG32: VGG32}[settings.network]
    made = make(classes)
    finer = FineScores(_channels(made), classes) if settings.refine else None
    if layer is None:
        return Segmenter(made, refine=finer)
    return Segmenter(
        made,
        GlobalLayer(
            _weights(layer, made, classes),
            iterations=layer.iterations,
            neighbours=layer.neighbours,
            balance=layer.balance,
            max_weight=1.0 if layer.weights == Weights.LEARNED else None,
            average=layer.average,
            gradient=Unroll(last=layer.last),
        ),
        finer,
    )


def _weights(layer: LayerSettings, network: nn.Module, classes: int) -> nn.Module:
    if layer.weights == Weights.UNIFORM:
        return UniformWeights()
    if layer.weights == Weights.CONTRAST:
        return ContrastWeights(neighbours=layer.neighbours)
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


def save_model(model: Segmenter, settings: ModelSettings, path: Path) -> None:
    """Write a model to a safetensors file, atomically: weights and settings, no code."""
    tensors = {
        # Copies: two names of one tensor, as tied weights have, cannot be stored otherwise.
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_KEY: json.dumps(asdict(settings))})


def load_model(
    path: Path, network: Callable[[int], nn.Module] | None = None
) -> tuple[Segmenter, ModelSettings]:
    """Read a model of :func:`save_model`; the settings in the file say what it is.

    A network of the user's own is made by ``network(number of classes)``: the file names no code.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The model {path} cannot be read ({error}). Give the model.safetensors that "
            "`legato segment train` wrote into its output folder."
        ) from error
    if _KEY not in metadata:
        raise CheckpointError(
            f"{path} holds tensors, but not a model of `legato segment train`: it does not say "
            "what network they belong to."
        )
    try:
        settings = ModelSettings.from_dict(json.loads(metadata[_KEY]))
        model = build(settings, network)
        take_tensors(model, tensors)
    except (InputError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"The model in {path} cannot be built ({error}). Was it written from another network, "
            "or by another version of legato? Then train it again, in another folder: `legato "
            "segment train`."
        ) from error
    return model, settings
