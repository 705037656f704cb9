"""What holds for every data set: subsets, memory, workers."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from legato.studies.segment.data import (
    Augment,
    Augmented,
    DataError,
    Sample,
    SyntheticScenes,
    collate,
)

DATA = SyntheticScenes(12, seed=3, size=(32, 40))


def same(first, second):
    return all(
        torch.equal(a.image, b.image) and torch.equal(a.labels, b.labels) and a.name == b.name
        for a, b in zip(first, second, strict=True)
    )


def test_iteration_ends_and_agrees_with_places():
    assert same(list(DATA), [DATA[index] for index in range(len(DATA))])


@pytest.mark.parametrize("data", [DATA, DATA.in_memory(), DATA.subset(DATA.names)])
def test_places_count_from_the_end_and_stop_there(data):
    assert same([data[-1]], [data[len(data) - 1]])
    for place in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[place]


def test_a_subset_keeps_order_classes_and_colours():
    names = [DATA.names[index] for index in (7, 0, 3)]
    part = DATA.subset(names)
    assert part.names == [sample.name for sample in part] == names
    assert same(part, [DATA[7], DATA[0], DATA[3]])
    assert (part.class_names, part.palette) == (DATA.class_names, DATA.palette)
    assert same(part.subset(names[1:]), [DATA[0], DATA[3]])


def test_unknown_names_are_counted_and_named():
    with pytest.raises(DataError, match=r"2 of 3 names are not in this data set .*: a, b"):
        DATA.subset(["a", DATA.names[0], "b"])


def test_in_memory_is_the_same():
    assert same(DATA, DATA.in_memory())
    assert DATA.in_memory().names == DATA.names


class Sizes(SyntheticScenes):
    """Scenes of different sizes."""

    def __getitem__(self, index):
        image, labels, name = super().__getitem__(index)
        return Sample(image[:, index:, : 20 + index], labels[index:, : 20 + index], name)


def test_in_memory_with_several_sizes():
    data = Sizes(12, size=(32, 40))
    assert same(data, data.in_memory())


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_see_what_the_process_sees(method, workers):
    data = Augmented(DATA.in_memory(), Augment(scale=(0.8, 1.2), colour=0.2), seed=1)
    keys = [(0, index) for index in range(12)]  # changed in place between two passes
    loader = DataLoader(
        data,
        sampler=keys,
        batch_size=4,
        collate_fn=collate,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for epoch in range(2):
        keys[:] = [(epoch, index) for index in range(12)]
        batches = list(loader)
        expected = [collate([data[epoch, index] for index in range(s, s + 4)]) for s in (0, 4, 8)]
        for batch, by_hand in zip(batches, expected, strict=True):
            assert torch.equal(batch.image, by_hand.image)
            assert torch.equal(batch.labels, by_hand.labels)
            assert batch.names == by_hand.names


def test_pickling():
    for data in (DATA, DATA.in_memory(), DATA.subset(DATA.names[:2])):
        assert same(data, pickle.loads(pickle.dumps(data)))
    seen = Augmented(DATA, Augment())
    assert torch.equal(pickle.loads(pickle.dumps(seen))[1, 0].image, seen[1, 0].image)
