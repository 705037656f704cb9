"""Models as single files: weights and settings, no code."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from legato.errors import CheckpointError, InputError
from legato.studies.files import replacing
from legato.studies.segment.global_layer import Segmenter
from legato.studies.segment.model import build
from legato.studies.segment.settings import ModelSettings

_KEY = "legato_segmenter"


def save_model(model: Segmenter, settings: ModelSettings, path: Path) -> None:
    """Write a model to a safetensors file, atomically."""
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_KEY: json.dumps(settings.to_dict())})


def load_model(path: Path) -> tuple[Segmenter, ModelSettings]:
    """Read a model of :func:`save_model`; the settings in the file say what it is."""
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
        model = build(settings)
        model.load_state_dict(tensors)
    except (InputError, RuntimeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"The model in {path} does not fit its description ({error}). It was written by "
            "another version, or is damaged."
        ) from error
    return model, settings
