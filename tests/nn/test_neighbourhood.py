"""Which neighbourhoods exist."""

import pytest

from legato.errors import InputError
from legato.nn.neighbourhood import offsets


def test_neighbourhoods():
    assert offsets(3) == ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    assert offsets(2, 8) == ((1, 0), (0, 1), (1, 1), (1, -1))


def test_offsets_of_ones_own():
    given = [[1, 0], [0, 1], [0, 4], [3, -2]]
    assert offsets(2, given) == ((1, 0), (0, 1), (0, 4), (3, -2))


@pytest.mark.parametrize(
    ("neighbours", "words"),
    [
        (((1, 0),), "begin with"),  # one step down, none to the right
        (((0, 1), (1, 0)), "begin with"),
        (((1, 0), (0, 1), (0, 0)), "begin with"),
        (((1, 0), (0, 1), (0, -2)), "begin with"),
        (((1, 0), (0, 1), (-3, 1)), "begin with"),
        (((1, 0), (0, 1), (2, 2), (2, 2)), "is there once"),
        (((1, 0), (0, 1), (2.5, 0)), "whole numbers"),
        (((1, 0, 0), (0, 1, 0)), "whole numbers"),
        ("four", "whole numbers"),
        (None, "whole numbers"),
    ],
)
def test_offsets_that_are_none(neighbours, words):
    with pytest.raises(InputError, match=words):
        offsets(2, neighbours)
    with pytest.raises(InputError, match="in the plane"):
        offsets(3, ((1, 0), (0, 1), (2, 0)))


@pytest.mark.parametrize(("axes", "neighbours"), [(2, 6), (3, 8), (2, 0)])
def test_others_are_refused(axes, neighbours):
    with pytest.raises(InputError, match="no neighbourhood of"):
        offsets(axes, neighbours)
