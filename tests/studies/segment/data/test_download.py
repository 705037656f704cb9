"""The download, against a server on this machine that does what servers do."""

import gzip
import http.server
import threading
import time

import pytest

from legato.studies.segment.data import DataError, StanfordBackground, download, verify_stanford


@pytest.fixture(scope="module")
def whole(small_stanford):
    """The files of 715 small images, and the .tar.gz of them."""
    files = small_stanford.contents(715)
    return files, small_stanford.archive_bytes(files)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers /good, /short, /hangs, /unstated; anything else is not found."""

    data = b""
    wrong = b""

    def do_GET(self):
        paths = {"/good", "/short", "/hangs", "/unstated", "/wrong", "/unstated-short"}
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/good")
            self.end_headers()
            return
        if self.path not in paths:
            self.send_error(404)
            return
        data = self.wrong if self.path == "/wrong" else self.data
        self.send_response(200)
        if not self.path.startswith("/unstated"):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.path.endswith("short") or self.path == "/hangs":
            data = data[: len(data) // 2]
        self.wfile.write(data)
        if self.path == "/hangs":
            self.wfile.flush()
            time.sleep(1.5)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(whole):
    handler = type("OwnHandler", (Handler,), {"data": whole[1]})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        running.handler = handler
        running.url = f"http://127.0.0.1:{running.server_port}"
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("page", ["good", "unstated", "moved"])
def test_a_good_download(server, tmp_path, page, whole):
    seen = []
    path = download(
        tmp_path / "new" / "data", f"{server.url}/{page}", lambda *counts: seen.append(counts)
    )
    assert path == tmp_path / "new" / "data" / "iccv09Data.tar.gz"
    assert path.read_bytes() == whole[1]
    assert list(path.parent.iterdir()) == [path]
    assert seen[-1] == (len(whole[1]), None if page == "unstated" else len(whole[1]))
    assert [arrived for arrived, _ in seen] == sorted({arrived for arrived, _ in seen})
    assert len(StanfordBackground(path, cache=False)) == 715


def test_a_file_name_may_be_given(server, tmp_path):
    assert download(tmp_path / "scenes.tar.gz", f"{server.url}/good").name == "scenes.tar.gz"


def test_what_is_there_is_not_fetched_again(server, tmp_path, whole):
    (tmp_path / "iccv09Data.tar.gz").write_bytes(whole[1])
    assert download(tmp_path, f"{server.url}/none").read_bytes() == whole[1]


def test_another_file_is_not_overwritten(server, tmp_path):
    (tmp_path / "iccv09Data.tar.gz").write_text("precious")
    with pytest.raises(DataError, match=r"already a file .* delete it"):
        download(tmp_path, f"{server.url}/good")
    assert (tmp_path / "iccv09Data.tar.gz").read_text() == "precious"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("none", "answered 404"),
        ("short", "broke off after"),
        ("unstated-short", "nothing was kept: it is truncated, damaged"),
        ("hangs", "cannot be fetched .*timed out"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(server, tmp_path, page, message):
    with pytest.raises(DataError, match=message):
        download(tmp_path / "new" / "data", f"{server.url}/{page}", timeout=0.5)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing_behind(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(tmp_path / "new", f"{server.url}/good", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_no_server(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match=r"cannot be fetched .* online"):
        download(tmp_path / "new", f"{server.url}/good")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "no address", ""])
def test_other_addresses_are_refused(tmp_path, url):
    with pytest.raises(DataError, match="http:// or https://"):
        download(tmp_path, url)


def test_a_place_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        download(tmp_path / "file" / "folder", f"{server.url}/good")


def without(files, name):
    return {key: data for key, data in files.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: {"README": b"another archive"}, "states 0 images"),
        (lambda files: without(files, "horizons.txt"), "states 0 images"),
        (lambda files: without(files, "images/0000100.jpg"), "holds 714 images"),
        (lambda files: without(files, "labels/0000100.regions.txt"), "714 regions label files"),
        (
            lambda files: files | {"labels/0000100.surfaces.txt": b"0 1\n"},
            "another size .* 0000100",
        ),
        (lambda files: files | {"labels/0000100.surfaces.txt": b"7 1\n"}, "holds the label 7"),
        (lambda files: files | {"horizons.txt": b"0000100 wide high\n"}, "names no image size"),
        (lambda files: files | {"images/0000100.jpg": b"none"}, "not an image"),
    ],
)
def test_a_wrong_archive_is_refused_and_says_why(
    server, stanford, tmp_path, whole, change, message
):
    server.handler.wrong = stanford.archive_bytes(change(whole[0]))
    with pytest.raises(DataError, match=f"is not the Stanford Background data set.*{message}"):
        download(tmp_path / "new", f"{server.url}/wrong")
    assert list(tmp_path.iterdir()) == []


def test_the_right_bytes_in_the_wrong_wrapping(tmp_path, whole):
    path = tmp_path / "a.tar"
    path.write_bytes(gzip.decompress(whole[1]))
    verify_stanford(path)  # a plain .tar holds the same
