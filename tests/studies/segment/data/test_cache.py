"""The cache: used while it fits, built anew when it does not, never in the way."""

import multiprocessing
import os
import pickle
import time

import pytest
import torch

from legato.studies.segment.data import DataWarning, StanfordBackground, cache_folder, stanford

pytestmark = pytest.mark.filterwarnings("ignore:.*the original data set has 715")


@pytest.fixture
def reads(monkeypatch):
    """How often the source itself was read."""
    calls = []
    read = stanford.read_stanford
    monkeypatch.setattr(stanford, "read_stanford", lambda *args: calls.append(args) or read(*args))
    return calls


@pytest.fixture(params=["archive", "folder"])
def source(request, stanford):
    return stanford.archive() if request.param == "archive" else stanford.folder()


def content(data):
    return [(name, image.tolist(), labels.tolist()) for image, labels, name in data]


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_the_second_time_comes_from_the_cache(source, reads, own_cache):
    first = StanfordBackground(source)
    second = StanfordBackground(source)
    assert len(reads) == 1
    assert content(first) == content(second)
    assert only_file(own_cache).suffix == ".zip"


def test_a_folder_of_ones_own(source, reads, tmp_path, own_cache):
    for _ in range(2):
        StanfordBackground(source, cache=tmp_path / "a" / "b")
    assert len(reads) == 1
    assert not own_cache.exists()


def test_each_set_of_classes_has_its_own(source, reads):
    for _ in range(2):
        assert len(StanfordBackground(source, "surfaces").class_names) == 3
        assert len(StanfordBackground(source, "regions").class_names) == 8
    assert len(reads) == 2


def test_none_at_all(source, reads, own_cache):
    for _ in range(2):
        StanfordBackground(source, cache=False)
    assert len(reads) == 2
    assert not own_cache.exists()


def test_a_changed_archive_is_read_again(stanford, reads):
    path = stanford.archive()
    old = StanfordBackground(path)
    files = stanford.contents(5)
    path = stanford.archive(files)
    new = StanfordBackground(path)
    assert (len(old), len(new), len(reads)) == (4, 5, 2)


def test_a_changed_folder_is_read_again(stanford, reads):
    path = stanford.folder()
    StanfordBackground(path)
    labels = path / "iccv09Data/labels/0000100.surfaces.txt"
    labels.write_bytes(labels.read_bytes().replace(b"1", b"2"))
    os.utime(labels, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert set(StanfordBackground(path)[0].labels.unique().tolist()) <= {0, 2, 255}
    assert len(reads) == 2


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_cache_is_built_again(source, reads, own_cache, share):
    expected = content(StanfordBackground(source))
    path = only_file(own_cache)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert content(StanfordBackground(source)) == expected
    assert len(reads) == 2
    assert path.stat().st_size == len(whole)


def test_a_damaged_byte_anywhere_is_noticed_or_harmless(stanford, own_cache):
    source = stanford.archive(stanford.contents(1))
    expected = content(StanfordBackground(source))
    path = only_file(own_cache)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert content(StanfordBackground(source)) == expected


def test_a_folder_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(DataWarning, match="cannot be cached") as warned:
        data = StanfordBackground(source, cache=tmp_path / "file" / "cache")
    assert len(data) == 4
    assert sum("cannot be cached" in str(each.message) for each in warned) == 1
    assert warned[0].filename == __file__


def test_a_failure_while_writing_leaves_nothing(source, own_cache, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.warns(DataWarning, match="No space left"):
        StanfordBackground(source)
    assert list(own_cache.iterdir()) == []


def _open(path, cache, start, answers):
    import warnings

    warnings.simplefilter("ignore")
    start.wait()
    answers.put(content(StanfordBackground(path, cache=cache)))


def test_several_processes_at_once(stanford, tmp_path, own_cache):
    path = stanford.archive(stanford.contents(40))
    context = multiprocessing.get_context("fork")
    start, answers = context.Event(), context.Queue()
    workers = [
        context.Process(target=_open, args=(path, own_cache, start, answers)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    start.set()
    contents = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    assert all(each == contents[0] for each in contents)
    assert len(contents[0]) == 40
    assert only_file(own_cache).suffix == ".zip"
    assert content(StanfordBackground(path)) == contents[0]


def test_where_caches_go(monkeypatch, tmp_path):
    monkeypatch.delenv("LEGATO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "legato"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "legato"
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_data_sets_can_be_pickled(source):
    data = StanfordBackground(source)
    copy = pickle.loads(pickle.dumps(data))
    assert content(copy) == content(data)
    assert torch.equal(pickle.loads(pickle.dumps(data.in_memory()))[1].image, data[1].image)
