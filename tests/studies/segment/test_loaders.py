"""What each process sees, and in which order."""

import torch

from legato.studies.segment.data import Augment, Augmented
from legato.studies.segment.loaders import EpochSampler


def test_every_image_once_an_epoch_in_another_order():
    sampler = EpochSampler(range(10), seed=3)
    orders = []
    for epoch in (0, 1, 1):
        sampler.set_epoch(epoch)
        pairs = list(sampler)
        assert {e for e, _ in pairs} == {epoch}
        orders.append([index for _, index in pairs])
    assert sorted(orders[0]) == list(range(10))
    assert orders[0] != orders[1] == orders[2]


def test_two_processes_share_the_batches_of_one():
    alone = list(EpochSampler(range(12), 0))
    parts = [list(EpochSampler(range(12), 0, rank, 2)) for rank in (0, 1)]
    for start in (0, 3):
        together = parts[0][start : start + 3] + parts[1][start : start + 3]
        assert sorted(together) == sorted(alone[2 * start : 2 * start + 6])


def test_processes_get_equally_many():
    parts = [list(EpochSampler(range(7), 0, rank, 3)) for rank in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3] == [len(EpochSampler(range(7), 0, 0, 3))] * 3
    assert {index for part in parts for _, index in part} == set(range(7))


def test_views_depend_on_the_epoch_in_the_key(study):
    data = Augmented(study.data, Augment(0.5, (0.8, 1.25), None, 0.2), seed=0)
    first, second, again = data[0, 2], data[1, 2], data[0, 2]
    assert len(data) == len(study.data)
    assert torch.equal(first.image, again.image)
    assert first.image.shape != second.image.shape or not torch.equal(first.image, second.image)
