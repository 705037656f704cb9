"""A package that is not installed is answered with the extra that brings it."""

import json
import re
from importlib import metadata

import pytest

from legato._support.extras import how_to_install, needs_extra
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
        MissingExtraError,
        match=rf"^legato\.example needs {called}: {re.escape(how_to_install('fast'))}$",
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
        pytest.raises(MissingExtraError, match=r"\[fast\]"),
        needs_extra("legato.outer", "studies"),
    ):
        fails_for("numba")


# --- hints that fit how it was installed ----------------------------------------------------------


class Installed:
    """A distribution as pip records it; PEP 610 has these examples."""

    def __init__(self, told):
        self.told = told

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.told


def hint(monkeypatch, told):
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(told))
    return how_to_install("cli")


@pytest.mark.parametrize(
    "told",
    [
        None,  # from an index
        '{"url": "https://example.org/legato-0.1.0.whl", "archive_info": {}}',
        '{"url": "https://example.org/legato.git", "vcs_info": {"vcs": "git"}}',
        '{"url": "file:///no/such/folder", "dir_info": {"editable": true}}',
        "damaged",
    ],
)
def test_by_its_name(told, monkeypatch):
    assert hint(monkeypatch, told) == "pip install 'legato[cli]'"


def test_by_its_name_where_it_is_not_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert how_to_install("cli") == "pip install 'legato[cli]'"


def test_from_a_folder(monkeypatch, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    used = json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}})
    copied = json.dumps({"url": clone.as_uri(), "dir_info": {}})
    assert hint(monkeypatch, used) == f"pip install -e '{clone}[cli]'"
    assert hint(monkeypatch, copied) == f"pip install '{clone}[cli]'"
    monkeypatch.chdir(clone)
    assert hint(monkeypatch, used) == "pip install -e '.[cli]'"
    assert hint(monkeypatch, copied) == "pip install '.[cli]'"
