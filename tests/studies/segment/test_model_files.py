"""Models in single files."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from legato.errors import CheckpointError, InputError
from legato.studies.segment.model import build, load_model, save_model
from legato.studies.segment.settings import LayerSettings, ModelSettings, Recipe


@pytest.fixture(scope="module")
def saved(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model = study.model(study.settings)
    save_model(model, study.settings, path)
    return path, model


@pytest.mark.parametrize("layer", [None, LayerSettings("contrast", last=3), LayerSettings()])
def test_there_and_back(study, same_weights, tmp_path, layer):
    settings = replace(study.settings, layer=layer)
    model = study.model(settings)
    save_model(model, settings, tmp_path / "model.safetensors")
    found, described = load_model(tmp_path / "model.safetensors")
    assert described == settings
    same_weights(model, found)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_failed_save_keeps_the_old_model(study, saved, monkeypatch):
    from legato.studies.segment import model as model_files

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    before = saved[0].read_bytes()
    monkeypatch.setattr(model_files, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_model(saved[1], study.settings, saved[0])
    assert saved[0].read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_files_that_are_no_models(saved, tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(saved[0].read_bytes()[:5000] if content is None else content)
    with pytest.raises(CheckpointError, match=r"cannot be read .*legato segment train"):
        load_model(path)


def test_no_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model(tmp_path / "absent.safetensors")


def test_tensors_of_something_else(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not a model of `legato segment train`"):
        load_model(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("description", "words"),
    [
        (
            {"classes": ["a", "b"], "network": "small", "layer": None, "refine": False},
            "has shape|is not part of it",
        ),
        (
            {"classes": ["a", "b"], "network": "huge", "layer": None, "refine": False},
            "small, vgg32",
        ),
        ({"classes": ["a", "b"], "network": "small"}, "not the settings of a model"),
        ({"classes": ["a", "b"], "network": "small", "layer": {"magic": 1}}, "magic"),
        ("no JSON", "cannot be built"),
    ],
)
def test_a_model_of_another_architecture(saved, tmp_path, description, words):
    path = tmp_path / "model.safetensors"
    text = description if isinstance(description, str) else json.dumps(description)
    save_file(dict(saved[1].state_dict()), path, metadata={"legato_segmenter": text})
    with pytest.raises(CheckpointError, match=words):
        load_model(path)


class Tied(nn.Module):
    """A network of the user's own, with one tensor under two names."""

    def __init__(self, classes):
        super().__init__()
        self.one = nn.Conv2d(3, classes, 1)
        self.two = self.one

    def forward(self, image):
        return self.one(image) + self.two(image)


def test_a_network_of_ones_own(tmp_path, same_weights, saved):
    settings = ModelSettings(("a", "b"), "custom", LayerSettings("uniform"))
    model = build(settings, Tied)
    path = tmp_path / "model.safetensors"
    save_model(model, settings, path)
    found, _ = load_model(path, Tied)
    same_weights(model, found)
    with pytest.raises(CheckpointError, match="give it again with --network"):
        load_model(path)
    with pytest.raises(CheckpointError, match="its network is 'small': leave --network out"):
        load_model(saved[0], Tied)
    with pytest.raises(CheckpointError, match=r"tensors do not fit .* is missing; .* more"):
        load_model(path, lambda classes: nn.Conv2d(3, classes, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LayerSettings("magic"), "weights must be one of uniform, contrast, learned"),
        (lambda: LayerSettings(neighbours=6), "4 or 8"),
        (lambda: LayerSettings(iterations=0), "at least 1"),
        (lambda: LayerSettings(last=0), "at least 1"),
        (lambda: ModelSettings(("a",)), "at least 2 classes"),
        (lambda: ModelSettings(("a", "b"), "vit"), "network must be one of"),
        (lambda: Recipe(epochs=0), "epochs must be at least 1"),
        (lambda: Recipe(lr=float("nan")), "lr must be positive"),
        (lambda: Recipe(lr=float("inf")), "lr must be positive"),
        (lambda: Recipe(loss="hinge"), "log, paper"),
        (lambda: Recipe(optimiser="lbfgs"), "adam, sgd"),
        (lambda: Recipe(precision="16"), "32, bf16-mixed"),
        (lambda: Recipe(workers=-1), "workers"),
    ],
)
def test_settings_that_make_no_sense(make, words):
    with pytest.raises(InputError, match=words):
        make()
