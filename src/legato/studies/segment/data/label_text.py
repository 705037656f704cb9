"""Label maps written as text: a line for each row of pixels, an integer for each pixel."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from legato.console.files import DataError
from legato.studies.segment.data.datasets import IGNORE

_SPACE, _NEWLINE, _ZERO, _NINE, _UNKNOWN = b" \n09?"


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
    except ValueError as error:
        raise DataError(
            f"{name} is not a table of integers ({error}). Copy or download it again."
        ) from error
    rows = [row for row in rows if row]
    if not rows:
        raise DataError(f"{name} is empty. Copy or download it again.")
    for line, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{name} is not a table: line 1 has {len(rows[0])} entries, line {line + 1} has "
                f"{len(row)}. It may be truncated; copy or download it again."
            )
    try:
        return numpy.array(rows, numpy.int64)
    except OverflowError as error:
        raise DataError(f"{name} holds a number beyond 64 bits. Download it again.") from error
