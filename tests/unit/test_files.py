"""Files are replaced as a whole or not at all."""

import os
import stat
import threading

import pytest

from legato._support.files import replacing, write_text


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first", "zwölf µ"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_in_the_middle_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_writers_at_the_same_time_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.txt"
    texts = [str(number) * 200_000 for number in range(8)]
    threads = [threading.Thread(target=write_text, args=(path, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_old_or_new_never_half(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "a" * 100_000)
    seen = set()

    def read():
        for _ in range(200):
            text = path.read_text()
            seen.add((len(text), len(set(text))))

    reader = threading.Thread(target=read)
    reader.start()
    for letter in "bcdefgh":
        write_text(path, letter * 100_000)
    reader.join()
    assert seen == {(100_000, 1)}


def test_a_file_has_the_usual_permissions_whoever_wrote_it(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o022)
    try:
        with replacing(path) as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
