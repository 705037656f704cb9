"""Synthetic scenes: reproducible, balanced, and not solved by colour alone."""

import time

import pytest
import torch

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, SyntheticScenes


def test_the_same_seed_and_place_give_the_same_scene():
    first, second = SyntheticScenes(5, seed=2), SyntheticScenes(50, seed=2)
    for place in (4, 0, 2):
        assert torch.equal(first[place].image, second[place].image)
        assert torch.equal(first[place].labels, second[place].labels)
    assert first[-1].name == first.names[4] == "scene-00004"


def test_seeds_and_places_differ():
    data = SyntheticScenes(2, seed=0)
    assert not torch.equal(data[0].image, data[1].image)
    assert not torch.equal(data[0].image, SyntheticScenes(2, seed=1)[0].image)


@pytest.mark.parametrize("size", [(60, 80), (96, 128), (33, 47), (120, 64), (240, 320)])
def test_shapes_and_labels(size):
    for image, labels, _ in SyntheticScenes(4, size=size):
        assert (image.shape, labels.shape) == ((3, *size), size)
        assert (image.dtype, labels.dtype) == (torch.uint8, torch.uint8)
        assert set(labels.unique().tolist()) <= {0, 1, 2, IGNORE}


def pixels(data):
    labels = torch.stack([sample.labels for sample in data]).flatten().long()
    image = torch.stack([sample.image for sample in data]).permute(0, 2, 3, 1).reshape(-1, 3)
    return image[labels != IGNORE], labels[labels != IGNORE]


def test_every_class_has_its_share_and_few_pixels_are_unknown():
    data = SyntheticScenes(60)
    labels = torch.stack([sample.labels for sample in data])
    shares = [(labels == label).float().mean().item() for label in (0, 1, 2)]
    assert min(shares) > 0.15
    assert 0.001 < (labels == IGNORE).float().mean() < 0.02


def test_unknown_pixels_lie_on_outlines():
    for _, labels, _ in SyntheticScenes(8):
        for row, column in (labels == IGNORE).nonzero().tolist():
            around = labels[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3]
            known = set(around.unique().tolist()) - {IGNORE}
            assert len(known) > 1 or (around == IGNORE).sum() > 1


def test_colour_alone_tells_much_but_not_all():
    """The best guess from a pixel's colour, learned on other scenes, errs now and then."""

    def bins(image):
        coarse = (image // 32).long()
        return coarse[:, 0] * 64 + coarse[:, 1] * 8 + coarse[:, 2]

    image, labels = pixels(SyntheticScenes(60, seed=0))
    votes = torch.bincount(bins(image) * 3 + labels, minlength=512 * 3).view(512, 3)
    image, labels = pixels(SyntheticScenes(30, seed=1))
    accuracy = (votes.argmax(1)[bins(image)] == labels).float().mean()
    assert 0.6 < accuracy < 0.9


def test_a_scene_takes_milliseconds():
    data = SyntheticScenes(20)
    times = []
    for place in range(len(data)):
        start = time.process_time()
        data[place]
        times.append(time.process_time() - start)
    assert sorted(times)[len(times) // 4] < 0.02  # 4 ms where nothing else runs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"count": 0}, "count"), ({"size": (20, 90)}, "32 × 32"), ({"seed": -1}, "seed")],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(InputError, match=message):
        SyntheticScenes(**wrong)
