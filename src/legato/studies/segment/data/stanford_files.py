"""The files of Stanford Background, from its archive or a folder, and its labels as text."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from legato.console.files import DataError
from legato.studies.segment.data.datasets import IGNORE

HOW_TO_GET_IT = (
    "Fetch it with `legato segment download`, or by hand from "
    "http://dags.stanford.edu/projects/scenedataset.html, and give the path of the archive or of "
    "the folder it unpacks to."
)
_LARGEST_MEMBER = 100_000_000  # bytes; the largest of the original has 0.2 million

# The end of a path: this is all that is looked at, so that a member cannot point elsewhere.
_IMAGE = re.compile(r"(?:^|/)images/([^/.][^/]*)\.jpe?g$", re.IGNORECASE)
_LABELS = re.compile(r"(?:^|/)labels/([^/.][^/]*)\.(surfaces|regions)\.txt$")
_HORIZONS = re.compile(r"(?:^|/)horizons\.txt$")
_SPACE, _NEWLINE, _ZERO, _NINE, _UNKNOWN = b" \n09?"


class StanfordFile(NamedTuple):
    """One file: what it is, which image it belongs to, its contents."""

    kind: str
    """"image", "surfaces", "regions" or "horizons"."""
    name: str
    data: bytes


def stanford_files(path: Path, kinds: frozenset[str]) -> Iterator[StanfordFile]:
    """The files of these kinds, in the order of the source; nothing is written to disk."""
    return _of_folder(path, kinds) if _exists(path).is_dir() else _of_archive(path, kinds)


def fingerprint(path: Path) -> str:
    """What changes with the source: an archive's contents, a folder's names, sizes and times."""
    if not _exists(path).is_dir():
        try:
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(path, error) from error
    digest = hashlib.sha256()
    for file_path in _listing(_root(path)):
        state = file_path.stat()
        line = f"{file_path.parent.name}/{file_path.name} {state.st_size} {state.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _exists(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"There is no Stanford Background data set at {path}. {HOW_TO_GET_IT}")
    return path


def _of_archive(path: Path, kinds: frozenset[str]) -> Iterator[StanfordFile]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                kind, name = _what_is(member.name)
                if kind not in kinds or not member.isfile():
                    continue
                if member.size > _LARGEST_MEMBER:
                    raise DataError(
                        f"{member.name} in {path} claims {member.size} bytes, far more than any "
                        f"file of the data set. The archive is not the original. {HOW_TO_GET_IT}"
                    )
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                yield StanfordFile(kind, name, file.read())
            rest = archive.fileobj
            while rest is not None and rest.read(1 << 20):
                pass  # up to the checksum at the very end
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        reason = str(error).partition(":\n")[0]  # tarfile appends what each of its readers met
        raise DataError(
            f"{path} is truncated, damaged or not a .tar.gz archive ({reason}). Delete it and "
            "fetch it again with `legato segment download`."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _of_folder(path: Path, kinds: frozenset[str]) -> Iterator[StanfordFile]:
    root = _root(path)
    for file_path in _listing(root):
        kind, name = _what_is(file_path.relative_to(root).as_posix())
        if kind not in kinds:
            continue
        try:
            yield StanfordFile(kind, name, file_path.read_bytes())
        except OSError as error:
            raise _unreadable(file_path, error) from error


def _listing(root: Path) -> list[Path]:
    """All files that may belong to the data set, in a fixed order."""
    try:
        paths = [*(root / "images").iterdir(), *(root / "labels").iterdir(), root / "horizons.txt"]
        return sorted(path for path in paths if path.is_file())
    except OSError as error:
        raise _unreadable(root, error) from error


def _root(path: Path) -> Path:
    """The folder that holds ``images`` and ``labels``: this one, or the one inside it."""
    for root in (path, path / "iccv09Data"):
        if (root / "images").is_dir() and (root / "labels").is_dir():
            return root
    raise DataError(
        f"The folder {path} holds no Stanford Background data set: neither it nor iccv09Data in it "
        f"has the folders images and labels. {HOW_TO_GET_IT}"
    )


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error}). Check the file and its permissions.")


def _what_is(path: str) -> tuple[str, str]:
    if match := _IMAGE.search(path):
        return "image", match[1]
    if match := _LABELS.search(path):
        return match[2], match[1]
    return ("horizons", "") if _HORIZONS.search(path) else ("other", "")


def parse_labels(text: bytes, classes: int, name: str) -> NDArray[numpy.uint8]:
    """The labels in ``text``, (H, W) uint8; negative ones become ``IGNORE``."""
    digits = _digits(text)
    labels = _integers(text, name) if digits is None else digits
    wrong = labels >= classes
    if wrong.any():
        row, column = numpy.argwhere(wrong)[0]
        raise DataError(
            f"{name} holds the label {labels[row, column]} in line {row + 1}, place {column + 1}. "
            f"Labels are 0 to {classes - 1}, or negative where unknown: this is another set of "
            "classes, or the file is damaged."
        )
    # IGNORE does not fit the small signed type that labels may come in.
    return numpy.where(labels < 0, numpy.uint8(IGNORE), labels.astype(numpy.uint8))


def _digits(text: bytes) -> NDArray[numpy.int8] | None:
    """Labels in the usual writing: digits or −1, one space apart, in lines of equal length.

    Read as a table of characters, some fifty times faster than number by number; None where the
    text is written in another way.
    """
    text = text.replace(b"-1", b"?")
    length = text.find(b"\n") + 1
    if length < 2 or len(text) % length:
        return None
    table = numpy.frombuffer(text, numpy.int8).reshape(-1, length)
    labels = table[:, 0:-1:2]
    known = labels != _UNKNOWN
    written_so = (
        (table[:, 1:-1:2] == _SPACE).all()
        and (table[:, -1] == _NEWLINE).all()
        and ((labels >= _ZERO) & (labels <= _NINE) | ~known).all()
    )
    return numpy.where(known, labels - _ZERO, numpy.int8(-1)) if written_so else None


def _integers(text: bytes, name: str) -> NDArray[numpy.int64]:
    """Labels in any writing that separates integers by white space."""
    try:
        rows = [[int(entry) for entry in line.split()] for line in text.splitlines()]
        rows = [row for row in rows if row]
        if not rows:
            raise DataError(f"{name} is empty. Copy or download it again.")
        for line, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise DataError(
                    f"{name} is not a table: line 1 has {len(rows[0])} entries, line {line + 1} "
                    f"has {len(row)}. It may be truncated; copy or download it again."
                )
        return numpy.array(rows, numpy.int64)
    except OverflowError as error:
        raise DataError(f"{name} holds a number beyond 64 bits. Download it again.") from error
    except DataError:
        raise
    except ValueError as error:
        raise DataError(
            f"{name} is not a table of integers ({error}). Copy or download it again."
        ) from error
