"""Batches: pixels stay as they are, and padding is marked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.studies.segment.data import IGNORE, DataError, Sample, collate


def sample(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Sample(
        torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8),
        torch.randint(3, (height, width), generator=generator, dtype=torch.uint8),
        f"{height} × {width}",
    )


sizes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5)


@given(sizes, st.integers(1, 9))
def test_no_pixel_changes_and_padding_is_marked(sizes, multiple):
    samples = [sample(*size, seed) for seed, size in enumerate(sizes)]
    batch = collate(samples, multiple)
    count, channels, height, width = batch.image.shape
    assert (count, channels) == (len(samples), 3)
    assert height % multiple == width % multiple == 0
    assert height - multiple < max(h for h, _ in sizes) <= height
    assert width - multiple < max(w for _, w in sizes) <= width
    assert (batch.image.dtype, batch.labels.dtype) == (torch.float32, torch.int64)
    assert batch.inside.dtype == torch.bool
    assert batch.names == [each.name for each in samples]
    for index, (image, labels, _) in enumerate(samples):
        h, w = labels.shape
        assert torch.equal(batch.image[index, :, :h, :w], image.float() / 255)
        assert torch.equal(batch.labels[index, :h, :w], labels.long())
        assert batch.inside[index, :h, :w].all()
        assert batch.inside[index].sum() == h * w
        assert (batch.labels[index][~batch.inside[index]] == IGNORE).all()


def test_padding_has_the_colour_that_is_asked_for():
    batch = collate([sample(2, 2)], multiple=4, fill=(0.1, 0.2, 0.3))
    assert torch.allclose(batch.image[0, :, 3, 3], torch.tensor([0.1, 0.2, 0.3]))


def test_unknown_pixels_stay_unknown_and_inside():
    image, labels, name = sample(3, 3)
    labels[1, 1] = IGNORE
    batch = collate([Sample(image, labels, name)])
    assert batch.labels[0, 1, 1] == IGNORE
    assert batch.inside.all()


def test_another_device():
    batch = collate([sample(2, 3)]).to("meta")
    assert {tensor.device.type for tensor in batch[:3]} == {"meta"}
    assert batch.names == ["2 × 3"]


def test_errors():
    with pytest.raises(DataError, match="at least one"):
        collate([])
    with pytest.raises(DataError, match="multiple of at least 1"):
        collate([sample(2, 2)], multiple=0)
    image, _, name = sample(2, 3)
    with pytest.raises(DataError, match=r"\(2, 3\) pixels and its labels have \(3, 2\)"):
        collate([Sample(image, torch.zeros(3, 2, dtype=torch.uint8), name)])
