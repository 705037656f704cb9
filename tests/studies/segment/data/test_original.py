"""The facts about the original archive; needs LEGATO_STANFORD."""

import collections
import time

import pytest
import torch

from legato.studies.segment.data import IGNORE, StanfordBackground, split, verify_stanford


@pytest.mark.parametrize(
    ("classes", "shares"),
    [
        ("surfaces", {0: 15.1, 1: 33.8, 2: 51.1, IGNORE: 0.009}),
        (
            "regions",
            {0: 14.5, 1: 14.0, 2: 22.5, 3: 6.8, 4: 4.0, 5: 22.6, 6: 1.3, 7: 13.7, IGNORE: 0.515},
        ),
    ],
)
def test_images_sizes_and_label_shares(original, tmp_path, classes, shares):
    StanfordBackground(original, classes, cache=tmp_path)
    start = time.process_time()
    data = StanfordBackground(original, classes, cache=tmp_path).in_memory()
    assert time.process_time() - start < 10  # of this process, whatever else runs
    sizes = collections.Counter(tuple(sample.labels.shape) for sample in data)
    counts = sum(torch.bincount(sample.labels.flatten(), minlength=256) for sample in data)
    assert len(data) == 715
    assert len(sizes) == 51
    assert sizes[240, 320] == 531
    assert set(counts.nonzero().flatten().tolist()) == set(shares)
    for label, share in shares.items():
        digits = 3 if label == IGNORE else 1
        assert round(100 * counts[label].item() / counts.sum().item(), digits) == share


def test_the_cache_is_compact(original, tmp_path):
    StanfordBackground(original, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < original.stat().st_size


def test_the_archive_is_whole(original):
    verify_stanford(original)


def test_the_split_of_the_study(original, tmp_path):
    parts = split(StanfordBackground(original, cache=tmp_path).names, 143, seed=0)
    assert (len(parts.train), len(parts.test)) == (572, 143)
