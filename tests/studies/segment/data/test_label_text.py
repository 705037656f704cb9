"""Label maps from text: quick where the writing is usual, right wherever it is not."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from legato.studies.segment.data import IGNORE, DataError
from legato.studies.segment.data.stanford_files import parse_labels


def write(labels, between=" ", end="\n"):
    return "".join(between.join(map(str, row)) + end for row in labels.tolist()).encode()


tables = hnp.arrays(
    numpy.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-1, 7)
)


@given(tables, st.sampled_from([" ", "  ", "\t"]), st.sampled_from(["\n", " \n", "\r\n", "\n\n"]))
def test_any_writing_gives_the_same_labels(labels, between, end):
    expected = numpy.where(labels < 0, IGNORE, labels)
    parsed = parse_labels(write(labels, between, end), 8, "file")
    assert parsed.dtype == numpy.uint8
    assert numpy.array_equal(parsed, expected)


def test_a_last_line_without_its_end_counts():
    assert parse_labels(b"0 1\n2 -1", 3, "file").tolist() == [[0, 1], [2, IGNORE]]


@pytest.mark.parametrize("negative", [-1, -2, -10, -17])
def test_every_negative_number_is_unknown(negative):
    text = f"0 {negative} 1\n1 1 1\n".encode()
    assert parse_labels(text, 3, "file").tolist() == [[0, IGNORE, 1], [1, 1, 1]]


@pytest.mark.parametrize("wrong", [3, 9, 10, 255, 256, 70000])
def test_a_label_out_of_range_is_named_with_its_place(wrong):
    text = f"0 1\n2 {wrong}\n".encode()
    with pytest.raises(
        DataError, match=rf"labels/7.txt holds the label {wrong} in line 2, place 2"
    ):
        parse_labels(text, 3, "labels/7.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"0 1\n0\n", "line 1 has 2 entries, line 2 has 1"),
        (b"0 1\n0 1 2\n", "line 1 has 2 entries, line 2 has 3"),
        (b"0 x\n0 1\n", "not a table of integers"),
        (b"0.5 1\n", "not a table of integers"),
        (b"\xff\xfe\x00", "not a table of integers"),
        (b"0 99999999999999999999\n", "beyond 64 bits"),
        (b"0?\n", "not a table of integers"),
    ],
)
def test_damage_is_named(text, message):
    with pytest.raises(DataError, match=message):
        parse_labels(text, 3, "file")
