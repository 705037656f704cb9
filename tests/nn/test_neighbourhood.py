"""Which neighbourhoods exist."""

import pytest

from legato.errors import InputError
from legato.nn.neighbourhood import offsets


def test_neighbourhoods():
    assert offsets(3) == ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    assert offsets(2, 8) == ((1, 0), (0, 1), (1, 1), (1, -1))


@pytest.mark.parametrize(("axes", "neighbours"), [(2, 6), (3, 8), (2, 0)])
def test_others_are_refused(axes, neighbours):
    with pytest.raises(InputError, match="no neighbourhood of"):
        offsets(axes, neighbours)
