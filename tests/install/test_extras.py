"""A package that is not installed is answered with the extra that brings it."""

import pytest

from legato._support.extras import needs_extra
from legato.errors import LegatoError, MissingExtraError


def fails_for(name):
    with needs_extra("legato.example", "fast"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("imported", "called"),
    [("numba", "numba"), ("numba.extending", "numba"), ("sklearn.base", "scikit-learn")],
)
def test_the_sentence_names_the_extra(imported, called):
    with pytest.raises(
        MissingExtraError, match=rf"^legato\.example needs {called}: pip install 'legato\[fast\]'$"
    ) as caught:
        fails_for(imported)
    assert isinstance(caught.value, LegatoError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == imported


@pytest.mark.parametrize("name", ["legato.misspelt", None])
def test_what_no_extra_brings_stays_as_it_is(name):
    with pytest.raises(ModuleNotFoundError) as caught:
        fails_for(name)
    assert not isinstance(caught.value, MissingExtraError)


def test_the_innermost_name_wins():
    with (
        pytest.raises(MissingExtraError, match=r"legato\[fast\]"),
        needs_extra("legato.outer", "studies"),
    ):
        fails_for("numba")
