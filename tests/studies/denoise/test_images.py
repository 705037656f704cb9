"""Where images come from, and what noise they get."""

import numpy
import pytest
import torch
from PIL import Image

from legato.console.files import DataError
from legato.studies.denoise.images import drawn_sets, middles, noisy, read_sets


def test_a_folder_as_the_data_lie(tmp_path):
    rng = numpy.random.default_rng(0)
    for part, shape in (("train", (20, 30, 3)), ("BSD68", (20, 30))):
        (tmp_path / part).mkdir()
        for name in ("b", "a"):
            values = rng.integers(0, 256, shape, dtype=numpy.uint8)
            Image.fromarray(values).save(tmp_path / part / f"{name}.png")
    last = numpy.asarray(Image.open(tmp_path / "BSD68" / "b.png"))
    sets = read_sets(tmp_path)
    assert list(sets.tests) == ["BSD68"]
    assert [image.shape for image in sets.train] == [(20, 30)] * 2
    torch.testing.assert_close(sets.tests["BSD68"][1], torch.tensor(last).float() / 255)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        read_sets(tmp_path / "nowhere")
    with pytest.raises(DataError, match="BSD68 or Set12"):
        read_sets(tmp_path)
    (tmp_path / "Set12").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read_sets(tmp_path)
    (tmp_path / "Set12" / "a.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"a\.png is not an image"):
        read_sets(tmp_path)


def test_drawn_pictures_differ_and_stay_within_black_and_white():
    sets = drawn_sets(3, 2)
    images = sets.train + sets.tests["drawn"]
    assert len(images) == 5
    for image in images:
        assert 0 <= float(image.min()) < float(image.max()) <= 1
    assert not torch.equal(images[0], images[1])
    assert torch.equal(images[0], drawn_sets(1, 1).train[0])


def test_noise_is_seeded_and_not_clipped():
    clean = torch.zeros(200, 200)
    one = noisy(clean, 0.1, 3)
    assert torch.equal(one, noisy(clean, 0.1, 3))
    assert not torch.equal(one, noisy(clean, 0.1, 4))
    assert float(one.std()) == pytest.approx(0.1, rel=0.02)
    assert float(one.min()) < 0


def test_middles():
    image = torch.arange(30.0).reshape(5, 6)
    assert middles([image], 3)[0, 0].tolist() == image[1:4, 1:4].tolist()
    with pytest.raises(DataError, match="smaller"):
        middles([image], 6)
