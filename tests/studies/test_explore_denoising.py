"""The tab with total variation: its numbers against differences and a search without gradients."""

import math

import pytest
import scipy.optimize
import torch

from legato.errors import InputError
from legato.studies.explore.controls import DenoisingControls, SegmentationControls, limits
from legato.studies.explore.denoising import curve, denoise_picture, learn_weight
from legato.studies.explore.segmentation import segment_picture

SIGMA = 25.0


@pytest.fixture(scope="module")
def image():
    """Flat parts with edges between them, and a ramp."""
    picture = torch.full((3, 40, 48), 0.3)
    picture[:, 10:30, 8:30] = torch.tensor([0.8, 0.6, 0.2])[:, None, None]
    picture[:, :, 36:] = torch.linspace(0.2, 0.9, 40)[:, None]
    return picture


def score(image, weight):
    return denoise_picture(image, DenoisingControls(SIGMA, weight)).psnr


@pytest.mark.parametrize("weight", [0.01, 0.05, 0.3])
def test_the_slope_is_that_of_the_scores(image, weight):
    found = denoise_picture(image, DenoisingControls(SIGMA, weight))
    h = 1e-2 * weight
    difference = (score(image, weight + h) - score(image, weight - h)) / (2 * h)
    assert found.slope == pytest.approx(difference, rel=0.02, abs=0.1)


def test_without_weight_nothing_changes(image):
    found = denoise_picture(image, DenoisingControls(SIGMA, 0.0))
    torch.testing.assert_close(found.denoised, found.noisy)
    assert found.psnr == pytest.approx(found.noisy_psnr)
    # A mean of squares of 5760 normal numbers is their variance to two per cent.
    assert found.noisy_psnr == pytest.approx(-20 * math.log10(SIGMA / 255), abs=0.2)


@pytest.mark.parametrize("start", [0.0, 0.01, 0.45])
def test_the_learned_weight_is_as_good_as_the_best(image, start):
    best = scipy.optimize.minimize_scalar(
        lambda theta: -score(image, math.exp(theta)), bounds=(-6, -0.7), method="bounded"
    )
    path = learn_weight(image, DenoisingControls(SIGMA, start))
    assert path[0][0] == pytest.approx(max(start, 1e-3))
    assert max(found for _, found in path) >= -best.fun - 0.02


def test_the_curve_passes_through_the_scores(image):
    seen = curve(image, SIGMA)
    assert seen[0][0] < 0.005
    assert seen[-1][0] == pytest.approx(limits(DenoisingControls, "weight")[1])
    weight, found = seen[len(seen) // 2]
    assert found == pytest.approx(score(image, weight), abs=1e-3)


@pytest.mark.parametrize("values", [(4, 0.1), (25, -0.1), (25, 1.0), (math.nan, 0.1)])
def test_values_outside_of_the_sliders(values):
    with pytest.raises(InputError, match="lies between"):
        DenoisingControls(*values)


def test_words_and_pictures():
    pytest.importorskip("gradio")
    from legato.studies.explore.denoising_tab import learn, show

    said, noisy, clean, drawn = show(None, "Scene 1", SIGMA, 0.02)
    assert "More weight would be better" in said
    assert noisy.shape == clean.shape
    assert "<svg" in drawn
    weight, said, *_ = learn(None, "Scene 1", SIGMA, 0.3)
    assert 0.02 < weight < 0.3
    assert "λ is about right" in said
    assert "lies between" in show(None, "Scene 1", 1000, 0.02)[0]


def test_the_largest_smoothness_does_something_to_a_photograph():
    datasets = pytest.importorskip("sklearn.datasets")
    photograph = torch.from_numpy(datasets.load_sample_image("china.jpg").copy())[::4, ::4]
    photograph = photograph.permute(2, 0, 1).float() / 255
    most = limits(SegmentationControls, "smoothness")[1]
    for smoothness, left in ((SegmentationControls.smoothness, 0.7), (most, 0.4)):
        found = segment_picture(photograph, SegmentationControls(smoothness=smoothness))
        assert found.potts_length < left * found.cost_only_length
