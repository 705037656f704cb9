"""Small trainings that several files look at."""

import pytest
import torch

from legato.studies.segment.data import SyntheticScenes
from legato.studies.segment.model import build
from legato.studies.segment.settings import LayerSettings, ModelSettings, Recipe

CLASSES = ("sky", "horizontal", "vertical")


class Study:
    """Everything a small training needs, with names for the parts."""

    data = SyntheticScenes(6, size=(32, 40)).in_memory()
    settings = ModelSettings(CLASSES, "small", LayerSettings("learned", iterations=3))
    recipe = Recipe(epochs=3, batch=2, accelerator="cpu", lr=3e-3)

    @staticmethod
    def model(settings, seed=0):
        torch.manual_seed(seed)
        model = build(settings)
        if model.layer is not None:
            model.layer.potts.kernel = "reference"  # nothing to compile
        return model

    def train(self, folder, *callbacks, settings=None, recipe=None, validate=False):
        from legato.studies.segment.training import train  # seconds, which not every test needs

        settings = settings or self.settings
        model = self.model(settings)
        train(
            model,
            settings,
            recipe or self.recipe,
            self.data,
            folder,
            validation=self.data if validate else None,
            callbacks=list(callbacks),
        )
        return model


@pytest.fixture(scope="session")
def study():
    return Study()


@pytest.fixture(scope="session")
def straight(study, tmp_path_factory):
    """A training without interruption: its folder and its model."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, study.train(folder, validate=True)


def assert_same_weights(one, other, tolerance=0.0):
    """All parameters and buffers agree, bit by bit unless a tolerance is given."""
    stored = other.state_dict()
    assert set(one.state_dict()) == set(stored)
    for name, value in one.state_dict().items():
        error = (value - stored[name]).abs().max() if value.numel() else 0.0
        assert float(error) <= tolerance, f"{name}: {float(error)}"


@pytest.fixture(scope="session")
def same_weights():
    return assert_same_weights
