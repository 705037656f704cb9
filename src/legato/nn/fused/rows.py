"""What the row kernels have in common: how they are compiled, and how rows are moved.

Fields are (rows, …, columns), the columns padded to whole vectors; rings of rows have margins.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
# mypy: disable-error-code="call-arg"

from __future__ import annotations

from collections import namedtuple

from numba import njit

from legato.nn.fused.vector_math import distinct, stream

MARGIN_COLUMNS = 16
"""Columns on either side of a line where no neighbour is further away: x ± 1 needs no test."""

Pair = namedtuple("Pair", "down across")
"""Lines of the direction that leads down, and of the one to the next column."""


Span = namedtuple("Span", "first low high count")
"""The rows a band owns, low ≤ r < high, its first row, and how many iterations are to be run.

The first row lies above the rows that it owns: a margin that other bands bring up to date.
"""


# Without the run-time's reference counts: every slice would pay two atomic operations, on counters
# that all threads share. A kernel's cache notices changes in the kernel's own file only, so each
# layer has its kernels in one file; after a change here, or in `vector_math`, empty `__pycache__`.
_options = {"fastmath": {"contract"}, "error_model": "numpy", "_nrt": False}
compiled = njit(cache=True, nogil=True, **_options)
inlined = njit(inline="always", **_options)
# By LLVM, once the promise of `distinct` is noted: a call would pass seven words an array.
line_function = njit(forceinline=True, nogil=True, **_options)


@inlined
def shifted(line, shift, columns):
    """A ring's line as seen from `shift` columns further left, its two equal margins cut off.

    A slice, because Numba tests every index of the form x + shift for being negative, and the loop
    around such a test does not vectorise.
    """
    start = (line.size - columns) // 2 + shift
    return line[start : start + columns]


@line_function
def copy_line(row, source):
    distinct()
    for x in range(row.size):
        row[x] = source[x]


@line_function
def add_line(total, source):
    distinct()
    for x in range(total.size):
        total[x] += source[x]


@line_function
def scale_line(row, factor):
    distinct()
    for x in range(row.size):
        row[x] *= factor[x]


@line_function
def stream_line(row, source):
    """A copy to where it is not needed soon: reading the old contents first would double it."""
    for x in range(0, row.size, 16):
        stream(row, source, x)


@line_function
def clear(rows):
    flat = rows.reshape(rows.size)
    for x in range(flat.size):
        flat[x] = 0


@compiled
def exchange(field, first_rows, owned, bands, depth):
    """Copies the rows that neighbouring bands of an image own into each other's margins."""
    tasks = field.shape[0]
    for task in range(tasks):
        low, high = owned[task]
        if task % bands > 0:
            above = task - 1
            start = max(owned[above, 0], low - depth)
            for r in range(start, low):
                copy_line(field[task, r - first_rows[task]], field[above, r - first_rows[above]])
        if task % bands < bands - 1:
            below = task + 1
            stop = min(owned[below, 1], high + depth)
            for r in range(high, stop):
                copy_line(field[task, r - first_rows[task]], field[below, r - first_rows[below]])


@compiled
def load(rows, first, last, source, factor):
    """rows[r] = factor · source[:, r] for first ≤ r < last, padded with zeros."""
    distinct()
    planes, _, width = source.shape
    for r in range(first, last):
        for plane in range(planes):
            row, line = rows[r, plane], source[plane, r]
            for x in range(width):
                row[x] = factor * line[x]
            for x in range(width, row.size):
                row[x] = 0


@compiled
def store(target, rows, first, last, factor):
    """target[:, r] = factor · rows[r] for first ≤ r < last."""
    distinct()
    planes, _, width = target.shape
    for r in range(first, last):
        for plane in range(planes):
            line, row = target[plane, r], rows[r, plane]
            for x in range(width):
                line[x] = factor * row[x]
