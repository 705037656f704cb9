"""Models as single files: weights and settings, no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from legato._support.files import replacing
from legato.errors import CheckpointError, InputError
from legato.studies.segment.global_layer import Segmenter
from legato.studies.segment.model import attach, build
from legato.studies.segment.settings import CUSTOM, ModelSettings

_KEY = "legato_segmenter"


def save_model(model: Segmenter, settings: ModelSettings, path: Path) -> None:
    """Write a model to a safetensors file, atomically."""
    tensors = {
        # Copies: two names of one tensor, as tied weights have, cannot be stored otherwise.
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_KEY: json.dumps(settings.to_dict())})


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
        if (settings.network == CUSTOM) != (network is not None):
            raise InputError(
                "its network is your own: give it again with --network FILE.py:factory"
                if network is None
                else f"its network is {settings.network!r}: leave --network out"
            )
        if network is None:
            model = build(settings)
        else:
            classes = len(settings.classes)
            model = attach(network(classes), settings.layer, classes)
        take_tensors(model, tensors)
    except (InputError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"The model in {path} cannot be built ({error}). Was it written by another version, "
            "or from another network?"
        ) from error
    return model, settings


def take_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state dict, or say in one sentence how the two differ."""
    own = module.state_dict()
    differences = [
        *(f"{name} is missing" for name in own if name not in tensors),
        *(f"{name} is not part of it" for name in tensors if name not in own),
        *(
            f"{name} has shape {tuple(tensors[name].shape)} instead of {tuple(value.shape)}"
            for name, value in own.items()
            if name in tensors and tensors[name].shape != value.shape
        ),
    ]
    if differences:
        count = len(differences)
        first = "; ".join(differences[:3]) + (f"; and {count - 3} more" if count > 3 else "")
        raise InputError(f"{count} tensors do not fit the {len(own)} of the network: {first}")
    module.load_state_dict(dict(tensors))
