"""Splits: disjoint, complete, the same for the same seed, and safe in a file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.studies.segment.data import DataError, Split, split

NAMES = [f"{index:07d}" for index in range(715)]


def test_715_names_give_572_and_143():
    for test in (143, 0.2):
        parts = split(NAMES, test)
        assert (len(parts.train), len(parts.test), parts.seed) == (572, 143, 0)


def test_the_split_does_not_change_between_versions():
    assert split(NAMES, 143).test[:4] == ["0000004", "0000023", "0000028", "0000042"]


@given(st.sets(st.text(max_size=6), min_size=2, max_size=40), st.data(), st.integers(0, 2**31))
def test_disjoint_complete_and_deterministic(names, data, seed):
    count = data.draw(st.integers(1, len(names) - 1))
    parts = split(names, count, seed)
    assert len(parts.test) == count
    assert sorted(parts.train + parts.test) == sorted(names)
    assert parts == split(data.draw(st.permutations(sorted(names))), count, seed)


def test_seeds_differ():
    assert split(NAMES, 143, 0).test != split(NAMES, 143, 1).test


@pytest.mark.parametrize("test", [0, 715, -1, 1000, 0.0, 1.0, 0.0001])
def test_no_side_may_be_empty(test):
    with pytest.raises(DataError, match="one side empty"):
        split(NAMES, test)


def test_names_occur_once():
    with pytest.raises(DataError, match="1 names occur twice in the names to split: a"):
        split(["a", "b", "a"], 1)


def test_a_file_keeps_it(tmp_path):
    parts = split(NAMES, 143, seed=5)
    parts.save(tmp_path / "split.json")
    assert Split.load(str(tmp_path / "split.json")) == parts
    assert set(json.loads((tmp_path / "split.json").read_text())) == {"train", "test", "seed"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"train": [], "test": []}', '{"train": 1, "test": 2, "seed": 3}']
)
def test_a_file_with_something_else(tmp_path, text):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(DataError, match="holds no split"):
        Split.load(tmp_path / "split.json")


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="holds no split"):
        Split.load(tmp_path / "split.json")


def test_a_file_that_trains_on_its_test(tmp_path):
    Split(["a", "b"], ["b"], 0).save(tmp_path / "split.json")
    with pytest.raises(DataError, match="twice"):
        Split.load(tmp_path / "split.json")


def test_a_file_with_numbers_for_names(tmp_path):
    (tmp_path / "split.json").write_text('{"train": [1], "test": [2], "seed": 0}')
    with pytest.raises(DataError, match="not text"):
        Split.load(tmp_path / "split.json")
