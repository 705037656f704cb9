"""Small data sets on disk, written as the originals are."""

import io
import os
import tarfile
from pathlib import Path

import numpy
import pytest
from PIL import Image


def jpeg(height, width, seed=0):
    """The bytes of a JPEG of that size."""
    pixels = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), numpy.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def label_text(labels):
    """Labels as the original writes them."""
    return "".join(" ".join(map(str, row)) + "\n" for row in labels.tolist()).encode()


def stanford_contents(count=4):
    """Path in the data set → bytes, for ``count`` images of different sizes."""
    rng = numpy.random.default_rng(0)
    files, horizons = {}, []
    for index in range(count):
        name, height, width = f"{100 + index:07d}", 5 + index % 3, 8 + index % 4
        files[f"images/{name}.jpg"] = jpeg(height, width, index)
        for kind, classes in (("surfaces", 3), ("regions", 8)):
            labels = rng.integers(-1, classes, (height, width))
            files[f"labels/{name}.{kind}.txt"] = label_text(labels)
        horizons.append(f"{name} {width} {height} 2.5\n")
    files["horizons.txt"] = "".join(horizons).encode()
    return files


def write_folder(path, files):
    """The files below ``path/iccv09Data``."""
    for name, data in files.items():
        target = path / "iccv09Data" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


def archive_bytes(files, prefix="iccv09Data/"):
    """The files as a .tar.gz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


class Stanford:
    """Makes small data sets in the format of Stanford Background."""

    contents = staticmethod(stanford_contents)
    archive_bytes = staticmethod(archive_bytes)
    jpeg = staticmethod(jpeg)
    label_text = staticmethod(label_text)

    def __init__(self, path):
        self.path = path

    def archive(self, files=None, name="iccv09Data.tar.gz"):
        path = self.path / name
        path.write_bytes(archive_bytes(stanford_contents() if files is None else files))
        return path

    def folder(self, files=None):
        return write_folder(self.path / "unpacked", files or stanford_contents())


@pytest.fixture(scope="session")
def small_stanford(tmp_path_factory):
    """As ``stanford``, for fixtures that outlive one test."""
    return Stanford(tmp_path_factory.mktemp("stanford"))


@pytest.fixture
def stanford(tmp_path):
    """A maker of small data sets in the format of Stanford Background."""
    return Stanford(tmp_path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test writes into the user's cache."""
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def original():
    """The path of the original archive, for tests that need it."""
    path = os.environ.get("LEGATO_STANFORD")
    if not path:
        pytest.skip("needs the original archive: set LEGATO_STANFORD to the path of it")
    return Path(path)
