"""Random views: image and labels move together, and a seed decides everything."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, Augment, Augmented, Sample, SyntheticScenes

SCENES = SyntheticScenes(6, size=(48, 64)).in_memory()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def painted(seed=0):
    """An image with a channel for each class: 255 where its label is, 0 elsewhere."""
    labels = SCENES[seed % len(SCENES)].labels.clone()
    labels[labels == IGNORE] = 0
    return Sample(255 * one_hot(labels.long(), 3).permute(2, 0, 1).byte(), labels, "painted")


@given(
    st.integers(0, 10**6),
    st.sampled_from([None, (0.5, 2.0), (1.3, 1.3), (0.4, 0.6)]),
    st.sampled_from([None, (20, 30), (100, 10)]),
)
def test_image_and_labels_stay_aligned(seed, scale, crop):
    """Where a view shows one class only, it is the label; and the label always shows."""
    image, labels, _ = Augment(scale=scale, crop=crop)(painted(seed), seeded(seed))
    assert image.shape[1:] == labels.shape
    assert (image.dtype, labels.dtype) == (torch.uint8, torch.uint8)
    shown = image.gather(0, labels[None].long())[0]
    assert (shown > 0).all()
    brightest, where = image.max(0)
    assert torch.equal(where[brightest == 255], labels[brightest == 255].long())
    assert (brightest == 255).float().mean() > 0.3
    if scale is None:  # nothing is interpolated
        assert (shown == 255).all()


def test_a_scale_of_one_changes_nothing():
    image, labels, name = SCENES[0]
    view = Augment(flip=0, scale=(1, 1))(SCENES[0], seeded(0))
    assert torch.equal(view.image, image)
    assert torch.equal(view.labels, labels)
    assert view.name == name


def test_flipping_twice_is_the_identity():
    flip = Augment(flip=1)
    once = flip(SCENES[1], seeded(0))
    twice = flip(once, seeded(1))
    assert torch.equal(once.image, SCENES[1].image.flip(-1))
    assert torch.equal(twice.image, SCENES[1].image)
    assert torch.equal(twice.labels, SCENES[1].labels)


def test_half_of_the_images_are_flipped():
    augment = Augment()
    flipped = sum(
        torch.equal(augment(painted(), seeded(seed)).labels, painted().labels.flip(-1))
        for seed in range(200)
    )
    assert 70 < flipped < 130


def test_sizes():
    assert Augment(crop=(20, 30))(SCENES[0], seeded(0)).labels.shape == (20, 30)
    assert Augment(crop=(20, 300))(SCENES[0], seeded(0)).labels.shape == (20, 64)
    assert Augment(scale=(0.5, 0.5))(SCENES[0], seeded(0)).image.shape == (3, 24, 32)
    assert Augment(scale=(1e-6, 1e-6))(SCENES[0], seeded(0)).image.shape == (3, 1, 1)


def test_every_window_can_be_drawn():
    ramp = torch.arange(4, dtype=torch.uint8).expand(2, 4)
    corners = {
        Augment(flip=0, crop=(2, 2))(Sample(ramp.expand(3, 2, 4), ramp, ""), seeded(seed))
        .labels[0, 0]
        .item()
        for seed in range(60)
    }
    assert corners == {0, 1, 2}


def test_colour_leaves_labels_alone_and_changes_the_image():
    view = Augment(flip=0, colour=0.5)(SCENES[0], seeded(0))
    assert torch.equal(view.labels, SCENES[0].labels)
    assert not torch.equal(view.image, SCENES[0].image)


def test_grey_stays_grey():
    grey = torch.full((3, 4, 4), 100, dtype=torch.uint8)
    view = Augment(colour=0.9).recolour(grey, seeded(3))
    assert (view == view[0]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip": 1.5},
        {"flip": -0.1},
        {"scale": (0, 1)},
        {"scale": (2, 1)},
        {"crop": (0, 5)},
        {"colour": 1.0},
        {"colour": -0.1},
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} is"):
        Augment(**wrong)


FULL = Augment(scale=(0.7, 1.4), crop=(32, 32), colour=0.3)


def test_seed_epoch_and_place_decide_the_view():
    def view(seed, epoch, place):
        return Augmented(SCENES, FULL, seed)[epoch, place].image

    assert torch.equal(view(0, 0, 1), view(0, 0, 1))
    assert torch.equal(view(0, 0, -1), view(0, 0, len(SCENES) - 1))
    assert not torch.equal(view(0, 0, 1), view(1, 0, 1))
    assert not torch.equal(view(0, 0, 1), view(0, 1, 1))


def test_the_order_of_reading_does_not_matter():
    data = Augmented(SCENES, FULL, 0)
    forwards = [data[0, index].image for index in range(6)]
    backwards = [data[0, index].image for index in reversed(range(6))]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))


def test_the_generator_of_the_process_is_not_touched():
    before = torch.get_rng_state()
    Augmented(SCENES, FULL, 0)[0, 0]
    assert torch.equal(torch.get_rng_state(), before)


def test_views_have_the_names_of_their_samples():
    data = Augmented(SCENES, FULL, 0)
    assert [data[3, index].name for index in range(len(data))] == SCENES.names
