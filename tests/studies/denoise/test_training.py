"""Training makes denoisers better than what they start from."""

from dataclasses import replace

import pytest
import torch

from legato.console.files import DataError
from legato.errors import CheckpointError, DivergenceError, InputError
from legato.gradients import Unroll
from legato.studies.denoise.clean import clean_channels, shipped_denoiser
from legato.studies.denoise.images import draw_picture, drawn_sets
from legato.studies.denoise.models import (
    Analysis,
    MappedAnalysis,
    MappedTotalVariation,
    first_filters,
)
from legato.studies.denoise.scores import psnr, score
from legato.studies.denoise.training import Patches, Recipe, patch_loss, train

SIGMA = 25 / 255
CPU = torch.device("cpu")
RECIPE = Recipe(steps=30, batch=4, patch=24, lr=3e-2, network_lr=3e-3)


@pytest.fixture(scope="module")
def sets():
    return drawn_sets(6, 2)


def models():
    return {
        "maps": MappedTotalVariation(0.3 * SIGMA, SIGMA, 20),
        "filters": Analysis(first_filters(8, 3, 10, SIGMA, Unroll())),
        "both": MappedAnalysis(first_filters(8, 3, 10, SIGMA, Unroll()), SIGMA),
    }


@pytest.mark.parametrize("name", list(models()))
def test_training_helps(name, sets):
    torch.manual_seed(0)
    model = models()[name]
    images = sets.tests["drawn"]
    before = score(model, images, SIGMA, CPU)["psnr"]
    course = train(model, sets.train, SIGMA, RECIPE, CPU)
    assert score(model, images, SIGMA, CPU)["psnr"] > before + 0.1
    assert course["steps"] == 30
    assert len(course["losses"]) == 10


def test_maps_start_as_one_weight(sets):
    y = torch.rand(1, 1, 20, 22)
    model = models()["both"]
    assert model.weights(y).shape == (1, 8, 20, 22)
    plain = Analysis(model.filters)
    torch.testing.assert_close(model(y), plain(y))
    weight = models()["maps"].weights(y)
    torch.testing.assert_close(weight, torch.full_like(weight, 0.3 * SIGMA))


def test_every_level_at_once(sets):
    denoiser = first_filters(8, 3, 10, None, Unroll())
    weights = denoiser.powers.detach().clone()
    train(Analysis(denoiser), sets.train, (0.02, 0.2), replace(RECIPE, steps=3), CPU)
    assert not torch.equal(denoiser.powers.detach(), weights)


def mapped_for_every_level():
    """Filters with maps that are not constant, for any σ."""
    torch.manual_seed(0)
    model = MappedAnalysis(first_filters(8, 3, 10, None, Unroll()))
    with torch.no_grad():
        for parameter in model.maps.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def test_maps_for_every_level_know_their_level():
    model = mapped_for_every_level()
    y, sigma = torch.rand(3, 1, 20, 22), torch.tensor([0.02, 0.1, 0.25])
    together = model(y, sigma)
    for i in range(3):
        torch.testing.assert_close(model(y[i : i + 1], float(sigma[i])), together[i : i + 1])
    of_one = MappedAnalysis(first_filters(8, 3, 10, SIGMA, Unroll()), SIGMA)
    with torch.no_grad():
        of_one.filters.log_weights.copy_(
            model.filters.log_weights + model.filters.powers * torch.tensor(SIGMA).log()
        )
    of_one.maps.load_state_dict(model.maps.state_dict())
    torch.testing.assert_close(of_one(y), model(y, SIGMA))


@pytest.mark.parametrize("level", [1e-3, 0.02, 0.1, 0.5, 1.0, 2.0])
def test_less_noise_than_was_learned_is_taken_away_too(level):
    """What the maps see grows like 1/σ: an error of 100 σ, or no numbers, without a limit."""
    clean, sigma = draw_picture(3)[None], level / 255
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    found = clean_channels(clean + sigma * noise, sigma, shipped_denoiser(), CPU)
    assert float((found - clean).square().mean().sqrt()) < 0.9 * sigma


def test_a_level_is_given_once():
    filters = first_filters(8, 3, 10, None, Unroll())
    with pytest.raises(InputError, match="one noise level"):
        MappedAnalysis(filters, SIGMA)
    with pytest.raises(InputError, match="either the model or its call"):
        MappedAnalysis(filters)(torch.rand(1, 1, 8, 8))
    with pytest.raises(InputError, match="either the model or its call"):
        models()["both"](torch.rand(1, 1, 8, 8), SIGMA)


def test_files_of_maps(tmp_path):
    model, path = mapped_for_every_level(), tmp_path / "maps.safetensors"
    model.save(path)
    y = torch.rand(1, 1, 12, 12)
    assert torch.equal(MappedAnalysis.load(path)(y, 0.1), model(y, 0.1))
    assert MappedAnalysis.wrote(path)
    model.filters.save(path)
    assert not MappedAnalysis.wrote(path)
    with pytest.raises(CheckpointError, match="no filters with weights"):
        MappedAnalysis.load(path)
    path.write_bytes(path.read_bytes()[:40])
    assert not MappedAnalysis.wrote(path)


def test_a_limit_of_time_ends_it(sets):
    recipe = Recipe(steps=10**6, batch=1, patch=16, seconds=0.2)
    course = train(models()["filters"], sets.train, SIGMA, recipe, CPU)
    assert course["steps"] < 10**4


def test_divergence_is_said(sets):
    model = models()["filters"]
    with torch.no_grad():
        model.denoiser.log_weights.fill_(float("inf"))
    with pytest.raises((DivergenceError, InputError), match="inf"):
        train(model, sets.train, SIGMA, RECIPE, CPU)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"seconds": 0.0}]
)
def test_bad_recipes(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Recipe(**wrong)


def test_the_loss_of_patches():
    clean = torch.zeros(2, 1, 4, 4)
    found = torch.stack((torch.full((1, 4, 4), 0.1), torch.full((1, 4, 4), 0.2)))
    one = patch_loss(found, clean, 0.1)
    expected = (torch.tensor([1.0, 4.0]) + 2.5).log().mean()
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(patch_loss(found, clean, torch.full((2, 1, 1, 1), 0.1)), one)


def test_patches(sets):
    patches = Patches(sets.train, 16, 0).draw(5)
    assert patches.shape == (5, 1, 16, 16)
    assert torch.equal(patches, Patches(sets.train, 16, 0).draw(5))
    with pytest.raises(DataError, match="as large as a patch"):
        Patches(sets.train, 1000, 0)


def test_psnr():
    assert psnr(torch.full((4, 4), 0.1), torch.zeros(4, 4)) == pytest.approx(20, abs=1e-5)
